//! Results: each says that it is complete and whose it is (MOD-06), and those that may be kept say for how long (MOD-07).

use crate::domain::json::RawJson;
use crate::protocol::legacy::{RELATED_TASK, SERVER_INFO, tools};
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted, replace_member, set_members, set_meta};

/// What this server says of itself.
pub const OURS: &str =
    concat!(r#"{"name":"taskhold","title":"Taskhold","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// How long a list may be kept, in milliseconds: what upstreams offer can change at any time.
pub const FRESH_MS: u64 = 10_000;

/// A whole result, ours or an upstream's.
#[must_use]
pub fn complete(result: &RawJson) -> RawJson {
    of_type("complete", result)
}

/// A result of this type.
#[must_use]
pub fn of_type(result_type: &str, result: &RawJson) -> RawJson {
    let typed = set_members(result, &[("resultType", &quoted(result_type))], &[]);
    set_meta(&typed, &[(SERVER_INFO, OURS)], &[RELATED_TASK])
}

/// A list of ours, for its caller alone: whose token it is decides what is offered.
#[must_use]
pub fn cacheable(result: &RawJson) -> RawJson {
    complete(&kept_for(result, FRESH_MS))
}

/// The contents of a resource: fresh for as long as their upstream says, for the caller whose link they came over.
#[must_use]
pub fn contents(result: &RawJson) -> RawJson {
    let said = member(result.as_str(), "ttlMs").and_then(|raw| raw.parse().ok());
    complete(&kept_for(result, said.unwrap_or(0)))
}

/// The same of what was answered with its reader's own input: nobody may keep it.
#[must_use]
pub fn contents_once(result: &RawJson) -> RawJson {
    complete(&kept_for(result, 0))
}

fn kept_for(result: &RawJson, ttl_ms: u64) -> RawJson {
    set_members(result, &[("ttlMs", &ttl_ms.to_string()), ("cacheScope", r#""private""#)], &[])
}

/// A page of a list.
#[must_use]
pub fn list<'a>(name: &str, definitions: impl Iterator<Item = &'a RawJson>, next: Option<&str>) -> RawJson {
    let definitions: Vec<_> = definitions.map(RawJson::as_str).collect();
    let next = next.map(|cursor| format!(r#","nextCursor":{}"#, quoted(cursor))).unwrap_or_default();
    cacheable(&RawJson::trusted(format!("{{{}:[{}]{next}}}", quoted(name), definitions.join(","))))
}

/// How a tool is shown: its upstream's definition with the exposed name, without what the handshake era says of tasks
/// (EXEC-20).
#[must_use]
pub fn tool_definition(definition: &RawJson, exposed: &str) -> RawJson {
    let named = match member(definition.as_str(), "name").and_then(string_value) {
        Some(name) if name == exposed => definition.clone(),
        _ => replace_member(definition, "name", &quoted(exposed)),
    };
    set_members(&named, &[], &["execution"])
}

/// A tool result of ours that says what was wrong (EXEC-10).
#[must_use]
pub fn tool_error(text: &str) -> RawJson {
    complete(&tools::error_result(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawJson {
        RawJson::trusted(text)
    }

    // req: MOD-06
    #[test]
    fn a_result_says_its_type_and_whose_it_is() {
        let theirs = raw(
            r#"{"resultType":"odd","content":[{"text":"\u0000"}],"n":1e400,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"theirs"},"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"a":1.0}}"#,
        );
        assert_eq!(
            complete(&theirs).as_str(),
            format!(
                r#"{{"content":[{{"text":"\u0000"}}],"n":1e400,"_meta":{{"a":1.0,"io.modelcontextprotocol/serverInfo":{OURS}}},"resultType":"complete"}}"#
            )
        );
        assert!(serde_json::from_str::<serde_json::Value>(OURS).unwrap()["version"].is_string());
    }

    // req: MOD-07
    #[test]
    fn what_may_be_kept_says_for_how_long() {
        let keeping = |result: &RawJson| {
            let value: serde_json::Value = serde_json::from_str(result.as_str()).unwrap();
            (value["ttlMs"].as_u64(), value["cacheScope"].as_str().map(str::to_owned))
        };
        let private = Some("private".to_owned());
        assert_eq!(keeping(&list("tools", [].iter(), None)), (Some(FRESH_MS), private.clone()));
        assert_eq!(
            keeping(&contents(&raw(r#"{"contents":[],"ttlMs":7,"cacheScope":"public"}"#))),
            (Some(7), private.clone())
        );
        for odd in ["-1", "0.5", r#""x""#, "1e3", "null"] {
            let read = contents(&raw(&format!(r#"{{"contents":[],"ttlMs":{odd}}}"#)));
            assert_eq!(keeping(&read), (Some(0), private.clone()), "{odd}");
        }
        let listed = list("tools", [raw("{}"), raw("[]")].iter(), Some("c\""));
        assert!(listed.as_str().starts_with(r#"{"tools":[{},[]],"nextCursor":"c\"","ttlMs":"#), "{}", listed.as_str());
    }

    // req: EXEC-20 (what is listed to modern clients)
    #[test]
    fn a_definition_loses_what_the_handshake_era_says_of_tasks() {
        let definition =
            raw(r#"{"name":"a b","execution":{"taskSupport":"required"},"outputSchema":{"type":"array"},"x":1e400}"#);
        assert_eq!(
            tool_definition(&definition, "a_b").as_str(),
            r#"{"name":"a_b","outputSchema":{"type":"array"},"x":1e400}"#
        );
    }
}
