//! What a client of this era says with each request and reads of a result: to upstreams this service is one (EXEC-18).

use std::collections::HashSet;

use crate::domain::input::{InputKind, Question};
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::domain::text::storable;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, members, quoted, set_meta};

use super::headers::{METHOD_HEADER, NAME_HEADER, VERSION_HEADER, encoded};
use super::meta::{CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, VERSION_KEY};
use super::param_headers::ParamHeader;
use super::results::OURS;
use super::{Method, NameHeader, TASKS_EXTENSION, VERSION};

/// How much of a word that is not known is shown.
const MOST_SHOWN: usize = 60;

/// The params of a request with what each says of its client: the version, who it is, what it serves (`capabilities`, an
/// object), and from which level on it takes log messages of this request.
#[must_use]
pub fn with_client(params: Option<&RawJson>, capabilities: &str, log_level: Option<LogLevel>) -> RawJson {
    let (version, level) = (quoted(VERSION), log_level.map(|level| quoted(level.as_str())));
    let mut said = vec![(VERSION_KEY, version.as_str()), (CLIENT_INFO_KEY, OURS), (CAPABILITIES_KEY, capabilities)];
    said.extend(level.as_deref().map(|level| (LOG_LEVEL_KEY, level)));
    let empty = RawJson::trusted("{}");
    set_meta(params.unwrap_or(&empty), &said, &[LOG_LEVEL_KEY])
}

/// The capabilities of a client that serves `declared` (an object without extensions) and takes tasks.
#[must_use]
pub fn with_tasks(declared: &str) -> String {
    let rest = declared.strip_prefix('{').unwrap_or("}");
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    format!(r#"{{"extensions":{{"{TASKS_EXTENSION}":{{}}}}{comma}{rest}"#)
}

/// The headers of a request, which repeat what it says.
#[must_use]
pub fn heading(method: &str, params: Option<&RawJson>) -> Vec<(&'static str, String)> {
    let mut heading = vec![(VERSION_HEADER, VERSION.to_owned()), (METHOD_HEADER, method.to_owned())];
    let named = match Method::from_name(method).map(Method::name_header) {
        Some(NameHeader::Required(name) | NameHeader::IfPresent(name)) => Some(name),
        Some(NameHeader::None) | None => None,
    };
    let name = named.and_then(|named| string_value(member(params?.as_str(), named)?));
    heading.extend(name.map(|name| (NAME_HEADER, encoded(&name).into_owned())));
    heading
}

/// The headers that repeat arguments of a call.
#[must_use]
pub fn argument_headers(declared: &[ParamHeader], params: &RawJson) -> Vec<(String, String)> {
    let arguments = member(params.as_str(), "arguments").unwrap_or("{}");
    declared.iter().filter_map(|header| Some((header.header.clone(), header.repeats(arguments)?))).collect()
}

/// What a result is, by its `resultType`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultType {
    /// Also where it does not say: older servers do not.
    Complete,
    InputRequired,
    Task,
    /// What nobody can understand; a part of the word.
    Unknown(String),
}

#[must_use]
pub fn result_type(result: &RawJson) -> ResultType {
    let Some(raw) = member(result.as_str(), "resultType") else { return ResultType::Complete };
    match string_value(raw).as_deref() {
        Some("complete") => ResultType::Complete,
        Some("input_required") => ResultType::InputRequired,
        Some("task") => ResultType::Task,
        other => ResultType::Unknown(storable(other.unwrap_or(raw), MOST_SHOWN)),
    }
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovered {
    pub versions: Vec<String>,
    /// An object.
    pub capabilities: RawJson,
}

impl Discovered {
    /// `None` if the result is not one of `server/discover`.
    #[must_use]
    pub fn read(result: &RawJson) -> Option<Self> {
        let capabilities = member(result.as_str(), "capabilities").filter(|raw| raw.starts_with('{'))?;
        let versions = versions(member(result.as_str(), "supportedVersions")?)?;
        Some(Self { versions, capabilities: RawJson::trusted(capabilities) })
    }
}

/// The versions that a server gives with the error -32022; none if it gives no list.
#[must_use]
pub fn supported_by(error: &RawJson) -> Vec<String> {
    let list = member(error.as_str(), "data").and_then(|data| member(data, "supported"));
    list.and_then(versions).unwrap_or_default()
}

fn versions(list: &str) -> Option<Vec<String>> {
    let is_list = list.starts_with('[');
    is_list.then(|| items(list).filter_map(|item| Some(storable(&string_value(item)?, MOST_SHOWN))).collect())
}

/// One of the questions of a result or a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequest {
    /// The JSON string that arrived, with its quotes: opaque.
    pub key: String,
    pub question: Question,
}

