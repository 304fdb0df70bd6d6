//! A persona: a client of the stateless era, whose requests stand alone. What comes back is checked against the schema of the
//! revision, where that can be had.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::client::Answer;
use super::events::Events;
use super::schema::Schema;

pub const VERSION: &str = "2026-07-28";
const PREFIX: &str = "io.modelcontextprotocol";

/// A client with a token.
#[derive(Clone)]
pub struct Modern {
    pub http: reqwest::Client,
    pub url: String,
    pub token: Option<String>,
    pub accept: &'static str,
    /// What it declares with each request.
    pub capabilities: Value,
    pub next_id: Arc<AtomicU64>,
}

/// A request that can still be spoilt.
#[derive(Debug, Clone)]
pub struct Draft {
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

impl Modern {
    pub fn new(url: &str, token: &str) -> Self {
        Self {
            http: reqwest::Client::builder().no_proxy().build().expect("a client can be made"),
            url: url.to_owned(),
            token: Some(token.to_owned()),
            accept: "application/json, text/event-stream",
            capabilities: json!({}),
            next_id: Arc::default(),
        }
    }

    /// The same client, with what it declares.
    pub fn declaring(&self, capabilities: Value) -> Self {
        Self { capabilities, ..self.clone() }
    }

    /// The same client, which declares the extension for tasks.
    pub fn with_tasks(&self) -> Self {
        let mut capabilities = self.capabilities.clone();
        capabilities["extensions"]["io.modelcontextprotocol/tasks"] = json!({});
        self.declaring(capabilities)
    }

    /// A request with all that it needs: a new id, `_meta` beside what `params` has of it, and headers.
    pub fn draft(&self, method: &str, mut params: Value) -> Draft {
        let meta = &mut params["_meta"];
        meta[format!("{PREFIX}/protocolVersion")] = json!(VERSION);
        meta[format!("{PREFIX}/clientInfo")] = json!({ "name": "persona", "version": "1" });
        meta[format!("{PREFIX}/clientCapabilities")] = self.capabilities.clone();
        let mut headers =
            vec![("mcp-protocol-version".to_owned(), VERSION.to_owned()), ("mcp-method".to_owned(), method.to_owned())];
        let named = match method {
            "resources/read" => params.get("uri"),
            "tools/call" | "prompts/get" => params.get("name"),
            _ => params.get("taskId"),
        };
        if let Some(name) = named.and_then(Value::as_str) {
            headers.push(("mcp-name".to_owned(), name.to_owned()));
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Draft { headers, body: json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }) }
    }

    pub async fn request(&self, method: &str, params: Value) -> Answer {
        self.send(self.draft(method, params)).await
    }

    pub async fn send(&self, draft: Draft) -> Answer {
        let answer = Answer::read(self.begin(&draft).await).await;
        check(&draft.body, &answer);
        answer
    }

    /// A request to a server that may be gone, or go before its answer is whole.
    pub async fn try_request(&self, method: &str, params: Value) -> reqwest::Result<Answer> {
        Answer::try_read(self.built(&self.draft(method, params)).send().await?).await
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// A request whose answer is a stream, from its first event on.
    pub async fn stream(&self, method: &str, params: Value) -> Events {
        self.open(self.draft(method, params)).await
    }

    /// The same of a draft.
    pub async fn open(&self, draft: Draft) -> Events {
        let events = Events::new(self.begin(&draft).await).await;
        events.checked(Box::new(move |message| check_message(&draft.body, message)))
    }

    /// The head of the answer.
    pub async fn begin(&self, draft: &Draft) -> reqwest::Response {
        self.built(draft).send().await.expect("the server answers")
    }

    fn built(&self, draft: &Draft) -> reqwest::RequestBuilder {
        let mut request = self.http.post(&self.url).header("accept", self.accept);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in &draft.headers {
            request = request.header(name, value);
        }
        let body = draft.body.to_string();
        request.header("content-type", "application/json").body(body)
    }
}

impl Draft {
    pub fn without(mut self, header: &str) -> Self {
        self.headers.retain(|(name, _)| name != header);
        self
    }

