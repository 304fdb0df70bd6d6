//! JSON-RPC 2.0 messages: reading the envelope, and writing messages around raw parts.

use std::fmt;
use std::sync::Arc;

use crate::domain::json::RawJson;
use crate::domain::pieces::Pieces;
use crate::protocol::scan::{Fault, Scanned, scan, string_value};
use crate::protocol::splice::{member, quoted};

/// The text is no JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is no message, or one that may not come here.
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
/// A cancelled task has no result (TASK-15).
pub const TASK_CANCELLED: i64 = -32800;
/// The handshake era's number for a resource that is not there.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// An upstream wants URLs to be visited before it is asked again.
pub const URLS_NEEDED: i64 = -32042;
/// A limit of the service refused the request (AUTH-14); outside the range that JSON-RPC reserves.
pub const LIMIT_REACHED: i64 = -31001;

/// The code of an error object, if it is a number of this size.
#[must_use]
pub fn error_code(error: &RawJson) -> Option<i64> {
    member(error.as_str(), "code")?.parse().ok()
}

/// An upstream's error whose number would mislead the client: as a failure, with the original in `data` (MOD-16).
#[must_use]
pub fn upstream_error(error: &RawJson) -> RawJson {
    let message = member(error.as_str(), "message").unwrap_or(r#""the tool's server refused the request""#);
    RawJson::trusted(format!(
        r#"{{"code":{INTERNAL_ERROR},"message":{message},"data":{{"reason":"upstream_error","error":{}}}}}"#,
        error.as_str()
    ))
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Request(Request),
    Notification(Notification),
    Response(Response),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub id: Id,
    pub method: String,
    /// An object, if it is there.
    pub params: Option<RawJson>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    pub method: String,
    /// An object, if it is there.
    pub params: Option<RawJson>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Absent only in errors whose sender could not read the request's id.
    pub id: Option<Id>,
    pub body: ResponseBody,
}

/// What a response carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseBody {
    /// Any JSON value; MCP results are objects, which the reader checks.
    Result(RawJson),
    /// An object with an integer `code` and a string `message`.
    Error(RawJson),
}

/// A request's id: a string or an integer, kept as its token so that it is echoed exactly as sent (HTTP-05).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id(Arc<str>);

impl Id {
    /// Takes a raw JSON value; `None` unless it is a string or an integer. Fractions and exponents are refused, whatever
    /// their value.
    #[must_use]
    pub fn from_raw(raw: &str) -> Option<Self> {
        (raw.starts_with('"') || is_integer(raw)).then(|| Self(raw.into()))
    }

    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// The token, with its quotes if it is a string.
    #[must_use]
    pub fn as_raw(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({})", self.0)
    }
}

/// Bytes that are no message of JSON-RPC (HTTP-04).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Malformed {
    /// [`PARSE_ERROR`] or [`INVALID_REQUEST`].
    pub code: i64,
    pub message: String,
    /// The message's id where it could be read.
    pub id: Option<Id>,
}

