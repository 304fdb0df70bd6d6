//! What every request of the modern era says about itself in `_meta`.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use crate::demo::wire::{Incoming, rank};

/// The version that this module speaks.
pub(super) const VERSION: &str = "2026-07-28";
/// All versions of this server.
pub(super) const SUPPORTED: [&str; 3] = [VERSION, "2025-11-25", "2025-06-18"];
/// The tasks extension.
pub(super) const TASKS: &str = "io.modelcontextprotocol/tasks";

/// What a request says about itself.
#[derive(Debug, Clone)]
pub(super) struct Meta {
    pub(super) version: String,
    capabilities: Map<String, Value>,
    /// The least severe level of log messages that the client wants; without it, none.
    log_level: Option<String>,
    /// The text of the token.
    pub(super) progress_token: Option<String>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/logLevel")]
    log_level: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
}

/// Whether a message is of the modern era; `header` is the version that HTTP gives.
pub(in crate::demo) fn speaks(incoming: &Incoming<'_>, header: Option<&str>) -> bool {
    let named = raw(incoming.params()).is_some_and(|raw| raw.version.is_some());
    let method = incoming.method.as_deref();
    // Dates as text are in order, and what is no date comes after them.
    let newer = || method != Some("initialize") && header.is_some_and(|header| header > "2025-11-25");
    named || method == Some("server/discover") || newer()
}

impl Meta {
    pub(super) fn read(params: &str) -> Result<Self, Refusal> {
        let Some(raw) = raw(params) else { return Err(Refusal::no_meta("_meta")) };
        let version = of(raw.version).ok_or_else(|| Refusal::no_meta("protocolVersion"))?;
        let capabilities = of(raw.capabilities).ok_or_else(|| Refusal::no_meta("clientCapabilities"))?;
        let log_level = raw.log_level.map(|level| {
            let level = of::<String>(Some(level)).filter(|level| rank(level).is_some());
            level.ok_or_else(|| Refusal::params("logLevel is no level of log messages"))
        });
        Ok(Self {
            version,
            capabilities,
            log_level: log_level.transpose()?,
            progress_token: raw.progress_token.map(|token| token.get().to_owned()),
        })
    }

    /// Whether the client declared a capability such as `elicitation` with this request.
    pub(super) fn declares(&self, capability: &str) -> bool {
        self.capabilities.get(capability).is_some_and(Value::is_object)
    }

    /// Whether the client may be asked by this URL mode of elicitation.
    pub(super) fn opens_urls(&self) -> bool {
        self.capabilities.get("elicitation").is_some_and(|elicitation| elicitation["url"].is_object())
    }

    /// Whether the client takes tasks.
    pub(super) fn declares_tasks(&self) -> bool {
        self.capabilities.get("extensions").is_some_and(|extensions| extensions[TASKS].is_object())
    }

    pub(super) fn wants_log(&self, level: &str) -> bool {
        self.log_level.as_deref().is_some_and(|lowest| rank(level) >= rank(lowest))
    }
}

/// What a client that takes no tasks would have to declare.
pub(super) fn tasks_capability() -> Value {
    json!({ "extensions": { TASKS: {} } })
}

fn raw(params: &str) -> Option<Raw<'_>> {
    serde_json::from_str::<Params<'_>>(params).ok()?.meta
}

fn of<'a, T: Deserialize<'a>>(value: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(value?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_modern(message: &str, header: Option<&str>) -> bool {
        speaks(&Incoming::read(message.as_bytes()).unwrap(), header)
    }

    #[test]
    fn each_message_says_which_era_it_is_of() {
        let named = r#"{"id":1,"method":"M","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":7}}}"#;
        for (method, header, expected) in [("initialize", None, true), ("tools/list", Some("2025-11-25"), true)] {
            assert_eq!(is_modern(&named.replace('M', method), header), expected, "{method}");
        }
        let bare = r#"{"id":1,"method":"M"}"#;
        for (method, header, expected) in [
            ("server/discover", None, true),
            ("initialize", Some("2026-07-28"), false),
            ("tools/list", Some("2026-07-28"), true),
            ("tools/list", Some("v999.0.0"), true),
            ("tools/list", Some("2025-11-25"), false),
            ("tools/list", None, false),
        ] {
            assert_eq!(is_modern(&bare.replace('M', method), header), expected, "{method} {header:?}");
        }
    }
}
