//! Requests that were written once, so that to send one costs little more than to copy it.

use std::fmt::Write as _;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::Era;
use crate::domain::json::RawJson;
use crate::protocol::jsonrpc::{Id, write_request};
use crate::protocol::modern::client::{heading, with_client};
use crate::protocol::modern::headers::{NAME_HEADER, encoded};
use crate::protocol::scan::string_value;
use crate::protocol::splice::quoted;

/// Stand where the ids of requests and of tasks go in.
const ID: u64 = u64::MAX;
const TASK: &str = "the id of a task";

/// A request without its ids.
#[derive(Clone)]
pub(super) struct Template {
    before: String,
    /// Between the request's id and the task's, or all the rest.
    between: String,
    /// After the task's id, where it names a task.
    after: Option<String>,
    headers: HeaderMap,
    /// Whether a header repeats the task's id.
    names_task: bool,
}

/// What is sent.
pub(super) struct Outgoing {
    pub(super) id: u64,
    pub(super) body: Bytes,
    pub(super) headers: HeaderMap,
}

impl Template {
    /// A request of this era. `base` are the headers of every request of the connection, `capabilities` what each request of the
    /// modern era says that its client can do.
    pub(super) fn new(era: Era, base: &HeaderMap, method: &str, params: &RawJson, capabilities: &str) -> Self {
        let (text, headers) = written(era, base, method, params, capabilities);
        let (before, between) = text.split_once(&ID.to_string()).unwrap_or((&text, ""));
        Self { before: before.to_owned(), between: between.to_owned(), after: None, headers, names_task: false }
    }

    /// One whose only parameter is a task's id.
    pub(super) fn of_task(era: Era, base: &HeaderMap, method: &str, capabilities: &str) -> Self {
        let params = RawJson::trusted(format!(r#"{{"taskId":{}}}"#, quoted(TASK)));
        let whole = Self::new(era, base, method, &params, capabilities);
        let (between, after) = whole.between.split_once(&quoted(TASK)).unwrap_or((&whole.between, ""));
        let (between, after) = (between.to_owned(), Some(after.to_owned()));
        Self { between, after, names_task: whole.headers.contains_key(NAME_HEADER), ..whole }
    }

    /// Further headers of every such request.
    pub(super) fn with_headers(mut self, further: &[(String, String)]) -> Self {
        for (name, value) in further {
            set(&mut self.headers, name, value);
        }
        self
    }

    /// The request. `task` is the task's id as the JSON string that it is, where it names one.
    pub(super) fn fill(&self, id: u64, task: Option<&str>) -> Outgoing {
        let task = task.unwrap_or_default();
        let after = self.after.as_deref().unwrap_or_default();
        let mut body = String::with_capacity(self.before.len() + 20 + self.between.len() + task.len() + after.len());
        body.push_str(&self.before);
        // Writing to a text cannot fail.
        let _ = write!(body, "{id}");
        body.push_str(&self.between);
        let mut headers = self.headers.clone();
        if self.after.is_some() {
            body.push_str(task);
            body.push_str(after);
            if self.names_task {
                set(&mut headers, NAME_HEADER, &encoded(&string_value(task).unwrap_or_default()));
            }
        }
        Outgoing { id, body: body.into(), headers }
    }
}

fn written(era: Era, base: &HeaderMap, method: &str, params: &RawJson, capabilities: &str) -> (String, HeaderMap) {
    let mut headers = base.clone();
    let params = match era {
        Era::Legacy => params.clone(),
        Era::Modern => {
            for (name, value) in heading(method, Some(params)) {
                set(&mut headers, name, &value);
            }
            with_client(Some(params), capabilities, None)
        }
    };
    (write_request(&Id::from_number(ID), method, Some(&params)), headers)
}

/// Sets a header whose value can be one; what cannot is left out, and the server says so.
pub(super) fn set(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sent(outgoing: &Outgoing) -> Value {
        serde_json::from_slice(&outgoing.body).unwrap()
    }

    #[test]
    fn a_request_is_what_its_params_say_whatever_is_in_them() {
        let params = RawJson::from_value(&json!({ "name": "t", "arguments": { "a": ID, "b": [1.5], "c": "id" } }));
        let template = Template::new(Era::Legacy, &HeaderMap::new(), "tools/call", &params, "{}");
        let outgoing = template.fill(7, None);
        let expected = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": { "name": "t", "arguments": { "a": ID, "b": [1.5], "c": "id" } } });
        assert_eq!((sent(&outgoing), outgoing.id, outgoing.headers.len()), (expected, 7, 0));
    }

    #[test]
    fn a_request_of_the_modern_era_says_who_asks_and_names_its_task() {
        let mut base = HeaderMap::new();
        set(&mut base, "authorization", "Bearer x");
        let template = Template::of_task(Era::Modern, &base, "tasks/get", r#"{"x":{}}"#);
        let outgoing = template.fill(12, Some(r#""a\u0062 ü""#));
        let sent = sent(&outgoing);
        assert_eq!((&sent["id"], &sent["params"]["taskId"]), (&json!(12), &json!("ab ü")));
        let meta = &sent["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
        assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({ "x": {} }));
        let header = |name: &str| outgoing.headers[name].to_str().unwrap();
        assert_eq!((header("mcp-method"), header("mcp-protocol-version")), ("tasks/get", "2026-07-28"));
        assert_eq!((header("mcp-name"), header("authorization")), ("=?base64?YWIgw7w=?=", "Bearer x"));
        let legacy = Template::of_task(Era::Legacy, &base, "tasks/result", "{}").fill(1, Some(r#""t""#));
        assert_eq!(
            String::from_utf8_lossy(&legacy.body),
            r#"{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"t"}}"#
        );
        assert_eq!(legacy.headers.len(), 1);
    }

    #[test]
    fn a_user_may_write_what_stands_for_a_task() {
        let params = RawJson::from_value(&json!({ "name": "t", "arguments": { "text": TASK } }));
        let filled = Template::new(Era::Legacy, &HeaderMap::new(), "tools/call", &params, "{}").fill(1, None);
        assert_eq!(sent(&filled)["params"]["arguments"]["text"], TASK);
    }
}