impl InputRequest {
    /// The key as a text.
    #[must_use]
    pub fn name(&self) -> String {
        string_value(&self.key).unwrap_or_default().into_owned()
    }
}

/// What a result asks before its request can be completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequired {
    pub requests: Vec<InputRequest>,
    /// The JSON string that arrived, with its quotes: the retry has exactly this.
    pub state: Option<RawJson>,
}

impl InputRequired {
    /// # Errors
    /// What of the result breaks the protocol.
    pub fn read(result: &RawJson) -> Result<Self, String> {
        let requests = member(result.as_str(), "inputRequests").map(input_requests).transpose()?;
        let state = match member(result.as_str(), "requestState") {
            None => None,
            Some(raw) if raw.starts_with('"') => Some(RawJson::trusted(raw)),
            Some(_) => return Err("its requestState is no string".to_owned()),
        };
        if requests.is_none() && state.is_none() {
            return Err("it asks for input with neither inputRequests nor requestState".to_owned());
        }
        Ok(Self { requests: requests.unwrap_or_default(), state })
    }
}

/// The questions of an `inputRequests`.
///
/// # Errors
/// What of it breaks the protocol.
pub fn input_requests(raw: &str) -> Result<Vec<InputRequest>, String> {
    if !raw.starts_with('{') {
        return Err("its inputRequests is no object".to_owned());
    }
    let mut keys = HashSet::new();
    members(raw)
        .map(|entry| {
            let key = format!("\"{}\"", entry.key);
            if !keys.insert(string_value(&key).map(std::borrow::Cow::into_owned)) {
                return Err("its inputRequests has one key twice".to_owned());
            }
            let method = member(entry.value, "method").and_then(string_value).unwrap_or_default();
            let kind = InputKind::from_method(&method).ok_or_else(|| {
                format!("its inputRequests has the method {:?}, which is none for input", storable(&method, MOST_SHOWN))
            })?;
            let params = member(entry.value, "params").filter(|raw| raw.starts_with('{')).map(RawJson::trusted);
            Ok(InputRequest { key, question: Question { kind, params } })
        })
        .collect()
}

/// The object of answers by their keys.
#[must_use]
pub fn input_responses<'a>(answers: impl Iterator<Item = (&'a String, &'a RawJson)>) -> String {
    let answers: Vec<_> = answers.map(|(key, answer)| format!("{key}:{}", answer.as_str())).collect();
    format!("{{{}}}", answers.join(","))
}

