//! Every shape that we send, against the protocol's own JSON Schema.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::harness::Service;

/// The schema of revision 2025-11-25, from the folder that `MCP_SCHEMA_DIR` names.
fn schema() -> Option<Value> {
    #[expect(clippy::disallowed_methods, reason = "tests are told by the environment where the schemas are")]
    let folder = std::env::var("MCP_SCHEMA_DIR").ok()?;
    let path = PathBuf::from(folder).join("schema-2025-11-25.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(serde_json::from_str(&text).unwrap())
}

fn check(schema: &Value, name: &str, value: &Value) {
    let mut of_name = schema.clone();
    of_name["$ref"] = json!(format!("#/$defs/{name}"));
    let validator = jsonschema::validator_for(&of_name).unwrap();
    let errors: Vec<_> =
        validator.iter_errors(value).map(|error| format!("{} {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{name}: {errors:?} in {value}");
}

// req: TASK-01, TASK-05, LIFE-08, LIFE-09
#[tokio::test]
async fn what_is_sent_fits_the_schema() {
    let Some(schema) = schema() else {
        eprintln!("MCP_SCHEMA_DIR is not set: the shapes on the wire are not checked against the schema");
        return;
    };
    let service = Service::on_sqlite().await;
    let mut client = crate::support::client::Client::new(&service.url, Some("owner"));
    check(&schema, "InitializeResult", &client.initialize("2025-11-25").await);
    check(&schema, "EmptyResult", &client.request("ping", json!({})).await.result());
    // The test's own tools hold numbers that no reader of `serde_json` takes; one of them is shown as it is.
    let created = client.request("tools/call", json!({ "name": "our_name", "task": {} })).await;
    check(&schema, "JSONRPCResultResponse", &created.json());
    check(&schema, "CreateTaskResult", &created.result());
    check(&schema, "CallToolResult", &created.result());
    let id = created.result()["task"]["taskId"].clone();
    check(&schema, "GetTaskResult", &client.get(&id).await.result());
    check(&schema, "ListTasksResult", &client.request("tasks/list", json!({})).await.result());
    check(&schema, "CancelTaskResult", &client.cancel(&id).await.result());
    check(&schema, "JSONRPCErrorResponse", &client.result(&id).await.json());
    check(&schema, "JSONRPCErrorResponse", &client.send("{").await.json());
    let bad = client.call("optional", json!({ "bad": 1 })).await;
    check(&schema, "CallToolResult", &bad.result());
    let older = service.client_of("owner", "2025-06-18").await;
    check(&schema, "JSONRPCErrorResponse", &older.request("tasks/list", json!({})).await.json());
}
