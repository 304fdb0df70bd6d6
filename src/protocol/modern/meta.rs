//! What a request's `_meta` says of the client (MOD-02).

use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::protocol::legacy::{InvalidParams, progress_token};
use crate::protocol::scan::string_value;
use crate::protocol::splice::member;

pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
pub const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
pub const CLIENT_INFO_KEY: &str = "io.modelcontextprotocol/clientInfo";
pub const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";

/// What a client says of itself with each request; it is about the connection to us, and means nothing further on.
pub const OF_CLIENT: [&str; 4] = [VERSION_KEY, CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY];

/// Bytes of a client's capabilities: they are kept with each of its tasks.
const MOST_CAPABILITIES: usize = 16 << 10;

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestMeta {
    pub version: String,
    /// An object.
    pub capabilities: RawJson,
    /// A string or a number.
    pub progress_token: Option<RawJson>,
    pub trace: Option<TraceParent>,
    log_level: Option<RawJson>,
}

impl RequestMeta {
    /// # Errors
    /// If `_meta`, its version or its capabilities are missing or have the wrong type, or the capabilities are too large.
    pub fn parse(params: Option<&RawJson>) -> Result<Self, InvalidParams> {
        let meta = params.and_then(|params| member(params.as_str(), "_meta"));
        let meta = meta.filter(|meta| meta.starts_with('{')).ok_or_else(no_meta)?;
        let version = member(meta, VERSION_KEY)
            .and_then(string_value)
            .ok_or_else(|| wrong(&format!("_meta[\"{VERSION_KEY}\"] must be a string")))?
            .into_owned();
        let capabilities = member(meta, CAPABILITIES_KEY)
            .filter(|raw| raw.starts_with('{'))
            .ok_or_else(|| wrong(&format!("_meta[\"{CAPABILITIES_KEY}\"] must be an object")))?;
        if capabilities.len() > MOST_CAPABILITIES {
            let most = format!("_meta[\"{CAPABILITIES_KEY}\"] must have at most {MOST_CAPABILITIES} bytes");
            return Err(wrong(&most));
        }
        Ok(Self {
            version,
            capabilities: RawJson::trusted(capabilities),
            progress_token: progress_token(params),
            trace: member(meta, "traceparent").and_then(string_value).and_then(|text| TraceParent::parse(&text)),
            log_level: member(meta, LOG_LEVEL_KEY).map(RawJson::trusted),
        })
    }

    /// From which level on the client wants log messages of this request; `None` if it wants none (MOD-14).
    ///
    /// # Errors
    /// If it is not one of the eight.
    pub fn log_level(&self) -> Result<Option<LogLevel>, InvalidParams> {
        let Some(raw) = &self.log_level else { return Ok(None) };
        let level = string_value(raw.as_str()).and_then(|name| LogLevel::from_name(&name));
        let known = || LogLevel::ALL.map(LogLevel::as_str).join(", ");
        level.map(Some).ok_or_else(|| wrong(&format!("_meta[\"{LOG_LEVEL_KEY}\"] must be one of {}", known())))
    }

    /// Whether the client declared an extension.
    #[must_use]
    pub fn declares_extension(&self, name: &str) -> bool {
        let extensions = member(self.capabilities.as_str(), "extensions");
        extensions.and_then(|extensions| member(extensions, name)).is_some_and(|raw| raw.starts_with('{'))
    }
}

fn no_meta() -> InvalidParams {
    wrong(&format!(
        "params._meta must be an object with \"{VERSION_KEY}\" (a string) and \"{CAPABILITIES_KEY}\" (an object)"
    ))
}

fn wrong(what: &str) -> InvalidParams {
    InvalidParams(what.to_owned())
}

/// The caller's place in a trace, as W3C writes it (MOD-13). What is written otherwise is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    pub trace_id: u128,
    pub span_id: u64,
}

