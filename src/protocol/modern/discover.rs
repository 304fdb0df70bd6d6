//! `server/discover` (MOD-01).

use crate::domain::json::RawJson;
use crate::protocol::legacy::initialize::Served;
use crate::protocol::splice::quoted;

use super::results::cacheable;
use super::{TASKS_EXTENSION, supported_versions};

/// What is offered to a caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offer {
    pub served: Served,
    /// The extension for tasks.
    pub tasks: bool,
}

/// The result: exactly what is served is declared.
#[must_use]
pub fn discover_result(offer: Offer) -> RawJson {
    let Offer { served, tasks } = offer;
    let extension = format!(r#""extensions":{{"{TASKS_EXTENSION}":{{}}}}"#);
    let capabilities: Vec<&str> = [
        (true, r#""tools":{"listChanged":true}"#),
        (served.prompts, r#""prompts":{"listChanged":true}"#),
        (served.resources, r#""resources":{"listChanged":true}"#),
        (served.completions, r#""completions":{}"#),
        (served.logging, r#""logging":{}"#),
        (tasks, &extension),
    ]
    .into_iter()
    .filter_map(|(is_served, text)| is_served.then_some(text))
    .collect();
    let versions: Vec<_> = supported_versions(None).map(quoted).collect();
    cacheable(&RawJson::trusted(format!(
        r#"{{"supportedVersions":[{}],"capabilities":{{{}}}}}"#,
        versions.join(","),
        capabilities.join(",")
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    // req: MOD-01
    #[test]
    fn exactly_what_is_served_is_declared() {
        let result = |offer| serde_json::from_str::<Value>(discover_result(offer).as_str()).unwrap();
        let none = result(Offer::default());
        assert_eq!(none["supportedVersions"], json!(["2026-07-28", "2025-11-25", "2025-06-18"]));
        assert_eq!(none["capabilities"], json!({ "tools": { "listChanged": true } }));
        assert_eq!(none["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "taskhold");
        let served = Served { prompts: true, resources: true, subscribe: true, completions: true, logging: true };
        assert_eq!(
            result(Offer { served, tasks: true })["capabilities"],
            json!({
                "tools": { "listChanged": true }, "prompts": { "listChanged": true },
                "resources": { "listChanged": true }, "completions": {}, "logging": {},
                "extensions": { "io.modelcontextprotocol/tasks": {} },
            })
        );
    }
}
