//! A persona: a legacy client as the specification describes it, which shows everything that came over the wire.

use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A client with a token and a session.
#[derive(Clone)]
pub struct Client {
    pub http: reqwest::Client,
    pub url: String,
    pub token: Option<String>,
    pub session: Option<String>,
    pub revision: &'static str,
    pub accept: &'static str,
    /// What it declares at `initialize`.
    pub capabilities: Value,
    pub next_id: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

/// An HTTP answer with the JSON-RPC message in it, whether it came as JSON or as the last event of a stream.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: String,
}

impl Client {
    pub fn new(url: &str, token: Option<&str>) -> Self {
        Self {
            http: reqwest::Client::builder().no_proxy().build().expect("a client can be made"),
            url: url.to_owned(),
            token: token.map(str::to_owned),
            session: None,
            revision: "2025-11-25",
            accept: "application/json, text/event-stream",
            capabilities: json!({}),
            next_id: std::sync::Arc::default(),
        }
    }

    /// A client with an open session of 2025-11-25.
    pub async fn connected(url: &str, token: &str) -> Self {
        let mut client = Self::new(url, Some(token));
        client.initialize("2025-11-25").await;
        client
    }

    /// The same, of a client that serves everything it may be asked.
    pub async fn capable(url: &str, token: &str) -> Self {
        let capabilities = json!({
            "elicitation": { "form": {}, "url": {} },
            "sampling": { "tools": {}, "context": {} },
            "roots": {},
        });
        let mut client = Self { capabilities, ..Self::new(url, Some(token)) };
        client.initialize("2025-11-25").await;
        client
    }

    /// The same client, with its session, at another node.
    pub fn at(&self, url: &str) -> Self {
        Self { url: url.to_owned(), ..self.clone() }
    }

    /// Opens a session; answers the result of `initialize`.
    pub async fn initialize(&mut self, revision: &'static str) -> Value {
        let params = json!({
            "protocolVersion": revision,
            "capabilities": self.capabilities,
            "clientInfo": { "name": "persona", "version": "1" },
        });
        let answer = self.send(&self.message("initialize", &params)).await;
        let session = answer.header("mcp-session-id").unwrap_or_else(|| panic!("no session: {answer:?}")).to_owned();
        self.session = Some(session);
        let result = answer.result();
        self.revision = revision;
        let initialized = self.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        assert_eq!((initialized.status, initialized.body.as_str()), (202, ""));
        result
    }

    /// A request's text with a new id.
    pub fn message(&self, method: &str, params: &Value) -> String {
        let id = self.next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
    }

    pub async fn request(&self, method: &str, params: Value) -> Answer {
        self.send(&self.message(method, &params)).await
    }

    /// Answers a request of the server's.
    pub async fn respond(&self, id: &Value, result: &Value) -> Answer {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()).await
    }

    /// POSTs a body as it is.
    pub async fn send(&self, body: &str) -> Answer {
        self.post(body.as_bytes().to_vec()).await
    }

    pub async fn post(&self, body: Vec<u8>) -> Answer {
        self.try_post(body).await.expect("the server answers")
    }

    /// A request to a server that may be gone, or go before its answer is whole.
    pub async fn try_request(&self, method: &str, params: &Value) -> reqwest::Result<Answer> {
        self.try_post(self.message(method, params).into_bytes()).await
    }

    /// POSTs to a server that may be gone, or go before its answer is whole.
    pub async fn try_post(&self, body: Vec<u8>) -> reqwest::Result<Answer> {
        let request = self.build(reqwest::Method::POST).header("content-type", "application/json").body(body);
        Answer::try_read(request.send().await?).await
    }

    /// A request of any method with this persona's headers.
    pub fn build(&self, method: reqwest::Method) -> reqwest::RequestBuilder {
        let mut request = self.http.request(method, &self.url).header("accept", self.accept);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session).header("mcp-protocol-version", self.revision);
        }
        request
    }

    /// Calls a tool plainly.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Calls a tool as a task; answers the task object.
    pub async fn task(&self, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments, "task": { "ttl": 60_000 } });
        self.request("tools/call", params).await.result()["task"].clone()
    }

    pub async fn get(&self, id: &Value) -> Answer {
        self.request("tasks/get", json!({ "taskId": id })).await
    }

    pub async fn result(&self, id: &Value) -> Answer {
        self.request("tasks/result", json!({ "taskId": id })).await
    }

    pub async fn cancel(&self, id: &Value) -> Answer {
        self.request("tasks/cancel", json!({ "taskId": id })).await
    }

    /// The ids of all pages of `tasks/list`, in their order.
    pub async fn list(&self) -> Vec<Value> {
        let mut ids = Vec::new();
        let mut params = json!({});
        loop {
            let page = self.request("tasks/list", params).await.result();
            ids.extend(page["tasks"].as_array().expect("tasks is an array").iter().map(|task| task["taskId"].clone()));
            let Some(cursor) = page.get("nextCursor") else { return ids };
            params = json!({ "cursor": cursor });
        }
    }

    /// Polls until the task has this status.
    pub async fn until_status(&self, id: &Value, wanted: &str) -> Value {
        let poll = async {
            loop {
                let task = self.get(id).await.result();
                if task["status"] == wanted {
                    return task;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(super::server::PATIENCE, poll)
            .await
            .unwrap_or_else(|_| panic!("task {id} did not become {wanted}"))
    }
}

impl Answer {
    pub async fn read(response: reqwest::Response) -> Self {
        Self::try_read(response).await.expect("the whole answer arrives")
    }

    /// The whole answer, unless its connection breaks.
    pub async fn try_read(response: reqwest::Response) -> reqwest::Result<Self> {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Self { status, headers, body: response.text().await? })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn is_stream(&self) -> bool {
        self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// How many messages it has, the answer itself and those before it.
    pub fn count(&self) -> usize {
        if self.is_stream() { self.body.lines().filter(|line| line.starts_with("data: {")).count() } else { 1 }
    }

    /// The text of the JSON-RPC message.
    pub fn text(&self) -> &str {
        if !self.is_stream() {
            return &self.body;
        }
        self.body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or("")
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub fn result(&self) -> Value {
        let mut json = self.json();
        assert!(json.get("result").is_some(), "no result in {self:?}");
        json["result"].take()
    }

    /// The result or the error as it was written, without the id that each request has of its own.
    pub fn outcome(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Message<'a> {
            #[serde(borrow)]
            result: Option<&'a RawValue>,
            #[serde(borrow)]
            error: Option<&'a RawValue>,
        }
        match serde_json::from_str(self.text()) {
            Ok(Message { result: Some(result), error: None }) => format!(r#"{{"result":{result}}}"#),
            Ok(Message { result: None, error: Some(error) }) => format!(r#"{{"error":{error}}}"#),
            _ => panic!("neither a result nor an error: {self:?}"),
        }
    }

    /// The error's code and message.
    pub fn error(&self) -> (i64, String) {
        let json = self.json();
        let error = json.get("error").unwrap_or_else(|| panic!("no error in {self:?}"));
        (error["code"].as_i64().expect("a code"), error["message"].as_str().expect("a message").to_owned())
    }
}
