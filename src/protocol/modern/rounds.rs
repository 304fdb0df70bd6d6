//! Results that ask, and the requests that come back with what was asked for (MOD-12).

use std::borrow::Cow;

use crate::domain::input::{InputKind, Question};
use crate::domain::json::RawJson;
use crate::domain::question::problem;
use crate::domain::round::RequestDigest;
use crate::protocol::jsonrpc::{URLS_NEEDED, error_code};
use crate::protocol::legacy::InvalidParams;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, members, quoted, replace_member, set_members};

use super::{Method, results};

/// Answers by their keys, each as it arrived.
pub type Responses = Vec<(String, RawJson)>;

/// The result that asks; without a state the same request is simply made again.
#[must_use]
pub fn input_required<'a>(
    questions: impl Iterator<Item = (Cow<'a, str>, &'a Question)>,
    state: Option<&str>,
) -> RawJson {
    let state = state.map(|state| format!(r#","requestState":{}"#, quoted(state))).unwrap_or_default();
    let result = format!(r#"{{"inputRequests":{}{state}}}"#, input_requests(questions));
    results::of_type("input_required", &RawJson::trusted(result))
}

/// Questions by their keys.
pub(super) fn input_requests<'a>(questions: impl Iterator<Item = (Cow<'a, str>, &'a Question)>) -> String {
    let requests: Vec<_> =
        questions.map(|(key, question)| format!("{}:{}", quoted(&key), input_request(question))).collect();
    format!("{{{}}}", requests.join(","))
}

fn input_request(question: &Question) -> String {
    let params = question.params.as_ref().map(|params| {
        // This era has no ids of elicitations (EXEC-20).
        let gone: &[&str] = if question.kind == InputKind::Elicitation { &["elicitationId"] } else { &[] };
        format!(r#","params":{}"#, set_members(params, &[], gone).as_str())
    });
    format!(r#"{{"method":"{}"{}}}"#, question.kind.method(), params.unwrap_or_default())
}

/// What a client declares that visits them.
pub const URL_MODE: &str = r#"{"elicitation":{"url":{}}}"#;

/// What such an error asks for, by keys; `None` for other errors, and for one that asks for nothing, or for what cannot be asked
/// (MOD-16).
#[must_use]
pub fn urls_needed(error: &RawJson) -> Option<Vec<(String, Question)>> {
    if error_code(error) != Some(URLS_NEEDED) {
        return None;
    }
    let wanted = items(member(member(error.as_str(), "data")?, "elicitations")?);
    let mut asked: Vec<(String, Question)> = Vec::new();
    for params in wanted {
        let question = Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(params)) };
        let is_url = member(params, "mode").and_then(string_value).is_some_and(|mode| mode == "url");
        if !is_url || problem(&question).is_some() {
            return None;
        }
        let key = member(params, "elicitationId").and_then(string_value)?.into_owned();
        // One that is asked for twice is visited once.
        if !asked.iter().any(|(other, _)| *other == key) {
            asked.push((key, question));
        }
    }
    (!asked.is_empty()).then_some(asked)
}

/// What makes a request the same when it comes again; `None` of methods whose answers do not ask.
#[must_use]
pub fn digest(method: Method, params: &RawJson) -> Option<RequestDigest> {
    let text = |name| member(params.as_str(), name).and_then(string_value).unwrap_or_default();
    let arguments = || member(params.as_str(), "arguments").unwrap_or("{}");
    Some(match method {
        Method::ToolsCall | Method::PromptsGet => RequestDigest::new(method.as_str(), &text("name"), arguments()),
        Method::ResourcesRead => RequestDigest::new(method.as_str(), &text("uri"), ""),
        _ => return None,
    })
}

/// The state that a request gives back, with its answers; `None` if it gives none back.
///
/// # Errors
/// If `requestState` is no string, or `inputResponses` no object.
pub fn retry(params: &RawJson) -> Result<Option<(String, Responses)>, InvalidParams> {
    let given = member(params.as_str(), "inputResponses").map(|_| input_responses(params)).transpose()?;
    let Some(state) = member(params.as_str(), "requestState") else { return Ok(None) };
    let state = string_value(state).ok_or_else(|| InvalidParams("requestState must be a string".to_owned()))?;
    Ok(Some((state.into_owned(), given.unwrap_or_default())))
}

/// Whether a request comes back from a round, whoever keeps that: with a state, with answers, or with both.
#[must_use]
pub fn is_retry(params: &RawJson) -> bool {
    ["requestState", "inputResponses"].iter().any(|name| member(params.as_str(), name).is_some())
}

/// The params of a request for the upstream that keeps the state of its round: with its own (a JSON string), if it gave one.
#[must_use]
pub fn passed_on(params: &RawJson, state: Option<&RawJson>) -> RawJson {
    match state {
        Some(state) => replace_member(params, "requestState", state.as_str()),
        None => set_members(params, &[], &["requestState"]),
    }
}

/// The answers of a request by their keys.
///
/// # Errors
/// If `inputResponses` is missing or no object (INPUT-09).
pub fn input_responses(params: &RawJson) -> Result<Responses, InvalidParams> {
    let responses = member(params.as_str(), "inputResponses").filter(|raw| raw.starts_with('{'));
    let responses = responses.ok_or_else(|| InvalidParams("inputResponses must be an object".to_owned()))?;
    let key = |written: &str| string_value(&format!("\"{written}\"")).map(Cow::into_owned);
    Ok(members(responses).filter_map(|member| Some((key(member.key)?, RawJson::trusted(member.value)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawJson {
        RawJson::trusted(text)
    }

    // req: INPUT-09
    #[test]
    fn input_responses_are_an_object() {
        let read = |params: &str| input_responses(&raw(params));
        for bad in ["{}", r#"{"inputResponses":null}"#, r#"{"inputResponses":[]}"#, r#"{"inputResponses":"x"}"#] {
            assert!(read(bad).unwrap_err().0.contains("inputResponses"), "{bad}");
        }
        assert_eq!(read(r#"{"inputResponses":{}}"#), Ok(Vec::new()));
        let some = read(r#"{"inputResponses":{"a\u0062":{"n":1e400}, "\ud800":{},"c":7}}"#).unwrap();
        let some: Vec<_> = some.iter().map(|(key, json)| (key.as_str(), json.as_str())).collect();
        assert_eq!(some, [("ab", r#"{"n":1e400}"#), ("\u{FFFD}", "{}"), ("c", "7")]);
    }

    #[test]
    fn a_retry_is_told_from_a_first_request_by_its_state() {
        let read = |params: &str| retry(&raw(params));
        assert_eq!(read("{}"), Ok(None));
        assert_eq!(read(r#"{"inputResponses":{"a":{}}}"#), Ok(None), "these are the upstream's");
        assert_eq!(read(r#"{"requestState":"s"}"#), Ok(Some(("s".to_owned(), Vec::new()))));
        let both = read(r#"{"requestState":"s","inputResponses":{"a":1.0}}"#).unwrap().unwrap();
        assert_eq!(both, ("s".to_owned(), vec![("a".to_owned(), raw("1.0"))]));
        for (bad, named) in [
            (r#"{"requestState":7}"#, "requestState"),
            (r#"{"requestState":null}"#, "requestState"),
            (r#"{"requestState":"s","inputResponses":[]}"#, "inputResponses"),
            (r#"{"inputResponses":null}"#, "inputResponses"),
        ] {
            assert!(read(bad).unwrap_err().0.contains(named), "{bad}");
        }
        for again in [r#"{"requestState":"s"}"#, r#"{"inputResponses":{}}"#] {
            assert!(is_retry(&raw(again)), "{again}");
        }
        assert!(!is_retry(&raw(r#"{"uri":"requestState"}"#)));
    }

    #[test]
    fn a_question_keeps_its_text_and_loses_what_is_of_the_other_era() {
        let question = Question {
            kind: InputKind::Elicitation,
            params: Some(raw(
                r#"{"mode":"url","elicitationId":"e","url":"https://a.example/","message":"\u0000","x":1e400}"#,
            )),
        };
        let asked = input_required([("a\"b".into(), &question)].into_iter(), Some("st\"ate"));
        let expected = r#"{"inputRequests":{"a\"b":{"method":"elicitation/create","params":{"mode":"url","url":"https://a.example/","message":"\u0000","x":1e400}}},"requestState":"st\"ate","resultType":"input_required","_meta":"#;
        assert!(asked.as_str().starts_with(expected), "{}", asked.as_str());
        assert!(!input_required(std::iter::empty(), None).as_str().contains("requestState"));
    }

    #[test]
    fn only_urls_that_can_be_visited_are_asked_for() {
        let url =
            |id: &str, url: &str| format!(r#"{{"mode":"url","elicitationId":"{id}","url":"{url}","message":"m"}}"#);
        let error = |code: i64, elicitations: &str| {
            urls_needed(&raw(&format!(r#"{{"code":{code},"message":"m","data":{{"elicitations":[{elicitations}]}}}}"#)))
        };
        let (a, b) = (url("a", "https://a.example/x"), url("b", "http://b.example"));
        let keys = |asked: Vec<(String, Question)>| asked.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(error(-32042, &format!("{a},{b},{a}")).map(keys), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(error(-32041, &a), None);
        for bad in ["", r#"{"mode":"form"}"#, &url("a", "javascript:x"), &format!("{a},7"), &a.replace("url", "uri")] {
            assert_eq!(error(-32042, bad), None, "{bad}");
        }
        assert_eq!(urls_needed(&raw(r#"{"code":-32042,"message":"m"}"#)), None);
    }
}
