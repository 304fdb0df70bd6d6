//! Why a request of the modern era is not served, and the HTTP status that goes with it.

use serde_json::{Value, json};

use super::meta::SUPPORTED;

/// A JSON-RPC error that answers a request before anything of it ran.
#[derive(Debug)]
pub(in crate::demo) struct Refusal {
    /// What HTTP answers with.
    pub(in crate::demo) status: u16,
    /// The text of the error.
    pub(in crate::demo) error: String,
}

impl Refusal {
    /// A field that every request has to have is not there, or is something else.
    pub(super) fn no_meta(field: &str) -> Self {
        Self::new(400, -32602, &format!("{field} is missing in _meta, or of another type"), None)
    }

    /// A header says something else than the message.
    pub(super) fn header(what: &str) -> Self {
        Self::new(400, -32020, &format!("Header mismatch: {what}"), None)
    }

    pub(super) fn version(requested: &str) -> Self {
        let is_legacy = SUPPORTED.contains(&requested);
        // Who asked for one of the old versions this way is not told to try it again.
        let supported: Vec<_> =
            SUPPORTED.into_iter().filter(|version| !is_legacy || *version == SUPPORTED[0]).collect();
        let data = json!({ "supported": supported, "requested": requested });
        Self::new(400, -32022, "Unsupported protocol version", Some(data))
    }

    pub(super) fn method(method: &str) -> Self {
        Self::new(404, -32601, &format!("this server does not know the method {method}"), None)
    }

    /// `capabilities` are what the client would have to declare.
    pub(super) fn capability(capabilities: &Value) -> Self {
        let data = json!({ "requiredCapabilities": capabilities });
        Self::new(400, -32021, "Missing required client capability", Some(data))
    }

    pub(super) fn params(what: &str) -> Self {
        Self::new(200, -32602, what, None)
    }

    fn new(status: u16, code: i64, message: &str, data: Option<Value>) -> Self {
        let mut error = json!({ "code": code, "message": message });
        if let Some(data) = data {
            error["data"] = data;
        }
        Self { status, error: error.to_string() }
    }
}
