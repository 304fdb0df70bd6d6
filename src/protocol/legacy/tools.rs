//! `tools/list` and `tools/call`.

use crate::domain::json::RawJson;
use crate::domain::mode::TaskSupport;
use crate::domain::outcome::Outcome;
use crate::domain::pieces::Pieces;
use crate::protocol::jsonrpc::{ErrorObject, Id, TASK_CANCELLED, URLS_NEEDED, error_code, response_of, upstream_error};
use crate::protocol::number::integer;
use crate::protocol::scan::{key_is, string_value};
use crate::protocol::splice::{RawMember, member, named, quoted, replace_member, set_members, spliced};

use super::{InvalidParams, RELATED_TASK, SERVER_INFO, param, progress_token};

/// The largest integer that every JSON reader keeps.
const MOST_TTL_MS: u64 = 1 << 53;

/// What a call names; the rest of its parameters is read after the tool's own rules had their say (HTTP-13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallParams {
    pub name: String,
    /// The raw `task` member, whatever it is.
    pub task: Option<RawJson>,
    /// A string or a number.
    pub progress_token: Option<RawJson>,
}

impl CallParams {
    /// # Errors
    /// If `name` is no string.
    pub fn parse(params: Option<&RawJson>) -> Result<Self, InvalidParams> {
        let name = param(params, "name")
            .and_then(string_value)
            .ok_or_else(|| InvalidParams::new("name must be a string"))?
            .into_owned();
        Ok(Self { name, task: param(params, "task").map(RawJson::trusted), progress_token: progress_token(params) })
    }
}

/// The arguments of a call; `{}` if there are none.
///
/// # Errors
/// If they are no object (EXEC-10).
pub fn arguments(params: Option<&RawJson>) -> Result<RawJson, InvalidParams> {
    match param(params, "arguments") {
        Some(raw) if !raw.starts_with('{') => Err(InvalidParams::new("arguments must be an object")),
        raw => Ok(RawJson::trusted(raw.unwrap_or("{}"))),
    }
}

/// The TTL that a `task` member asks for, in milliseconds; null counts as absent (TASK-02).
///
/// # Errors
/// By TASK-03: if `task` is no object, or `ttl` is not a whole number from 0 to 2^53.
pub fn asked_ttl(task: &RawJson) -> Result<Option<u64>, InvalidParams> {
    if !task.as_str().starts_with('{') {
        return Err(InvalidParams::new("task must be an object"));
    }
    match member(task.as_str(), "ttl") {
        None | Some("null") => Ok(None),
        Some(raw) => integer(raw)
            .and_then(|ttl| u64::try_from(ttl).ok())
            .filter(|&ttl| ttl <= MOST_TTL_MS)
            .map(Some)
            .ok_or_else(|| InvalidParams::new("task.ttl must be a whole number of milliseconds from 0 to 2^53")),
    }
}

/// How a tool is shown in `tools/list`: its upstream's definition with the exposed name and our `execution`.
///
/// `support` is `None` where tasks are not spoken of: older revisions, callers whose tasks are off (CAP-03, CAP-07).
#[must_use]
pub fn tool_definition(definition: &RawJson, exposed: &str, support: Option<TaskSupport>) -> RawJson {
    let named = match member(definition.as_str(), "name").and_then(string_value) {
        Some(name) if name == exposed => definition.clone(),
        _ => replace_member(definition, "name", &quoted(exposed)),
    };
    // This era has objects only.
    let has_object = |schema| member(schema, "type").and_then(string_value).is_some_and(|name| name == "object");
    let named = match member(named.as_str(), "outputSchema") {
        Some(schema) if !has_object(schema) => set_members(&named, &[], &["outputSchema"]),
        _ => named,
    };
    let Some(support) = support else {
        return set_members(&named, &[], &["execution"]);
    };
    let execution = match member(named.as_str(), "execution") {
        Some(raw) if raw.starts_with('{') => RawJson::trusted(raw),
        _ => RawJson::trusted("{}"),
    };
    let execution = replace_member(&execution, "taskSupport", &quoted(support.as_str()));
    replace_member(&named, "execution", execution.as_str())
}

