//! JSON-RPC as text, one message a line: what both eras share. Carried JSON is never printed anew.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Where messages to the client go, each on one line.
pub(super) type Out = mpsc::Sender<String>;

/// Levels of log messages, from the least severe.
pub(super) const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// A message from the client.
#[derive(Deserialize)]
pub(super) struct Incoming<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) result: Option<&'a RawValue>,
}

impl<'a> Incoming<'a> {
    /// `None` if it is no JSON-RPC message.
    pub(super) fn read(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// The text of its id.
    pub(super) fn id(&self) -> Option<&'a str> {
        self.id.map(RawValue::get)
    }

    /// The text of its params.
    pub(super) fn params(&self) -> &'a str {
        self.params.map_or("{}", RawValue::get)
    }
}

pub(super) async fn send(out: &Out, line: String) {
    // Fails only when the output is gone, and with it everybody who could read.
    let _ = out.send(line).await;
}

pub(super) fn result_line(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

pub(super) fn error_line(id: &str, error: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

/// A notification; `params` is the text of an object.
pub(super) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":{},"params":{params}}}"#, json!(method))
}

/// The params of `notifications/progress`; `token` is the text of the token.
pub(super) fn progress_params(token: &str, progress: f64, total: Option<f64>, message: Option<&str>) -> String {
    let mut params = json!({ "progress": progress });
    if let Some(total) = total {
        params["total"] = json!(total);
    }
    if let Some(message) = message {
        params["message"] = json!(message);
    }
    with_member(&params.to_string(), "progressToken", token)
}

/// The params of `notifications/message`.
pub(super) fn log_params(level: &str, text: &str) -> String {
    json!({ "level": level, "logger": "demo", "data": text }).to_string()
}

/// How severe a level is; `None` if there is no such level.
pub(super) fn rank(level: &str) -> Option<usize> {
    LEVELS.iter().position(|known| *known == level)
}

pub(super) fn error(code: i64, message: &str) -> String {
    json!({ "code": code, "message": message }).to_string()
}

/// Who this server is.
pub(super) fn server_info() -> Value {
    json!({ "name": "taskhold-demo", "version": env!("CARGO_PKG_VERSION") })
}

/// The object with one member more, which it must not have; the rest as it is.
pub(super) fn with_member(object: &str, name: &str, value: &str) -> String {
    with_members(object, &format!("{}:{value}", json!(name)))
}

/// The object with the members of `meta`, an object, in its `_meta`; the rest as it is.
pub(super) fn with_meta(object: &str, meta: &str) -> String {
    #[derive(Deserialize)]
    struct Outline<'a> {
        #[serde(borrow, rename = "_meta")]
        meta: Option<&'a RawValue>,
    }
    let own = serde_json::from_str::<Outline<'_>>(object).ok().and_then(|outline| outline.meta);
    match own.map(RawValue::get).filter(|own| own.starts_with('{')) {
        Some(own) => {
            let start = own.as_ptr() as usize - object.as_ptr() as usize;
            let (before, after) = (&object[..start], &object[start + own.len()..]);
            format!("{before}{}{after}", with_members(own, &meta[1..meta.len() - 1]))
        }
        None => with_member(object, "_meta", meta),
    }
}

fn with_members(object: &str, members: &str) -> String {
    let open = object.trim_end();
    let open = &open[..open.len() - 1];
    let comma = if open.trim_start()[1..].trim().is_empty() { "" } else { "," };
    format!("{open}{comma}{members}}}")
}

/// A poisoned lock is taken all the same: its data are single inserts and removals, never half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_gets_its_meta_and_stays_as_it_is() {
        for (result, expected) in [
            ("{}", r#"{"_meta":{"k":1}}"#),
            (r#"{"a":1e400}"#, r#"{"a":1e400,"_meta":{"k":1}}"#),
            (r#"{"_meta":{"x":1.0},"a":[]}"#, r#"{"_meta":{"x":1.0,"k":1},"a":[]}"#),
            (r#"{"_meta":{}}"#, r#"{"_meta":{"k":1}}"#),
        ] {
            assert_eq!(with_meta(result, r#"{"k":1}"#), expected);
        }
    }

    #[test]
    fn progress_names_its_token_as_it_came() {
        assert_eq!(
            progress_params("1.0", 1.0, Some(2.0), Some("half")),
            r#"{"message":"half","progress":1.0,"total":2.0,"progressToken":1.0}"#
        );
    }
}
