//! What the demo server sends, against the JSON Schemas of the modern era.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Value, json};

/// The folder that `MCP_SCHEMA_DIR` names; nothing is checked without it.
static FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    #[expect(clippy::disallowed_methods, reason = "tests are told by the environment where the schemas are")]
    let folder = std::env::var("MCP_SCHEMA_DIR").ok()?;
    Some(PathBuf::from(folder))
});

/// Validators by file and name of a definition; making one takes longer than a test.
static MADE: LazyLock<Mutex<HashMap<(&str, String), &'static Validator>>> = LazyLock::new(Mutex::default);

/// Checks a message that the server sent; `method` is that of the request that an answer is for.
pub fn check(method: &str, message: &Value) {
    let Some(result) = message.get("result") else {
        match message["method"].as_str() {
            None => return check_as("core", "JSONRPCErrorResponse", message),
            Some("notifications/tasks") => return check_as("tasks", "TaskStatusNotification", message),
            Some(said) => return check_as("core", notification(said), message),
        }
    };
    match (method, result["resultType"].as_str()) {
        (_, Some("input_required")) => check_as("core", "InputRequiredResult", result),
        ("tools/call", Some("task")) => check_as("tasks", "CreateTaskResult", result),
        ("tools/call", Some("complete")) => check_as("core", "CallToolResult", result),
        ("server/discover", _) => check_as("core", "DiscoverResult", result),
        ("tools/list", _) => check_as("core", "ListToolsResult", result),
        ("prompts/list", _) => check_as("core", "ListPromptsResult", result),
        ("prompts/get", _) => check_as("core", "GetPromptResult", result),
        ("resources/list", _) => check_as("core", "ListResourcesResult", result),
        ("resources/templates/list", _) => check_as("core", "ListResourceTemplatesResult", result),
        ("resources/read", _) => check_as("core", "ReadResourceResult", result),
        ("completion/complete", _) => check_as("core", "CompleteResult", result),
        ("subscriptions/listen", _) => check_as("core", "SubscriptionsListenResult", result),
        ("tasks/get", _) => check_as("tasks", "GetTaskResult", result),
        ("tasks/update", _) => check_as("tasks", "UpdateTaskResult", result),
        ("tasks/cancel", _) => check_as("tasks", "CancelTaskResult", result),
        (method, kind) => panic!("an answer to {method} of the type {kind:?}: {message}"),
    }
}

fn notification(method: &str) -> &'static str {
    match method {
        "notifications/progress" => "ProgressNotification",
        "notifications/message" => "LoggingMessageNotification",
        "notifications/subscriptions/acknowledged" => "SubscriptionsAcknowledgedNotification",
        "notifications/tools/list_changed" => "ToolListChangedNotification",
        "notifications/prompts/list_changed" => "PromptListChangedNotification",
        "notifications/resources/updated" => "ResourceUpdatedNotification",
        other => panic!("a client of this era is never sent {other}"),
    }
}

fn check_as(part: &'static str, name: &str, value: &Value) {
    let Some(folder) = &*FOLDER else { return };
    let mut made = MADE.lock().unwrap();
    let validator = made.entry((part, name.to_owned())).or_insert_with(|| {
        let file = if part == "core" { "schema-2026-07-28.json" } else { "schema-ext-tasks.json" };
        let mut schema: Value = serde_json::from_str(&std::fs::read_to_string(folder.join(file)).unwrap()).unwrap();
        schema["$ref"] = json!(format!("#/$defs/{name}"));
        Box::leak(Box::new(jsonschema::validator_for(&schema).unwrap()))
    });
    let validator = *validator;
    // A failure must not poison the others' validators.
    drop(made);
    let errors: Vec<_> =
        validator.iter_errors(value).map(|error| format!("{} {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{name}: {errors:?} in {value}");
}
