//! How work ended, neutral of any protocol era (LIFE-12).

use serde_json::json;

use super::json::RawJson;
use super::text::{storable, without_surrogates};

/// The kind of end, which is also a terminal status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// A result without `isError: true`.
    Completed,
    /// A tool result with `isError: true`: `failed` to legacy readers, `completed` to modern ones.
    ToolError,
    /// A JSON-RPC error.
    Failed,
    Cancelled,
}

/// What the work gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The result object as it arrived.
    Result {
        json: RawJson,
        is_error: bool,
    },
    /// The JSON-RPC error object as it arrived, or one of ours.
    Error {
        json: RawJson,
    },
    Cancelled,
}

impl Outcome {
    #[must_use]
    pub const fn ending(&self) -> Ending {
        match self {
            Self::Result { is_error: false, .. } => Ending::Completed,
            Self::Result { is_error: true, .. } => Ending::ToolError,
            Self::Error { .. } => Ending::Failed,
            Self::Cancelled => Ending::Cancelled,
        }
    }

    /// The carried text, if there is one.
    #[must_use]
    pub const fn json(&self) -> Option<&RawJson> {
        match self {
            Self::Result { json, .. } | Self::Error { json } => Some(json),
            Self::Cancelled => None,
        }
    }

    /// The inverse of [`Self::ending`] and [`Self::json`], for reading rows.
    #[must_use]
    pub fn from_parts(ending: Ending, json: Option<RawJson>) -> Option<Self> {
        match (ending, json) {
            (Ending::Completed, Some(json)) => Some(Self::Result { json, is_error: false }),
            (Ending::ToolError, Some(json)) => Some(Self::Result { json, is_error: true }),
            (Ending::Failed, Some(json)) => Some(Self::Error { json }),
            (Ending::Cancelled, None) => Some(Self::Cancelled),
            _ => None,
        }
    }

    /// A failure of ours that becomes an outcome (EXEC-23): JSON-RPC error -32603 with `data.reason`.
    #[must_use]
    pub fn failure(failure: &Failure) -> Self {
        let mut data = json!({ "reason": failure.reason() });
        if let Failure::ResultTooLarge { bytes, limit, .. } = failure {
            data["bytes"] = json!(bytes);
            data["limit"] = json!(limit);
        }
        let error = json!({ "code": -32603, "message": failure.to_string(), "data": data });
        Self::Error { json: RawJson::from_value(&error) }
    }

    /// What `statusMessage` says of this end (TASK-26): the first text block of a tool error, an error's message,
    /// at most `limit` bytes.
    #[must_use]
    pub fn diagnosis(&self, limit: usize) -> Option<String> {
        let text = match self {
            Self::Result { is_error: false, .. } | Self::Cancelled => return None,
            Self::Result { json, is_error: true } => first_text_block(json),
            Self::Error { json } => member_text(json, "message"),
        };
        let text = text.filter(|text| !text.trim().is_empty());
        Some(storable(text.as_deref().unwrap_or("the tool reported an error without a message"), limit))
    }
}

/// Why a call has an outcome that its tool did not give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("run time exceeded: the call ran longer than {limit_s} s and was stopped")]
    RunTimeExceeded { limit_s: u64 },
    #[error("expired: the task reached the maximum lifetime of {limit_s} s")]
    LifetimeExceeded { limit_s: u64 },
    /// The call was attempted so often; 0 counts as 1.
    #[error("outcome unknown: {detail}; {}", effect(*attempts))]
    OutcomeUnknown { detail: String, attempts: u32 },
    #[error("the tool's server could not take the call: {detail}")]
    UpstreamUnavailable { detail: String },
    #[error("the tool's server broke the protocol: {detail}")]
    UpstreamProtocol { detail: String },
    #[error("the tool's server cancelled the call: {detail}")]
    UpstreamCancelled { detail: String },
    /// `part` is `result`, or `message` where only the size of all that it came in is known to be too much.
    #[error("the {part} has {bytes} bytes, more than the limit of {limit} bytes")]
    ResultTooLarge { part: &'static str, bytes: usize, limit: usize },
    #[error("an error inside this service ended the call: {detail}")]
    Internal { detail: String },
}