    pub fn with(self, header: &str, value: &str) -> Self {
        self.without(header).also(header, value)
    }

    /// With one more header, whether or not it is there.
    pub fn also(mut self, header: &str, value: &str) -> Self {
        self.headers.push((header.to_owned(), value.to_owned()));
        self
    }

    /// With another value of a key of `_meta`; null takes it out.
    pub fn with_meta(mut self, key: &str, value: Value) -> Self {
        let meta = self.body["params"]["_meta"].as_object_mut().expect("a draft has a _meta");
        let key = format!("{PREFIX}/{key}");
        if value.is_null() {
            meta.remove(&key);
        } else {
            meta.insert(key, value);
        }
        self
    }
}

/// Checks an answer against the schema. One with numbers that no reader takes is not read.
fn check(request: &Value, answer: &Answer) {
    if let Ok(message) = serde_json::from_str(answer.text()) {
        check_message(request, &message);
    }
}

/// Checks what comes for a request, on a stream or alone.
fn check_message(request: &Value, message: &Value) {
    // A draft that was spoilt so far is of the other era.
    if request.pointer("/params/_meta/io.modelcontextprotocol~1protocolVersion").is_none() {
        return;
    }
    let (Some(schema), Some(tasks)) = (Schema::of_2026_07_28(), Schema::of_tasks()) else { return };
    if let Some(method) = message.get("method") {
        assert_eq!(message.get("id"), None, "no request is sent to a client of this era: {message}");
        schema.check_closed("JSONRPCNotification", message);
        if method == "notifications/tasks" {
            tasks.check("TaskStatusNotification", message);
            tasks.check_closed("TaskStatusNotificationParams", &message["params"]);
        } else {
            schema.check("ServerNotification", message);
        }
        return;
    }
    if let Some(error) = message.get("error") {
        schema.check_closed("JSONRPCErrorResponse", message);
        match error["code"].as_i64() {
            Some(-32020) => schema.check("HeaderMismatchError", message),
            Some(-32021) => schema.check("MissingRequiredClientCapabilityError", message),
            Some(-32022) => schema.check("UnsupportedProtocolVersionError", message),
            _ => {}
        }
        return;
    }
    schema.check_closed("JSONRPCResultResponse", message);
    let result = &message["result"];
    let of_method = match (request["method"].as_str(), result["resultType"].as_str()) {
        (_, Some("input_required")) => "InputRequiredResult",
        (Some("server/discover"), _) => "DiscoverResult",
        (Some("tools/list"), _) => "ListToolsResult",
        (Some("tools/call"), Some("complete")) => "CallToolResult",
        (Some("prompts/list"), _) => "ListPromptsResult",
        (Some("prompts/get"), _) => "GetPromptResult",
        (Some("resources/list"), _) => "ListResourcesResult",
        (Some("resources/templates/list"), _) => "ListResourceTemplatesResult",
        (Some("resources/read"), _) => "ReadResourceResult",
        (Some("completion/complete"), _) => "CompleteResult",
        (Some("subscriptions/listen"), _) => "SubscriptionsListenResult",
        _ => "Result",
    };
    match of_method {
        // What is all ours has no key that the schema does not name.
        "DiscoverResult"
        | "ListToolsResult"
        | "ListPromptsResult"
        | "ListResourcesResult"
        | "ListResourceTemplatesResult"
        | "InputRequiredResult"
        | "SubscriptionsListenResult" => {
            schema.check_closed(of_method, result);
        }
        _ => schema.check(of_method, result),
    }
    match (request["method"].as_str(), result["resultType"].as_str()) {
        (_, Some("task")) => tasks.check_closed("CreateTaskResult", result),
        (Some("tasks/get"), _) => tasks.check_closed("GetTaskResult", result),
        (Some("tasks/update"), _) => tasks.check_closed("UpdateTaskResult", result),
        (Some("tasks/cancel"), _) => tasks.check_closed("CancelTaskResult", result),
        _ => {}
    }
}
