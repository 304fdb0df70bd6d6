//! Prompts, resources, completions and the other requests that are about no tool, as the conformance suite wants them.

use serde::Deserialize;
use serde_json::{Value, json};

use super::toolbox::{Era, Reply};

/// A picture of one dot.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8/5+hHgAHggJ/PchI7wAAAABJRU5ErkJggg==";
const BEFORE_ID: &str = "test://template/";
const AFTER_ID: &str = "/data";
const WORDS: [&str; 4] = ["paris", "park", "party", "test"];

/// The prompt that asks.
const ASKING: &str = "test_input_required_result_prompt";

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Params {
    name: String,
    uri: String,
    level: String,
    arguments: std::collections::BTreeMap<String, String>,
    argument: Argument,
    input_responses: Option<Value>,
    #[serde(rename = "_meta")]
    meta: Meta,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    client_capabilities: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Argument {
    value: String,
}

/// The answer to a request; `None` if the method is unknown. One prompt comes and goes.
pub(super) fn answer(era: Era, method: &str, params: &str, with_fleeting: bool) -> Option<Reply> {
    let Ok(params) = serde_json::from_str::<Params>(params) else {
        return Some(Reply::error(-32602, "these params cannot be read"));
    };
    let missing = |uri: &str| missing(era, uri);
    Some(match method {
        "prompts/list" => Reply::Result(prompts(with_fleeting).to_string()),
        "prompts/get" if params.name == ASKING && era == Era::Modern => asking_prompt(&params),
        "prompts/get" => prompt(&params),
        "resources/list" => Reply::Result(resources().to_string()),
        "resources/templates/list" => Reply::Result(templates().to_string()),
        "resources/read" => match contents(&params.uri) {
            Some(contents) => Reply::Result(json!({ "contents": [contents] }).to_string()),
            None => missing(&params.uri),
        },
        "resources/subscribe" | "resources/unsubscribe" => match contents(&params.uri) {
            Some(_) => Reply::Result("{}".to_owned()),
            None => missing(&params.uri),
        },
        "completion/complete" => complete(&params.argument.value),
        "logging/setLevel" if params.level.is_empty() => Reply::error(-32602, "level must be a string"),
        "logging/setLevel" => Reply::Result("{}".to_owned()),
        _ => return None,
    })
}

fn prompts(with_fleeting: bool) -> Value {
    let argument =
        |name: &str, description: &str| json!({ "name": name, "description": description, "required": true });
    let mut prompts = json!([
        { "name": "test_simple_prompt", "title": "A simple prompt", "description": "Has one message and no arguments." },
        { "name": "test_prompt_with_arguments", "description": "Names its arguments.",
          "arguments": [argument("arg1", "The first argument"), argument("arg2", "The second argument")] },
        { "name": "test_prompt_with_embedded_resource", "description": "Carries a resource.",
          "arguments": [argument("resourceUri", "The URI of the resource")] },
        { "name": "test_prompt_with_image", "description": "Carries a picture." },
        { "name": ASKING, "description": "Asks for its context, where a prompt may ask." },
    ]);
    if let (true, Some(prompts)) = (with_fleeting, prompts.as_array_mut()) {
        prompts.push(json!({ "name": "fleeting_prompt", "description": "Comes and goes." }));
    }
    json!({ "prompts": prompts })
}

fn prompt(params: &Params) -> Reply {
    let argument = |name: &str| params.arguments.get(name).map_or("", String::as_str);
    let user = |content: Value| json!({ "role": "user", "content": content });
    let text = |text: &str| user(json!({ "type": "text", "text": text }));
    let messages = match params.name.as_str() {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument("arg1"), argument("arg2"));
            vec![text(&format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            let resource = json!({
                "uri": argument("resourceUri"), "mimeType": "text/plain", "text": "Embedded resource content for testing.",
            });
            vec![
                user(json!({ "type": "resource", "resource": resource })),
                text("Please process the embedded resource above."),
            ]
        }
        "test_prompt_with_image" => {
            let image = user(json!({ "type": "image", "data": PNG, "mimeType": "image/png" }));
            vec![image, text("Please analyze the image above.")]
        }
        ASKING => vec![text("A prompt without context.")],
        "fleeting_prompt" => vec![text("This prompt comes and goes.")],
        name => return Reply::error(-32602, &format!("this server has no prompt {name}")),
    };
    Reply::Result(json!({ "messages": messages }).to_string())
}

/// Asks by a retry of the request.
fn asking_prompt(params: &Params) -> Reply {
    let answer = params.input_responses.as_ref().and_then(|answers| answers.get("user_context"));
    let Some(answer) = answer.filter(|answer| answer.is_object()) else {
        if params.meta.client_capabilities.get("elicitation").is_none() {
            return Reply::Missing(json!({ "elicitation": {} }));
        }
        let question = json!({
            "mode": "form",
            "message": "What context should the prompt use?",
            "requestedSchema": {
                "type": "object",
                "properties": { "context": { "type": "string" } },
                "required": ["context"],
            },
        });
        let asked = json!({ "user_context": { "method": "elicitation/create", "params": question } });
        return Reply::Result(json!({ "resultType": "input_required", "inputRequests": asked }).to_string());
    };
    let text = format!("A prompt with the context: {}", answer["content"]["context"].as_str().unwrap_or("none"));
    let message = json!({ "role": "user", "content": { "type": "text", "text": text } });
    Reply::Result(json!({ "messages": [message] }).to_string())
}

fn resources() -> Value {
    json!({ "resources": [
        { "uri": "test://static-text", "name": "Static text", "description": "A text.", "mimeType": "text/plain" },
        { "uri": "test://static-binary", "name": "Static binary", "description": "A picture.", "mimeType": "image/png" },
        { "uri": "test://watched-resource", "name": "Watched resource",
          "description": "The tool touch_resource tells its subscribers that it changed.", "mimeType": "text/plain" },
    ] })
}

fn templates() -> Value {
    json!({ "resourceTemplates": [
        { "uriTemplate": "test://template/{id}/data", "name": "Data by id", "description": "Names the id.",
          "mimeType": "application/json" },
    ] })
}

fn contents(uri: &str) -> Option<Value> {
    let text = |text: &str| Some(json!({ "uri": uri, "mimeType": "text/plain", "text": text }));
    match uri {
        "test://static-text" => text("This is the content of the static text resource."),
        "test://static-binary" => Some(json!({ "uri": uri, "mimeType": "image/png", "blob": PNG })),
        "test://watched-resource" => text("This is the content of the watched resource."),
        _ => {
            let id = uri.strip_prefix(BEFORE_ID)?.strip_suffix(AFTER_ID)?;
            let data = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
            Some(json!({ "uri": uri, "mimeType": "application/json", "text": data.to_string() }))
        }
    }
}

fn missing(era: Era, uri: &str) -> Reply {
    let code = if era == Era::Modern { -32602 } else { -32002 };
    Reply::Error(json!({ "code": code, "message": "Resource not found", "data": { "uri": uri } }).to_string())
}

fn complete(begun: &str) -> Reply {
    let values: Vec<_> = WORDS.into_iter().filter(|word| word.starts_with(begun)).collect();
    Reply::Result(json!({ "completion": { "values": values, "total": values.len(), "hasMore": false } }).to_string())
}