/// The raw id of the task that a result is about.
#[must_use]
pub fn task_id(result: &RawJson) -> Option<RawJson> {
    let id = member(result.as_str(), "taskId")?;
    (id.starts_with('"') && id.len() > 2).then(|| RawJson::trusted(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawJson {
        RawJson::trusted(text)
    }

    #[test]
    fn each_request_says_its_version_and_what_its_client_serves() {
        let said = with_client(
            Some(&raw(r#"{"name":"t","_meta":{"a":1e400,"io.modelcontextprotocol/logLevel":"debug"}}"#)),
            &with_tasks("{}"),
            None,
        );
        assert_eq!(
            said.as_str(),
            format!(
                r#"{{"name":"t","_meta":{{"a":1e400,"{VERSION_KEY}":"2026-07-28","{CLIENT_INFO_KEY}":{OURS},"{CAPABILITIES_KEY}":{{"extensions":{{"{TASKS_EXTENSION}":{{}}}}}}}}}}"#
            )
        );
        let said = with_client(None, &with_tasks(r#"{"roots":{}}"#), Some(LogLevel::Notice));
        assert!(said.as_str().contains(r#""extensions":{"io.modelcontextprotocol/tasks":{}},"roots":{}}"#));
        assert!(said.as_str().contains(r#""io.modelcontextprotocol/logLevel":"notice""#), "{}", said.as_str());
    }

    #[test]
    fn a_result_is_complete_unless_it_says_otherwise() {
        let of = |text: &str| result_type(&raw(text));
        assert_eq!(of("{}"), ResultType::Complete);
        assert_eq!(of(r#"{"resultType":"complete"}"#), ResultType::Complete);
        assert_eq!(of(r#"{"resultType":"input_requ\u0069red"}"#), ResultType::InputRequired);
        assert_eq!(of(r#"{"resultType":"task"}"#), ResultType::Task);
        assert_eq!(of(r#"{"resultType":"Complete"}"#), ResultType::Unknown("Complete".to_owned()));
        assert_eq!(of(r#"{"resultType":null}"#), ResultType::Unknown("null".to_owned()));
    }

    #[test]
    fn what_is_asked_is_read_with_keys_and_state_as_they_arrived() {
        let asked = InputRequired::read(&raw(
            r#"{"inputRequests":{"\u0061":{"method":"roots/list"},"b":{"method":"elicitation/create","params":{"n":1e400}}},"requestState":"\ud800"}"#,
        ));
        let asked = asked.unwrap();
        let shown: Vec<_> = asked.requests.iter().map(|one| (one.key.as_str(), one.question.kind)).collect();
        assert_eq!(shown, [(r#""\u0061""#, InputKind::Roots), (r#""b""#, InputKind::Elicitation)]);
        assert_eq!(asked.requests[1].question.params, Some(raw(r#"{"n":1e400}"#)));
        assert_eq!(asked.state, Some(raw(r#""\ud800""#)));
        let only_state = InputRequired::read(&raw(r#"{"requestState":""}"#)).unwrap();
        assert!(only_state.requests.is_empty() && only_state.state.is_some());
        for (bad, named) in [
            ("{}", "neither"),
            (r#"{"requestState":7}"#, "requestState"),
            (r#"{"inputRequests":[]}"#, "inputRequests"),
            (r#"{"inputRequests":{"a":{"method":"ping"}}}"#, "ping"),
            (r#"{"inputRequests":{"a":{"method":"roots/list"},"\u0061":{"method":"roots/list"}}}"#, "twice"),
        ] {
            assert!(InputRequired::read(&raw(bad)).unwrap_err().contains(named), "{bad}");
        }
    }

    #[test]
    fn a_server_is_known_by_its_versions_and_capabilities() {
        let found = Discovered::read(&raw(r#"{"supportedVersions":["2026-07-28",7],"capabilities":{"tools":{}}}"#));
        assert_eq!(found.unwrap().versions, ["2026-07-28"]);
        for other in ["{}", r#"{"supportedVersions":["x"]}"#, r#"{"supportedVersions":"x","capabilities":{}}"#] {
            assert_eq!(Discovered::read(&raw(other)), None, "{other}");
        }
        assert_eq!(supported_by(&raw(r#"{"code":-32022,"data":{"supported":["a","b"]}}"#)), ["a", "b"]);
        assert!(supported_by(&raw(r#"{"code":-32022}"#)).is_empty());
    }

    #[test]
    fn a_task_is_named_flat() {
        assert_eq!(task_id(&raw(r#"{"taskId":"\u0061","status":"working"}"#)), Some(raw(r#""\u0061""#)));
        for none in [r#"{"taskId":7}"#, r#"{"taskId":""}"#, "{}"] {
            assert_eq!(task_id(&raw(none)), None, "{none}");
        }
    }
}