impl Message {
    /// # Errors
    /// [`Malformed`]: bad UTF-8 or JSON is [`PARSE_ERROR`]; an array, wrong types, a null or fractional id, duplicate keys
    /// and nesting over the limit are [`INVALID_REQUEST`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let scanned = scan(bytes).map_err(|error| Malformed {
            code: match error.fault {
                Fault::NotUtf8 { .. } | Fault::Syntax { .. } => PARSE_ERROR,
                Fault::TooDeep { .. } | Fault::DuplicateKey { .. } => INVALID_REQUEST,
            },
            id: error.id.as_deref().and_then(Id::from_raw),
            message: error.to_string(),
        })?;
        Self::from_scanned(&scanned).map_err(|reason| Malformed {
            code: INVALID_REQUEST,
            message: format!("not a JSON-RPC message: {reason}"),
            id: scanned.member("id").and_then(Id::from_raw),
        })
    }

    fn from_scanned(scanned: &Scanned<'_>) -> Result<Self, &'static str> {
        if scanned.is_array() {
            return Err("batches are not supported");
        }
        if !scanned.is_object() {
            return Err("expected an object");
        }
        if scanned.member("jsonrpc").and_then(string_value).as_deref() != Some("2.0") {
            return Err("jsonrpc must be \"2.0\"");
        }
        let id = match scanned.member("id") {
            None => None,
            // An error may answer a request whose id was not understood.
            Some("null") if scanned.member("error").is_some() => None,
            Some(raw) => Some(Id::from_raw(raw).ok_or("id must be a string or an integer")?),
        };
        let (result, error) = (scanned.member("result"), scanned.member("error"));
        let Some(method) = scanned.member("method") else {
            let body = match (result, error) {
                (Some(_), None) if id.is_none() => return Err("a result needs an id"),
                (Some(result), None) => ResponseBody::Result(RawJson::trusted(result)),
                (None, Some(error)) if is_error(error) => ResponseBody::Error(RawJson::trusted(error)),
                (None, Some(_)) => return Err("error must have an integer code and a string message"),
                (Some(_), Some(_)) => return Err("result and error exclude each other"),
                (None, None) => return Err("expected a method, a result or an error"),
            };
            return Ok(Self::Response(Response { id, body }));
        };
        if result.is_some() || error.is_some() {
            return Err("method excludes result and error");
        }
        let method = string_value(method).ok_or("method must be a string")?.into_owned();
        let params = match scanned.member("params") {
            Some(params) if !params.starts_with('{') => return Err("params must be an object"),
            params => params.map(RawJson::trusted),
        };
        Ok(match id {
            Some(id) => Self::Request(Request { id, method, params }),
            None => Self::Notification(Notification { method, params }),
        })
    }
}

/// A JSON-RPC error of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorObject {
    pub code: i64,
    pub message: String,
    pub data: Option<RawJson>,
}

impl ErrorObject {
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    #[must_use]
    pub fn with_data(self, data: RawJson) -> Self {
        Self { data: Some(data), ..self }
    }

