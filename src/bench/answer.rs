//! What is read of an answer: as little as tells whether the operation was done.
//!
//! Whole messages are not checked: this client shares its processors with the server that it measures.

use std::borrow::Cow;
use std::time::Duration;

use super::failure::{Failure, Kind};
use crate::protocol::jsonrpc::LIMIT_REACHED;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, members};

/// The `result` of the response to the request of this id, as raw text.
///
/// # Errors
/// The error that it is instead, or that it is no response to it.
pub(super) fn result_of(text: &[u8], id: u64) -> Result<&str, Failure> {
    match read(text, id) {
        Some(Read::Result(result)) => Ok(result),
        Some(Read::Error(error)) => Err(rpc_failure(error)),
        None => Err(Failure::bad_answer("it is no JSON-RPC response to this request")),
    }
}

/// Whether a message of a stream is the response to the request of this id.
pub(super) fn is_answer(text: &[u8], id: u64) -> bool {
    read(text, id).is_some()
}

/// What an answer with a status that is no success says.
pub(super) fn refusal(status: u16, body: &[u8], retry_after: Option<Duration>) -> Failure {
    let error = std::str::from_utf8(body).ok().and_then(|text| member(text, "error"));
    let code = error.and_then(code);
    let said = error.map_or_else(|| String::from_utf8_lossy(body).into(), message);
    let said = said.trim();
    let detail = match (status, said) {
        (401 | 403, "") => "it refuses access: check --token",
        (404 | 405, "") => "no MCP server answers there: check the path of --url",
        (_, said) => said,
    };
    let failure = Failure::new(Kind::Http(status, code), detail).pausing(retry_after);
    failure.of_limit(status == 429 || code == Some(LIMIT_REACHED))
}

/// The id of the task that a call has become, as the JSON string that it is. Legacy servers give a `task`, modern ones a result
/// of that type.
pub(super) fn created(result: &str) -> Result<&str, Failure> {
    let task = member(result, "task").or_else(|| is_of_type(result, "task").then_some(result));
    match task.and_then(|task| member(task, "taskId")) {
        Some(id) if id.starts_with('"') => Ok(id),
        Some(_) => Err(Failure::bad_answer("its taskId is no string")),
        None => {
            plain(result)?;
            Err(Failure::new(Kind::NoTask, "the call was answered without becoming a task: name a tool that does"))
        }
    }
}

/// A task's own status, in the answer of `tasks/get`.
pub(super) fn status(result: &str) -> Result<Cow<'_, str>, Failure> {
    let status = member(result, "status").and_then(string_value);
    status.ok_or_else(|| Failure::bad_answer("it has no status of a task"))
}

/// How a task of the modern era ended; `None` if it has not yet.
pub(super) fn ended(result: &str) -> Result<Option<()>, Failure> {
    match &*status(result)? {
        "working" => Ok(None),
        "completed" => plain(member(result, "result").unwrap_or("{}")).map(Some),
        "failed" => {
            let said = member(result, "error").map(message).unwrap_or_default();
            Err(Failure::new(Kind::TaskFailed, said))
        }
        "cancelled" => Err(Failure::new(Kind::TaskCancelled, "")),
        "input_required" => Err(input_required()),
        other => Err(Failure::bad_answer(&format!("a task's status is {other:?}"))),
    }
}

/// How long the server of a task wants its client to wait between two looks.
pub(super) fn poll_interval(result: &str) -> Option<Duration> {
    let raw = member(result, "pollIntervalMs")?;
    raw.parse().ok().map(Duration::from_millis)
}

/// A tool's result, which must not say that it is an error.
pub(super) fn plain(result: &str) -> Result<(), Failure> {
    if is_of_type(result, "input_required") {
        return Err(input_required());
    }
    if member(result, "isError") != Some("true") {
        return Ok(());
    }
    let first = member(result, "content").and_then(|content| items(content).next());
    let text = first.and_then(|item| member(item, "text")).and_then(string_value);
    Err(Failure::new(Kind::ToolError, text.unwrap_or_default()))
}

/// A page of tasks.
pub(super) fn page(result: &str) -> Result<(), Failure> {
    let is_page = member(result, "tasks").is_some_and(|tasks| tasks.starts_with('['));
    if is_page { Ok(()) } else { Err(Failure::bad_answer("it has no list of tasks")) }
}

enum Read<'a> {
    Result(&'a str),
    Error(&'a str),
}

fn read(text: &[u8], id: u64) -> Option<Read<'_>> {
    let text = std::str::from_utf8(text).ok()?;
    let (mut named, mut result, mut error) = (None, None, None);
    for member in members(text) {
        match member.key {
            "id" => named = Some(member.value),
            "result" => result = Some(member.value),
            "error" => error = Some(member.value),
            // A request or a notification of the server's.
            "method" => return None,
            _ => {}
        }
    }
    let is_named = named.is_some_and(|named| named.parse() == Ok(id));
    match (result, error) {
        (Some(result), None) if is_named => Some(Read::Result(result)),
        // One without an id is about the only request that is under way.
        (None, Some(error)) if is_named || matches!(named, None | Some("null")) => Some(Read::Error(error)),
        _ => None,
    }
}

