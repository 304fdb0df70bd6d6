//! `initialize`.

use crate::domain::json::RawJson;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted, set_members};

use super::{InvalidParams, Revision, param};

/// Bytes of a client's capabilities: they are kept with its session and with each of its tasks, so that a small call could
/// otherwise write megabytes. Those of real clients have some hundred.
const MOST_CAPABILITIES: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitializeParams {
    pub protocol_version: String,
    /// The client's capabilities, an object.
    pub capabilities: RawJson,
}

impl InitializeParams {
    /// # Errors
    /// If `protocolVersion` is no string or `capabilities` is no object or too large; absent capabilities are none.
    pub fn parse(params: Option<&RawJson>) -> Result<Self, InvalidParams> {
        let protocol_version = param(params, "protocolVersion")
            .and_then(string_value)
            .ok_or_else(|| InvalidParams::new("protocolVersion must be a string"))?
            .into_owned();
        let capabilities = match param(params, "capabilities") {
            Some(raw) if !raw.starts_with('{') => return Err(InvalidParams::new("capabilities must be an object")),
            Some(raw) if raw.len() > MOST_CAPABILITIES => {
                return Err(InvalidParams::new("capabilities must have at most 16384 bytes"));
            }
            raw => RawJson::trusted(raw.unwrap_or("{}")),
        };
        Ok(Self { protocol_version, capabilities })
    }
}

/// The params with which this program opens a session of its own; `capabilities` is an object.
#[must_use]
pub fn initialize_params(revision: &str, capabilities: &str) -> RawJson {
    RawJson::trusted(format!(
        r#"{{"protocolVersion":{},"capabilities":{capabilities},"clientInfo":{{"name":"taskhold","version":"{}"}}}}"#,
        quoted(revision),
        env!("CARGO_PKG_VERSION"),
    ))
}

/// What a client's capabilities mean in the revision that was agreed on: older ones know no modes of elicitation, no uses of
/// sampling and no tasks, whatever a client says (EXEC-20).
#[must_use]
pub fn known_capabilities(revision: Revision, declared: RawJson) -> RawJson {
    if revision >= Revision::V2025_11_25 {
        return declared;
    }
    let is_object = |name: &str| member(declared.as_str(), name).is_some_and(|raw| raw.starts_with('{'));
    let mut plain = vec![];
    for name in ["elicitation", "sampling"].into_iter().filter(|name| is_object(name)) {
        plain.push((name, "{}"));
    }
    set_members(&declared, &plain, &["tasks"])
}

/// What tasks this caller may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskOffer {
    /// No tasks: switched off, or the revision has none.
    None,
    /// Everything but `tasks/list`: the caller cannot be told from others (AUTH-09).
    WithoutList,
    All,
}

/// What upstreams serve besides tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    pub prompts: bool,
    pub resources: bool,
    pub subscribe: bool,
    pub completions: bool,
    pub logging: bool,
}

/// The result: exactly what is served is declared (CAP-02, CAP-11).
#[must_use]
pub fn initialize_result(revision: Revision, tasks: TaskOffer, served: Served) -> RawJson {
    let tasks = match tasks {
        TaskOffer::None => "",
        TaskOffer::WithoutList => r#","tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}"#,
        TaskOffer::All => r#","tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}"#,
    };
    let shelf = [
        (served.prompts, r#","prompts":{"listChanged":true}"#),
        (served.resources && !served.subscribe, r#","resources":{"listChanged":true}"#),
        (served.resources && served.subscribe, r#","resources":{"subscribe":true,"listChanged":true}"#),
        (served.completions, r#","completions":{}"#),
        (served.logging, r#","logging":{}"#),
    ]
    .map(|(served, text)| if served { text } else { "" })
    .concat();
    RawJson::trusted(format!(
        r#"{{"protocolVersion":"{}","capabilities":{{"tools":{{"listChanged":true}}{shelf}{tasks}}},"serverInfo":{{"name":"taskhold","title":"Taskhold","version":"{}"}}}}"#,
        revision.as_str(),
        env!("CARGO_PKG_VERSION"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_revision_has_declared_only_what_it_knows() {
        let declared = RawJson::trusted(
            r#"{"elicitation":{"url":{}},"roots":{"x":1},"sampling":{"tools":{}},"tasks":{"list":{}}}"#,
        );
        let known = |revision, declared: &RawJson| known_capabilities(revision, declared.clone()).as_str().to_owned();
        assert_eq!(known(Revision::V2025_11_25, &declared), declared.as_str());
        let older = r#"{"roots":{"x":1},"elicitation":{},"sampling":{}}"#;
        assert_eq!(known(Revision::V2025_06_18, &declared), older);
        let none = r#"{"sampling":true}"#;
        assert_eq!(known(Revision::V2025_06_18, &RawJson::trusted(none)), none);
    }

    // req: CAP-02, CAP-11 (of CAP-11 the legacy half)
    #[test]
    fn the_result_declares_what_is_served() {
        let declared = |revision, offer, served| {
            let result: serde_json::Value =
                serde_json::from_str(initialize_result(revision, offer, served).as_str()).expect("valid JSON");
            assert_eq!(result["protocolVersion"], revision.as_str());
            assert_eq!(result["serverInfo"]["name"], "taskhold");
            result["capabilities"].to_string()
        };
        let capabilities = |revision, offer| declared(revision, offer, Served::default());
        assert_eq!(
            capabilities(Revision::V2025_11_25, TaskOffer::All),
            r#"{"tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}},"tools":{"listChanged":true}}"#
        );
        assert_eq!(
            capabilities(Revision::V2025_11_25, TaskOffer::WithoutList),
            r#"{"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}},"tools":{"listChanged":true}}"#
        );
        assert_eq!(capabilities(Revision::V2025_06_18, TaskOffer::None), r#"{"tools":{"listChanged":true}}"#);
        let all = Served { prompts: true, resources: true, subscribe: true, completions: true, logging: true };
        assert_eq!(
            declared(Revision::V2025_06_18, TaskOffer::None, all),
            r#"{"completions":{},"logging":{},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"tools":{"listChanged":true}}"#
        );
        let some = Served { resources: true, ..Served::default() };
        assert_eq!(
            declared(Revision::V2025_06_18, TaskOffer::None, some),
            r#"{"resources":{"listChanged":true},"tools":{"listChanged":true}}"#
        );
    }

    #[test]
    fn params_are_read_and_wrong_ones_named() {
        let parse = |text: &str| InitializeParams::parse(Some(&RawJson::trusted(text)));
        let params = parse(r#"{"protocolVersion":"2025-11-25","capabilities":{"x":1.0},"clientInfo":7}"#).unwrap();
        assert_eq!((params.protocol_version.as_str(), params.capabilities.as_str()), ("2025-11-25", r#"{"x":1.0}"#));
        assert_eq!(parse(r#"{"protocolVersion":""}"#).unwrap().capabilities.as_str(), "{}");
        assert!(parse(r#"{"protocolVersion":1}"#).unwrap_err().0.contains("protocolVersion"));
        assert!(parse(r#"{"protocolVersion":"a","capabilities":[]}"#).unwrap_err().0.contains("capabilities"));
        assert!(InitializeParams::parse(None).is_err());
        let of_bytes = |bytes: usize| {
            parse(&format!(r#"{{"protocolVersion":"a","capabilities":{{"x":"{}"}}}}"#, "y".repeat(bytes - 8)))
        };
        assert!(of_bytes(MOST_CAPABILITIES).is_ok());
        assert!(of_bytes(MOST_CAPABILITIES + 1).unwrap_err().0.contains("at most 16384 bytes"));
    }
}