    #[must_use]
    pub fn to_raw(&self) -> RawJson {
        let data = self.data.as_ref().map(|data| format!(r#","data":{}"#, data.as_str()));
        let message = quoted(&self.message);
        RawJson::trusted(format!(r#"{{"code":{},"message":{message}{}}}"#, self.code, data.unwrap_or_default()))
    }
}

/// A response with a result.
#[must_use]
pub fn write_result(id: &Id, result: &RawJson) -> String {
    [r#"{"jsonrpc":"2.0","id":"#, id.as_raw(), r#","result":"#, result.as_str(), "}"].concat()
}

/// A response whose result, or error, is `value`, which is not copied if it is large.
#[must_use]
pub fn response_of(id: &Id, member: &'static str, value: &Pieces) -> Pieces {
    let mut message = Pieces::from([r#"{"jsonrpc":"2.0","id":"#, id.as_raw(), r#",""#, member, r#"":"#].concat());
    message.push(value);
    message.push_text("}");
    message
}

/// A response with an error; without `id` where the request's could not be read.
#[must_use]
pub fn write_error(id: Option<&Id>, error: &RawJson) -> String {
    match id {
        Some(id) => [r#"{"jsonrpc":"2.0","id":"#, id.as_raw(), r#","error":"#, error.as_str(), "}"].concat(),
        None => [r#"{"jsonrpc":"2.0","error":"#, error.as_str(), "}"].concat(),
    }
}

/// A request to the other side.
#[must_use]
pub fn write_request(id: &Id, method: &str, params: Option<&RawJson>) -> String {
    let head = format!(r#"{{"jsonrpc":"2.0","id":{},"method":{}"#, id.as_raw(), quoted(method));
    close_with_params(head, params)
}

/// A notification to the other side.
#[must_use]
pub fn write_notification(method: &str, params: Option<&RawJson>) -> String {
    close_with_params(format!(r#"{{"jsonrpc":"2.0","method":{}"#, quoted(method)), params)
}

fn close_with_params(mut message: String, params: Option<&RawJson>) -> String {
    if let Some(params) = params {
        message.push_str(r#","params":"#);
        message.push_str(params.as_str());
    }
    message.push('}');
    message
}

fn is_error(raw: &str) -> bool {
    member(raw, "code").is_some_and(is_integer) && member(raw, "message").is_some_and(|text| text.starts_with('"'))
}

/// Whether a raw JSON value is an integer by its token.
fn is_integer(raw: &str) -> bool {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Message, Malformed> {
        Message::parse(text.as_bytes())
    }

    // req: HTTP-05
    #[test]
    fn ids_are_echoed_as_sent() {
        for id in
            ["0", "-1", "9007199254740992", "123456789012345678901234567890", r#""""#, r#""a\u0041""#, r#""\ud800""#]
        {
            let Ok(Message::Request(request)) = parse(&format!(r#"{{"jsonrpc":"2.0","id": {id} ,"method":"ping"}}"#))
            else {
                panic!("{id} is an id");
            };
            assert_eq!(
                write_result(&request.id, &RawJson::trusted("{}")),
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
            );
        }
    }

    // req: HTTP-04
    #[test]
    fn what_is_no_message_is_refused() {
        let bad_json = ["", "{", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",}", "\u{FEFF}{}"];
        for text in bad_json {
            assert_eq!(parse(text).unwrap_err().code, PARSE_ERROR, "{text}");
        }
        assert_eq!(Message::parse(b"{\"a\":\"\xc3\"}").unwrap_err().code, PARSE_ERROR);
        let with_id = [
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":""}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1,"x":2}}"#,
        ];
        for text in with_id {
            let malformed = parse(text).unwrap_err();
            assert_eq!((malformed.code, malformed.id), (INVALID_REQUEST, Id::from_raw("1")), "{text}");
        }
        let without_id = [
            "[]",
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            "7",
            "null",
            "{}",
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.0,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
        ];
        for text in without_id {
            let malformed = parse(text).unwrap_err();
            assert_eq!((malformed.code, malformed.id), (INVALID_REQUEST, None), "{text}");
        }
        let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{}"#, r#"{"a":"#.repeat(200));
        assert_eq!(parse(&deep).unwrap_err().code, INVALID_REQUEST);
    }

    #[test]
    fn the_three_kinds_are_told_apart() {
        assert!(matches!(
            parse(r#"{"jsonrpc":"2.0","method":"n","params":{}}"#),
            Ok(Message::Notification(Notification { params: Some(_), .. }))
        ));
        assert!(matches!(
            parse(r#"{"jsonrpc":"2.0","id":"a","result":7}"#),
            Ok(Message::Response(Response { id: Some(_), body: ResponseBody::Result(_) }))
        ));
        for id in ["", r#""id":null,"#] {
            assert!(matches!(
                parse(&format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-1,"message":"m"}}}}"#)),
                Ok(Message::Response(Response { id: None, body: ResponseBody::Error(_) }))
            ));
        }
    }

    #[test]
    fn what_we_write_can_be_read() {
        let id = Id::from_number(7);
        let params = RawJson::trusted(r#"{"x":1e400}"#);
        assert_eq!(
            parse(&write_request(&id, "a\"b", Some(&params))),
            Ok(Message::Request(Request { id: id.clone(), method: "a\"b".to_owned(), params: Some(params) }))
        );
        assert_eq!(
            parse(&write_notification("n", None)),
            Ok(Message::Notification(Notification { method: "n".to_owned(), params: None }))
        );
        let error = ErrorObject::new(INVALID_PARAMS, "say \"why\"\n").with_data(RawJson::trusted("[1.0]")).to_raw();
        assert_eq!(error.as_str(), r#"{"code":-32602,"message":"say \"why\"\n","data":[1.0]}"#);
        for id in [Some(&id), None] {
            let response = Response { id: id.cloned(), body: ResponseBody::Error(error.clone()) };
            assert_eq!(parse(&write_error(id, &error)), Ok(Message::Response(response)));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let malformed = Message::parse(&bytes).is_err();
            prop_assert!(malformed, "64 random bytes are no message");
        }

        #[test]
        fn nearly_messages_never_panic(text in r#"\{"jsonrpc":"2\.0",("(id|method|params|result|error)":("a"|1|-|\{\}|\[\]|null),?){0,4}\}"#) {
            let readable = !matches!(parse(&text), Err(Malformed { code: PARSE_ERROR, .. }));
            prop_assert!(!readable || serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok());
        }
    }
}
