//! Requests about the shelf, and their answers: prompts, resources, completions, logging.

use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::domain::outcome::Outcome;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted, replace_member};

use super::tools::{Answer, plain_answer, shown};
use super::{InvalidParams, param};

/// Members that only the next era knows, in results that may be cached there.
const CACHING: [&str; 2] = ["ttlMs", "cacheScope"];

/// What a completion is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ref {
    Prompt(String),
    Resource(String),
}

/// The string that `prompts/get` names a prompt by.
///
/// # Errors
/// If it is no string.
pub fn name(params: Option<&RawJson>) -> Result<String, InvalidParams> {
    text(params, "name")
}

/// The URI that a request about a resource names.
///
/// # Errors
/// If it is no string.
pub fn uri(params: Option<&RawJson>) -> Result<String, InvalidParams> {
    text(params, "uri")
}

/// The level of `logging/setLevel` (MOD-14).
///
/// # Errors
/// If it is not one of the eight.
pub fn level(params: Option<&RawJson>) -> Result<LogLevel, InvalidParams> {
    let known = || LogLevel::ALL.map(LogLevel::as_str).join(", ");
    let refused = || InvalidParams::new(format!("level must be one of {}", known()));
    param(params, "level").and_then(string_value).and_then(|name| LogLevel::from_name(&name)).ok_or_else(refused)
}

/// The `ref` of `completion/complete`.
///
/// # Errors
/// If it is none, or `argument` is no object.
pub fn reference(params: Option<&RawJson>) -> Result<Ref, InvalidParams> {
    let reference = param(params, "ref").filter(|raw| raw.starts_with('{'));
    let reference = reference.ok_or_else(|| InvalidParams::new("ref must be an object"))?;
    if !param(params, "argument").is_some_and(|raw| raw.starts_with('{')) {
        return Err(InvalidParams::new("argument must be an object"));
    }
    let named = |key: &str| {
        let text = member(reference, key).and_then(string_value).map(std::borrow::Cow::into_owned);
        text.ok_or_else(|| InvalidParams::new(format!("ref.{key} must be a string")))
    };
    match member(reference, "type").and_then(string_value).as_deref() {
        Some("ref/prompt") => named("name").map(Ref::Prompt),
        Some("ref/resource") => named("uri").map(Ref::Resource),
        _ => Err(InvalidParams::new("ref.type must be ref/prompt or ref/resource")),
    }
}

fn text(params: Option<&RawJson>, key: &str) -> Result<String, InvalidParams> {
    let text = param(params, key).and_then(string_value).map(std::borrow::Cow::into_owned);
    text.ok_or_else(|| InvalidParams::new(format!("{key} must be a string")))
}

/// How a prompt is shown in `prompts/list`: its upstream's definition with the exposed name.
#[must_use]
pub fn prompt_definition(definition: &RawJson, exposed: &str) -> RawJson {
    match member(definition.as_str(), "name").and_then(string_value) {
        Some(name) if name == exposed => definition.clone(),
        _ => replace_member(definition, "name", &quoted(exposed)),
    }
}

/// The result of a list request: everything on one page.
#[must_use]
pub fn list_result<'a>(list: &str, definitions: impl Iterator<Item = &'a RawJson>) -> RawJson {
    let mut text = format!("{{{}:[", quoted(list));
    for (at, definition) in definitions.enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(definition.as_str());
    }
    text.push_str("]}");
    RawJson::trusted(text)
}

/// The answer of a request that was passed on: the upstream's, without what only its own connection or the next era
/// means (EXEC-20).
#[must_use]
pub fn relayed_answer(outcome: &Outcome) -> Answer {
    match outcome {
        Outcome::Result { json, .. } => {
            let next_era = ["resultType", CACHING[0], CACHING[1]];
            Answer::Result(shown(json, &next_era, |_| next_era.to_vec(), &[]))
        }
        Outcome::Error { .. } | Outcome::Cancelled => plain_answer(outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawJson {
        RawJson::trusted(text)
    }

    // The legacy half of MOD-14.
    #[test]
    fn the_level_is_one_of_eight() {
        let parse = |text: &str| level(Some(&raw(text)));
        assert_eq!(parse(r#"{"level":"warning"}"#), Ok(LogLevel::Warning));
        for bad in [r#"{"level":"loud"}"#, r#"{"level":4}"#, "{}"] {
            let why = parse(bad).unwrap_err().0;
            assert!(why.contains("level") && why.contains("emergency"), "{why}");
        }
    }

    #[test]
    fn a_reference_is_read_and_what_is_wrong_is_named() {
        let parse = |text: &str| reference(Some(&raw(text)));
        let argument = r#""argument":{"name":"a","value":""}"#;
        let prompt = format!(r#"{{"ref":{{"type":"ref/prompt","name":"p"}},{argument}}}"#);
        assert_eq!(parse(&prompt), Ok(Ref::Prompt("p".to_owned())));
        let resource = format!(r#"{{"ref":{{"type":"ref/resource","uri":"x://{{a}}"}},{argument}}}"#);
        assert_eq!(parse(&resource), Ok(Ref::Resource("x://{a}".to_owned())));
        for (bad, named) in [
            (r#"{"ref":7}"#.to_owned(), "ref must"),
            (r#"{"ref":{"type":"ref/prompt","name":"p"}}"#.to_owned(), "argument"),
            (format!(r#"{{"ref":{{"type":"ref/tool","name":"p"}},{argument}}}"#), "ref.type"),
            (format!(r#"{{"ref":{{"type":"ref/prompt"}},{argument}}}"#), "ref.name"),
            (format!(r#"{{"ref":{{"type":"ref/resource","uri":1}},{argument}}}"#), "ref.uri"),
        ] {
            assert!(parse(&bad).unwrap_err().0.contains(named), "{bad}");
        }
        assert!(name(None).unwrap_err().0.contains("name") && uri(Some(&raw("{}"))).unwrap_err().0.contains("uri"));
    }

    // req: EXEC-06
    #[test]
    fn definitions_keep_everything_but_the_name() {
        let definition = raw(r#"{"x":1e400,"name":"do it","icons":[{"src":"data:,"}],"arguments":[]}"#);
        assert_eq!(
            prompt_definition(&definition, "do_it").as_str(),
            r#"{"x":1e400,"name":"do_it","icons":[{"src":"data:,"}],"arguments":[]}"#
        );
        assert_eq!(prompt_definition(&definition, "do it"), definition);
        assert_eq!(list_result("prompts", [raw("{}"), raw("[]")].iter()).as_str(), r#"{"prompts":[{},[]]}"#);
    }

    // req: EXEC-20 (legacy half)
    #[test]
    fn what_only_the_next_era_knows_is_left_out() {
        let json = raw(
            r#"{"resultType":"complete","contents":[{"uri":"x://1","text":"\u0000","ttlMs":1}],"ttlMs":5,"cacheScope":"public","k":1.0,"_meta":{"io.modelcontextprotocol/serverInfo":{},"a":1e400}}"#,
        );
        let Answer::Result(answer) = relayed_answer(&Outcome::Result { json, is_error: false }) else { panic!() };
        assert_eq!(
            answer.to_text(),
            r#"{"contents":[{"uri":"x://1","text":"\u0000","ttlMs":1}],"k":1.0,"_meta":{"a":1e400}}"#
        );
        let error = raw(r#"{"code":-32002,"message":"no","data":{"uri":"x://2"}}"#);
        assert_eq!(relayed_answer(&Outcome::Error { json: error.clone() }), Answer::error(error));
    }
}
