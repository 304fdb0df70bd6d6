//! What must hold of any bytes that come over the wire: read as a message, a cursor, a session, an `Authorization` header
//! and a token. Shared by the fuzz target and a property test.

use taskhold::auth::bearer::bearer;
use taskhold::auth::format::TokenKey;
use taskhold::domain::cursor::CursorKey;
use taskhold::domain::ids::{ContextId, SessionId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::protocol::jsonrpc::{Message, ResponseBody, write_request, write_result};
use taskhold::protocol::legacy::initialize::InitializeParams;
use taskhold::protocol::legacy::tools::{CallParams, arguments, asked_ttl, tool_definition};
use taskhold::protocol::legacy::{cancelled_request, tasks};
use taskhold::protocol::splice::{items, member, members, set_members, set_meta};

/// Panics if the product misreads the bytes.
pub fn check(bytes: &[u8]) {
    message(bytes);
    let _ = bearer(&[bytes]);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    assert!(CursorKey::new([7; 32]).open(ContextId::from_uuid(uuid(1)), "tasks/list", text).is_err());
    assert!(TokenKey::new([7; 32]).read(text).is_none());
    if let Ok(session) = text.parse::<SessionId>() {
        assert_eq!(session.to_string(), text, "an id has one text");
    }
    if let Ok(task) = text.parse::<TaskId>() {
        assert_eq!(task.to_string(), text, "an id has one text");
    }
    // On text that nobody accepted these find little, and must not panic.
    let _ = members(text).count() + items(text).count();
    let _ = member(text, "a");
}

fn message(bytes: &[u8]) {
    let Ok(message) = Message::parse(bytes) else { return };
    match message {
        Message::Request(request) => {
            params(request.params.as_ref());
            let again = write_request(&request.id, &request.method, request.params.as_ref());
            assert!(!again.contains(['\n', '\r']), "a message is one line");
            assert_eq!(Message::parse(again.as_bytes()), Ok(Message::Request(request)), "{again}");
        }
        Message::Notification(notification) => {
            let _ = cancelled_request(notification.params.as_ref());
        }
        Message::Response(response) => {
            let (ResponseBody::Result(body) | ResponseBody::Error(body)) = &response.body;
            spliced(body);
            if let (Some(id), ResponseBody::Result(body)) = (&response.id, &response.body) {
                let again = write_result(id, body);
                assert_eq!(Message::parse(again.as_bytes()), Ok(Message::Response(response)), "{again}");
            }
        }
    }
}

fn params(params: Option<&RawJson>) {
    let _ = (tasks::task_id(params), tasks::cursor(params), InitializeParams::parse(params), arguments(params));
    if let Ok(call) = CallParams::parse(params)
        && let Some(task) = &call.task
    {
        let _ = asked_ttl(task);
    }
    if let Some(params) = params {
        spliced(params);
        let _ = tool_definition(params, "name", None);
    }
}

/// A changed object is still an object, and holds what was set.
fn spliced(object: &RawJson) {
    if !object.as_str().starts_with('{') {
        return;
    }
    let set = set_members(object, &[("a", "7")], &["b"]);
    assert!(is_params(&set), "{}", set.as_str());
    assert_eq!((member(set.as_str(), "a"), member(set.as_str(), "b")), (Some("7"), None));
    let marked = set_meta(object, &[("k", "8")], &["x"]);
    let meta = member(marked.as_str(), "_meta").unwrap_or_default();
    assert_eq!((member(meta, "k"), member(meta, "x")), (Some("8"), None), "{}", marked.as_str());
    assert_eq!(set_members(object, &[], &[]), *object, "no change is no change");
}

/// Whether the scanner takes it, apart from keys that are there twice.
fn is_params(object: &RawJson) -> bool {
    let message = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}}}"#, object.as_str());
    Message::parse(message.as_bytes()).is_ok()
}

const fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}