fn rpc_failure(error: &str) -> Failure {
    let Some(code) = code(error) else { return Failure::bad_answer("its error has no code") };
    let pause = member(error, "data").and_then(|data| member(data, "retryAfterMs")).and_then(|raw| raw.parse().ok());
    let failure = Failure::new(Kind::Rpc(code), message(error)).pausing(pause.map(Duration::from_millis));
    failure.of_limit(code == LIMIT_REACHED)
}

fn code(error: &str) -> Option<i64> {
    member(error, "code")?.parse().ok()
}

fn message(error: &str) -> String {
    member(error, "message").and_then(string_value).unwrap_or_default().into_owned()
}

fn is_of_type(result: &str, word: &str) -> bool {
    member(result, "resultType").and_then(string_value).is_some_and(|found| found == word)
}

fn input_required() -> Failure {
    Failure::new(Kind::InputRequired, "the work asks something, which nobody answers here: name a tool that does not")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind<T: std::fmt::Debug>(read: Result<T, Failure>) -> Kind {
        read.unwrap_err().kind
    }

    #[test]
    fn a_response_is_told_from_what_else_a_stream_brings() {
        let result = |text: &str| result_of(text.as_bytes(), 7).map(str::to_owned);
        assert_eq!(result(r#"{"jsonrpc":"2.0","id":7,"result":{"a":1}}"#).unwrap(), r#"{"a":1}"#);
        assert_eq!(kind(result(r#"{"id":7,"error":{"code":-32602,"message":"no"}}"#)), Kind::Rpc(-32602));
        assert_eq!(kind(result(r#"{"id":null,"error":{"code":-32600,"message":"no"}}"#)), Kind::Rpc(-32600));
        for other in [
            r#"{"id":8,"result":{}}"#,
            r#"{"id":8,"error":{"code":1,"message":""}}"#,
            r#"{"id":7,"method":"ping"}"#,
            r#"{"method":"notifications/progress","params":{}}"#,
            r#"{"result":{}}"#,
            "nonsense",
            "",
        ] {
            assert_eq!(kind(result(other)), Kind::BadAnswer, "{other}");
            assert!(!is_answer(other.as_bytes(), 7), "{other}");
        }
    }

    #[test]
    fn a_limit_is_told_from_other_refusals_and_its_pause_is_read() {
        let error = r#"{"id":1,"error":{"code":-31001,"message":"m","data":{"retryAfterMs":250}}}"#;
        let limit = result_of(error.as_bytes(), 1).unwrap_err();
        assert_eq!((limit.is_limit, limit.pause), (true, Some(Duration::from_millis(250))));
        let limit = refusal(429, b"slow down", Some(Duration::from_secs(1)));
        assert_eq!((limit.is_limit, limit.to_string().as_str()), (true, "http 429: slow down"));
        let other = refusal(400, br#"{"error":{"code":-32602,"message":"unknown tool"}}"#, None);
        assert_eq!((other.is_limit, other.to_string().as_str()), (false, "http 400, rpc -32602: unknown tool"));
        assert!(refusal(401, b"", None).to_string().contains("check --token"));
    }

    #[test]
    fn a_task_is_found_in_both_eras() {
        assert_eq!(created(r#"{"task":{"taskId":"a","status":"working"},"content":[]}"#).unwrap(), r#""a""#);
        assert_eq!(created(r#"{"resultType":"task","taskId":"b"}"#).unwrap(), r#""b""#);
        assert_eq!(kind(created(r#"{"resultType":"complete","content":[]}"#)), Kind::NoTask);
        assert_eq!(kind(created(r#"{"resultType":"complete","taskId":"c"}"#)), Kind::NoTask);
        assert_eq!(kind(created(r#"{"content":[],"isError":true}"#)), Kind::ToolError);
        assert_eq!(kind(created(r#"{"resultType":"input_required"}"#)), Kind::InputRequired);
        assert_eq!(kind(created(r#"{"task":{"taskId":7}}"#)), Kind::BadAnswer);
    }

    #[test]
    fn a_tasks_end_is_judged() {
        assert_eq!(ended(r#"{"status":"working","pollIntervalMs":5}"#).unwrap(), None);
        assert_eq!(ended(r#"{"status":"completed","result":{"content":[]}}"#).unwrap(), Some(()));
        for (text, expected) in [
            (
                r#"{"status":"completed","result":{"isError":true,"content":[{"type":"text","text":"broken"}]}}"#,
                Kind::ToolError,
            ),
            (r#"{"status":"failed","error":{"code":1,"message":"m"}}"#, Kind::TaskFailed),
            (r#"{"status":"cancelled"}"#, Kind::TaskCancelled),
            (r#"{"status":"input_required"}"#, Kind::InputRequired),
            (r#"{"status":"new"}"#, Kind::BadAnswer),
            ("{}", Kind::BadAnswer),
        ] {
            assert_eq!(kind(ended(text)), expected, "{text}");
        }
        assert_eq!(poll_interval(r#"{"pollIntervalMs":5}"#), Some(Duration::from_millis(5)));
        assert!(page(r#"{"tasks":[]}"#).is_ok() && page("{}").is_err());
    }
}
