//! A client of the modern era by HTTP, which checks what it is sent.

use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::schema;
use crate::upstream::harness::within;
use crate::upstream::http_demo::Demo;

pub const VERSION: &str = "2026-07-28";
pub const TASKS: &str = "io.modelcontextprotocol/tasks";
pub const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// All that a client can declare.
pub fn everything() -> Value {
    json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {}, "extensions": { TASKS: {} } })
}

/// The `_meta` of a request.
pub fn meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

pub struct Modern {
    pub demo: Demo,
    http: reqwest::Client,
    pub capabilities: Value,
}

/// What a POST was answered with.
pub struct Answer {
    pub status: u16,
    /// All of a stream, or the one message.
    pub messages: Vec<Value>,
    pub is_stream: bool,
}

impl Answer {
    pub fn last(&self) -> &Value {
        self.messages.last().expect("there is an answer")
    }

    pub fn result(&self) -> &Value {
        let result = &self.last()["result"];
        assert!(result.is_object(), "a result, not {}", self.last());
        result
    }

    pub fn text(&self) -> &str {
        self.result()["content"][0]["text"].as_str().expect("a text")
    }

    pub fn code(&self) -> (u16, i64) {
        (self.status, self.last()["error"]["code"].as_i64().unwrap_or_else(|| panic!("an error, not {}", self.last())))
    }
}

impl Modern {
    pub async fn new(options: &[&str]) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { demo: Demo::offering(options).await, http, capabilities: everything() }
    }

    pub async fn request(&self, method: &str, params: Value) -> Answer {
        self.request_with(method, params, self.capabilities.clone()).await
    }

    pub async fn request_with(&self, method: &str, params: Value, capabilities: Value) -> Answer {
        let message = message(method, params, &capabilities);
        let headers = headers(&message);
        self.post(headers, &message).await
    }

    pub async fn call(&self, name: &str, arguments: Value) -> Answer {
        self.request("tools/call", json!({ "name": name, "arguments": arguments })).await
    }

    pub async fn post(&self, headers: HeaderMap, message: &Value) -> Answer {
        let response = self.open(headers, message).await;
        let status = response.status().as_u16();
        let is_stream = response.headers()["content-type"] == "text/event-stream";
        let text = within("an answer", response.text()).await.unwrap();
        let messages: Vec<Value> = if is_stream {
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            data.map(|data| serde_json::from_str(data).unwrap()).collect()
        } else if text.starts_with('{') {
            vec![serde_json::from_str(&text).unwrap()]
        } else {
            Vec::new()
        };
        for said in &messages {
            schema::check(message["method"].as_str().unwrap_or_default(), said);
        }
        Answer { status, messages, is_stream }
    }

    /// Sends a message; the answer may be a stream that stays open.
    pub async fn open(&self, headers: HeaderMap, message: &Value) -> reqwest::Response {
        let request = self.http.post(&self.demo.url).headers(headers).body(message.to_string());
        within("the head of an answer", request.send()).await.unwrap()
    }
}

/// A request with its `_meta`, which `params` may add to.
pub fn message(method: &str, mut params: Value, capabilities: &Value) -> Value {
    let mut all = meta(capabilities);
    if let Some(more) = params["_meta"].as_object() {
        all.as_object_mut().unwrap().extend(more.clone());
    }
    params["_meta"] = all;
    json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params })
}

/// The headers that go with a request.
pub fn headers(message: &Value) -> HeaderMap {
    let params = &message["params"];
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: &Value| {
        if let Some(value) = value.as_str() {
            headers.insert(name, value.parse().unwrap());
        }
    };
    put("content-type", &json!("application/json"));
    put("accept", &json!("application/json, text/event-stream"));
    put("mcp-protocol-version", &params["_meta"]["io.modelcontextprotocol/protocolVersion"]);
    put("mcp-method", &message["method"]);
    put("mcp-name", &params["name"]);
    put("mcp-name", &params["uri"]);
    put("mcp-name", &params["taskId"]);
    headers
}