impl Failure {
    /// The word in `data.reason`. Stable: clients may match on it.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::RunTimeExceeded { .. } => "run_time_exceeded",
            Self::LifetimeExceeded { .. } => "expired",
            Self::OutcomeUnknown { .. } => "outcome_unknown",
            Self::UpstreamUnavailable { .. } => "upstream_unavailable",
            Self::UpstreamProtocol { .. } => "upstream_protocol",
            Self::UpstreamCancelled { .. } => "upstream_cancelled",
            Self::ResultTooLarge { .. } => "result_too_large",
            Self::Internal { .. } => "internal",
        }
    }
}

fn effect(attempts: u32) -> String {
    match attempts {
        0 | 1 => "the call may or may not have taken effect and was not repeated".to_owned(),
        _ => format!("the call was attempted {attempts} times, and each of them may or may not have taken effect"),
    }
}

/// A top-level string member of an object, with lone surrogates as U+FFFD.
fn member_text(object: &RawJson, name: &str) -> Option<String> {
    let members: std::collections::BTreeMap<String, &serde_json::value::RawValue> =
        serde_json::from_str(object.as_str()).ok()?;
    decode(members.get(name)?.get())
}

fn first_text_block(result: &RawJson) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Content<'a> {
        #[serde(borrow)]
        content: Vec<&'a serde_json::value::RawValue>,
    }
    #[derive(serde::Deserialize)]
    struct Block<'a> {
        #[serde(borrow)]
        text: Option<&'a serde_json::value::RawValue>,
    }
    let content: Content<'_> = serde_json::from_str(result.as_str()).ok()?;
    content.content.iter().find_map(|block| decode(serde_json::from_str::<Block<'_>>(block.get()).ok()?.text?.get()))
}

/// Decodes a JSON string; escapes that are no character become U+FFFD.
fn decode(text: &str) -> Option<String> {
    if !text.starts_with('"') {
        return None;
    }
    serde_json::from_str::<String>(text).ok().or_else(|| {
        let bytes: LossyBytes = serde_json::from_str(text).ok()?;
        Some(without_surrogates(bytes.0))
    })
}

/// `serde_json` hands lone surrogates to byte visitors as WTF-8, which [`without_surrogates`] then repairs.
struct LossyBytes(Vec<u8>);

impl<'de> serde::Deserialize<'de> for LossyBytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = LossyBytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<LossyBytes, E> {
                Ok(LossyBytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool_error(json: &str) -> Outcome {
        Outcome::Result { json: RawJson::trusted(json), is_error: true }
    }

    // req: TASK-26
    #[test]
    fn a_diagnosis_is_the_first_text_or_the_error_message() {
        let mixed = r#"{"content":[{"type":"image","data":""},{"type":"text","text":"disk full"}],"isError":true}"#;
        assert_eq!(tool_error(mixed).diagnosis(512).unwrap(), "disk full");
        assert_eq!(tool_error(mixed).diagnosis(7).unwrap(), "disk…");
        let error = RawJson::trusted(r#"{"code":-32011,"message":"no such city","data":1e400}"#);
        assert_eq!(Outcome::Error { json: error }.diagnosis(512).unwrap(), "no such city");
        let lone = r#"{"content":[{"type":"text","text":"a\ud800b"}],"isError":true}"#;
        assert!(tool_error(lone).diagnosis(512).unwrap().starts_with('a'));
        for nothing in [r#"{"isError":true}"#, r#"{"content":[],"isError":true}"#, r#"{"content":7}"#] {
            assert!(tool_error(nothing).diagnosis(512).unwrap().contains("without a message"));
        }
    }

    #[test]
    fn an_unknown_outcome_says_whether_the_call_was_repeated() {
        let says = |attempts| Failure::OutcomeUnknown { detail: "it is gone".to_owned(), attempts }.to_string();
        assert!(says(1).ends_with("was not repeated"), "{}", says(1));
        assert!(says(3).contains("attempted 3 times") && !says(3).contains("not repeated"), "{}", says(3));
    }

    #[test]
    fn parts_and_outcomes_are_the_same_thing() {
        let json = RawJson::trusted("{}");
        for outcome in [
            Outcome::Result { json: json.clone(), is_error: false },
            Outcome::Result { json: json.clone(), is_error: true },
            Outcome::Error { json },
            Outcome::Cancelled,
        ] {
            assert_eq!(Outcome::from_parts(outcome.ending(), outcome.json().cloned()), Some(outcome));
        }
        assert_eq!(Outcome::from_parts(Ending::Completed, None), None);
    }
}