/// The result of a call without what this era does not know: `resultType`, and structured content that is no object
/// (EXEC-20).
pub(super) fn shown_result(result: &RawJson, set: &[(&str, &str)]) -> Pieces {
    let gone = |found: &[RawMember<'_>]| {
        let content = found.iter().rfind(|member| key_is(member.key, STRUCTURED));
        let is_odd = content.is_some_and(|member| !member.value.starts_with('{'));
        if is_odd { vec!["resultType", STRUCTURED] } else { vec!["resultType"] }
    };
    shown(result, &["resultType", STRUCTURED], gone, set)
}

/// A result with these keys of its `_meta` set, without those that would mislead our client, and without the members that
/// `gone` names of `odd` ones. One walk over the text, nothing large is copied.
pub(super) fn shown<'a>(
    result: &RawJson,
    odd: &[&'a str],
    gone: impl FnOnce(&[RawMember<'_>]) -> Vec<&'a str>,
    set: &[(&str, &str)],
) -> Pieces {
    let names: Vec<&str> = odd.iter().copied().chain([META]).collect();
    let found = named(result.as_str(), &names);
    let gone = gone(&found);
    let meta = found.iter().rfind(|member| key_is(member.key, META)).map(|member| member.value);
    let mut meta_text = match meta {
        Some(meta) if meta.starts_with('{') => shown_meta(result, meta, set),
        _ if set.is_empty() => None,
        _ => Some(with_last(&RawJson::trusted("{}"), "{}", &[], set)),
    };
    let mut changed = Vec::new();
    let has_new_meta = meta_text.is_some();
    for member in found {
        if gone.iter().any(|name| key_is(member.key, name)) {
            changed.push((member, None));
        } else if has_new_meta && key_is(member.key, META) {
            changed.push((member, meta_text.take()));
        }
    }
    let last: Vec<_> = meta_text.into_iter().map(|text| (META, text)).collect();
    spliced(result, result.as_str(), &changed, &last)
}

/// `None` if it may stay as it is.
fn shown_meta(result: &RawJson, meta: &str, set: &[(&str, &str)]) -> Option<Pieces> {
    let names: Vec<&str> = FOREIGN_META.into_iter().chain(set.iter().map(|(name, _)| *name)).collect();
    let gone: Vec<_> = named(meta, &names).into_iter().map(|member| (member, None)).collect();
    (!gone.is_empty() || !set.is_empty()).then(|| with_last(result, meta, &gone, set))
}

fn with_last(
    json: &RawJson,
    object: &str,
    changed: &[(RawMember<'_>, Option<Pieces>)],
    set: &[(&str, &str)],
) -> Pieces {
    let last: Vec<_> = set.iter().map(|(name, raw)| (*name, Pieces::from((*raw).to_owned()))).collect();
    spliced(json, object, changed, &last)
}

/// The result of `tools/list`: everything on one page.
#[must_use]
pub fn list_result<'a>(tools: impl Iterator<Item = &'a RawJson>) -> RawJson {
    let mut text = String::from(r#"{"tools":["#);
    for (at, tool) in tools.enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(tool.as_str());
    }
    text.push_str("]}");
    RawJson::trusted(text)
}

/// A tool result of ours that says what was wrong (EXEC-10).
#[must_use]
pub fn error_result(text: &str) -> RawJson {
    RawJson::trusted(format!(r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#, quoted(text)))
}

/// How an outcome answers a request: the `result` or the `error` of its response.
#[derive(Debug)]
#[cfg_attr(test, derive(PartialEq, Eq))]
pub enum Answer {
    Result(Pieces),
    Error(Pieces),
}

impl Answer {
    /// The response to the request of this id.
    #[must_use]
    pub fn to(&self, id: &Id) -> Pieces {
        match self {
            Self::Result(result) => response_of(id, "result", result),
            Self::Error(error) => response_of(id, "error", error),
        }
    }

    #[must_use]
    pub fn into_value(self) -> Pieces {
        let (Self::Result(value) | Self::Error(value)) = self;
        value
    }

    /// An error of ours, or one that arrived.
    #[must_use]
    pub fn error(error: RawJson) -> Self {
        Self::Error(error.into())
    }
}

/// The answer of a plain call (LIFE-11): the upstream's, without what only its own connection or the next era means.
#[must_use]
pub fn plain_answer(outcome: &Outcome) -> Answer {
    match outcome {
        Outcome::Result { json, .. } => Answer::Result(shown_result(json, &[])),
        Outcome::Error { json } => Answer::error(json.clone()),
        Outcome::Cancelled => Answer::error(ErrorObject::new(TASK_CANCELLED, "the call was cancelled").to_raw()),
    }
}

/// The error that an outcome is told by to a client that visits no URLs, where that is another than its own (MOD-16).
#[must_use]
pub fn without_urls(outcome: &Outcome) -> Option<Answer> {
    match outcome {
        Outcome::Error { json } if error_code(json) == Some(URLS_NEEDED) => Some(Answer::error(upstream_error(json))),
        _ => None,
    }
}

/// Keys of a result's `_meta` that an upstream may have set and that would mislead our client.
pub(in crate::protocol) const FOREIGN_META: [&str; 2] = [RELATED_TASK, SERVER_INFO];
const META: &str = "_meta";
const STRUCTURED: &str = "structuredContent";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(text: &str) -> RawJson {
        RawJson::trusted(text)
    }

    // req: TASK-03
    #[test]
    fn a_ttl_is_a_whole_number_from_0_to_2_to_the_53() {
        let ttl = |text: &str| asked_ttl(&raw(&format!(r#"{{"ttl":{text}}}"#)));
        let good: [(&str, Option<u64>); 11] = [
            ("null", None),
            ("0", Some(0)),
            ("-0", Some(0)),
            ("0.000e99", Some(0)),
            ("60000", Some(60_000)),
            ("60000.0", Some(60_000)),
            ("6e4", Some(60_000)),
            ("0.6E+5", Some(60_000)),
            ("600000e-1", Some(60_000)),
            ("9007199254740992", Some(1 << 53)),
            ("9007199254740992.000", Some(1 << 53)),
        ];
        for (text, value) in good {
            assert_eq!(ttl(text).unwrap(), value, "{text}");
        }
        let bad = [
            "-1",
            "0.5",
            "60000.5",
            "1e-1",
            "9007199254740993",
            "9007199254740992.5",
            "1e400",
            "1e999999999999999999999",
            "1e-400",
            r#""60000""#,
            "true",
            "[]",
            "{}",
        ];
        for text in bad {
            assert!(ttl(text).unwrap_err().0.contains("ttl"), "{text}");
        }
        for task in ["null", "true", "[]", r#""x""#, "1"] {
            assert!(asked_ttl(&raw(task)).is_err(), "{task}");
        }
        assert_eq!(asked_ttl(&raw(r#"{"pollInterval":1}"#)), Ok(None));
    }

    #[test]
    fn a_call_is_read_raw() {
        let params = raw(r#"{"name":"a\u0062","arguments":{"x":1e400},"task":7,"_meta":{"progressToken":1.0}}"#);
        let call = CallParams::parse(Some(&params)).unwrap();
        assert_eq!(call.name, "ab");
        assert_eq!(call.task, Some(raw("7")));
        assert_eq!(call.progress_token, Some(raw("1.0")));
        assert_eq!(arguments(Some(&params)).unwrap().as_str(), r#"{"x":1e400}"#);
        assert_eq!(arguments(Some(&raw("{}"))).unwrap().as_str(), "{}");
        let odd = raw(r#"{"name":"a","_meta":{"progressToken":null}}"#);
        assert_eq!(CallParams::parse(Some(&odd)).unwrap().progress_token, None);
        for params in [None, Some(&raw(r#"{"name":1}"#))] {
            assert!(CallParams::parse(params).unwrap_err().0.contains("name"));
        }
    }

    // req: EXEC-10
    #[test]
    fn arguments_are_an_object() {
        for bad in ["null", "[]", "1", r#""{}""#] {
            let params = raw(&format!(r#"{{"arguments":{bad}}}"#));
            assert!(arguments(Some(&params)).unwrap_err().0.contains("arguments"), "{bad}");
        }
    }

    // req: CAP-03, EXEC-01, EXEC-20 (of EXEC-20 the legacy half)
    #[test]
    fn a_definition_keeps_everything_but_name_and_execution() {
        let upstream = raw(
            r#"{"name":"do it","x":1e400,"execution":{"taskSupport":"forbidden","y":1.0},"inputSchema":{"type":"object"}}"#,
        );
        assert_eq!(
            tool_definition(&upstream, "do_it", Some(TaskSupport::Optional)).as_str(),
            r#"{"name":"do_it","x":1e400,"execution":{"taskSupport":"optional","y":1.0},"inputSchema":{"type":"object"}}"#
        );
        assert_eq!(
            tool_definition(&upstream, "do it", None).as_str(),
            r#"{"name":"do it","x":1e400,"inputSchema":{"type":"object"}}"#
        );
        assert_eq!(
            tool_definition(&raw(r#"{"name":"a"}"#), "a", Some(TaskSupport::Required)).as_str(),
            r#"{"name":"a","execution":{"taskSupport":"required"}}"#
        );
        let array = raw(r#"{"name":"a","outputSchema":{"type":"array","items":{}},"k":1.0}"#);
        assert_eq!(tool_definition(&array, "a", None).as_str(), r#"{"name":"a","k":1.0}"#);
        let object = raw(r#"{"name":"a","outputSchema":{"x":1e400,"type":"object"},"k":1.0}"#);
        assert_eq!(tool_definition(&object, "a", None), object);
        assert_eq!(list_result([raw("{}"), raw("[]")].iter()).as_str(), r#"{"tools":[{},[]]}"#);
    }

    // req: LIFE-11
    #[test]
    fn a_plain_answer_is_the_upstreams_own() {
        let json = raw(
            r#"{"content":[{"n":1.0}],"resultType":"complete","_meta":{"a":1e400,"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"io.modelcontextprotocol/serverInfo":{}},"\ud800":"\u0000"}"#,
        );
        let Answer::Result(answer) = plain_answer(&Outcome::Result { json, is_error: false }) else { panic!() };
        assert_eq!(answer.to_text(), r#"{"content":[{"n":1.0}],"_meta":{"a":1e400},"\ud800":"\u0000"}"#);
        let error = raw(r#"{"code":-32011,"message":"m","data":1e400}"#);
        assert_eq!(plain_answer(&Outcome::Error { json: error.clone() }), Answer::error(error));
    }

    // req: EXEC-20 (legacy half)
    #[test]
    fn structured_content_that_is_no_object_is_left_out() {
        let valid = |text: &str| shown_result(&raw(text), &[]).to_text();
        for kept in [r#"{"content":[],"structuredContent":{"a":1.0}}"#, r#"{"content":[1e400]}"#] {
            assert_eq!(valid(kept), kept);
        }
        for odd in ["[1]", "7", "null", r#""x""#] {
            assert_eq!(valid(&format!(r#"{{"structuredContent":{odd},"content":[1e400]}}"#)), r#"{"content":[1e400]}"#);
        }
    }

    #[test]
    fn an_error_result_carries_the_text() {
        assert_eq!(
            error_result("a \"b\"").as_str(),
            r#"{"content":[{"type":"text","text":"a \"b\""}],"isError":true}"#
        );
    }

    proptest! {
        // req: TASK-03
        #[test]
        fn every_whole_number_is_read_exactly(value in 0_u64..=1 << 53, zeros in 0_usize..5) {
            let task = raw(&format!(r#"{{"ttl":{value}.{}}}"#, "0".repeat(zeros + 1)));
            prop_assert_eq!(asked_ttl(&task), Ok(Some(value)));
        }
    }
}