impl TraceParent {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        // Later versions may say more.
        let has_end = parts.next().is_none() || version != "00";
        let is_valid = is_hex(version, 2) && version != "ff" && is_hex(flags, 2) && has_end;
        if !is_valid || !is_hex(trace, 32) || !is_hex(span, 16) {
            return None;
        }
        let trace_id = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
        let span_id = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
        Some(Self { trace_id, span_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(meta: &str) -> Result<RequestMeta, InvalidParams> {
        RequestMeta::parse(Some(&RawJson::trusted(format!(r#"{{"_meta":{meta}}}"#))))
    }

    fn with(more: &str) -> RequestMeta {
        parse(&format!(r#"{{"{VERSION_KEY}":"2026-07-28","{CAPABILITIES_KEY}":{{}}{more}}}"#)).unwrap()
    }

    // req: MOD-02
    #[test]
    fn version_and_capabilities_are_required() {
        let version = format!(r#""{VERSION_KEY}":"2026-07-28""#);
        let capabilities = format!(r#""{CAPABILITIES_KEY}":{{"x":1.0}}"#);
        let meta = parse(&format!("{{{version},{capabilities}}}")).unwrap();
        assert_eq!((meta.version.as_str(), meta.capabilities.as_str()), ("2026-07-28", r#"{"x":1.0}"#));
        for (bad, named) in [
            (format!("{{{capabilities}}}"), VERSION_KEY),
            (format!(r#"{{"{VERSION_KEY}":7,{capabilities}}}"#), VERSION_KEY),
            (format!("{{{version}}}"), CAPABILITIES_KEY),
            (format!(r#"{{{version},"{CAPABILITIES_KEY}":[]}}"#), CAPABILITIES_KEY),
            (
                format!(r#"{{{version},"{CAPABILITIES_KEY}":{{"x":"{}"}}}}"#, "y".repeat(MOST_CAPABILITIES)),
                "16384 bytes",
            ),
            ("null".to_owned(), "_meta must"),
        ] {
            assert!(parse(&bad).unwrap_err().0.contains(named), "{bad}");
        }
        let none = RequestMeta::parse(None).unwrap_err().0;
        assert!(none.contains("_meta") && none.contains(VERSION_KEY) && none.contains(CAPABILITIES_KEY), "{none}");
    }

    #[test]
    fn an_extension_is_declared_by_an_object() {
        let declares = |extensions: &str| {
            let meta = parse(&format!(r#"{{"{VERSION_KEY}":"x","{CAPABILITIES_KEY}":{{"extensions":{extensions}}}}}"#));
            meta.unwrap().declares_extension("a/b")
        };
        assert!(declares(r#"{"a/b":{}}"#) && declares(r#"{"a/b":{"x":1}}"#));
        for none in ["{}", r#"{"a/b":true}"#, r#"{"a/b":null}"#, r#"{"a/c":{}}"#, "[]"] {
            assert!(!declares(none), "{none}");
        }
    }

    // req: MOD-14
    #[test]
    fn a_log_level_is_one_of_eight() {
        assert_eq!(with("").log_level(), Ok(None));
        assert_eq!(with(&format!(r#","{LOG_LEVEL_KEY}":"notice""#)).log_level(), Ok(Some(LogLevel::Notice)));
        for bad in [r#""loud""#, "3", "null"] {
            let why = with(&format!(r#","{LOG_LEVEL_KEY}":{bad}"#)).log_level().unwrap_err().0;
            assert!(why.contains(LOG_LEVEL_KEY) && why.contains("emergency"), "{why}");
        }
    }

    // req: MOD-13
    #[test]
    fn a_trace_parent_is_read_as_w3c_writes_it() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        const SPAN: &str = "00f067aa0ba902b7";
        let parse = |text: &str| with(&format!(r#","traceparent":"{text}""#)).trace;
        let expected =
            TraceParent { trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, span_id: 0x00f0_67aa_0ba9_02b7 };
        assert_eq!(parse(&format!("00-{TRACE}-{SPAN}-01")), Some(expected));
        assert_eq!(parse(&format!("01-{TRACE}-{SPAN}-01-more")), Some(expected));
        for bad in [
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            String::new(),
        ] {
            assert_eq!(parse(&bad), None, "{bad}");
        }
    }
}
