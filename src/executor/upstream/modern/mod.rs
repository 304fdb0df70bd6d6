//! Upstreams of the modern era, 2026-07-28: each request says for itself what a session of the legacy era has agreed on.
//!
//! Only what differs is here; links, their carriers, lists and names are those of both eras. To add a request whose result
//! may be other than complete: a line in [`expected`].

mod followed;
mod listen;
mod rounds;
mod tasks;

pub(super) use self::followed::Resources;
pub(super) use self::listen::{Subscriptions, follow_lists, take_notification};
pub(super) use self::rounds::{Ended, Rounds};
pub(super) use self::tasks::{abandon, follow};
pub(super) use crate::protocol::modern::client::argument_headers;

use super::link::CAPABILITIES;
use super::requests::Reply;
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::protocol::modern::VERSION;
use crate::protocol::modern::client::{ResultType, heading, result_type, with_client, with_tasks};

/// Asks a server what it is: the probe (EXEC-19).
pub(super) const DISCOVER: &str = "server/discover";
/// The revision that is spoken.
pub(super) const REVISION: &str = VERSION;

/// What a request says of its client.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    /// What its caller serves of what we can carry; `None` for a request of our own, which has no caller.
    pub(super) capabilities: Option<RawJson>,
    /// From which level on log messages are wanted.
    pub(super) log_level: Option<LogLevel>,
    /// The arguments that headers repeat, and their values.
    pub(super) arguments: Vec<(String, String)>,
}

impl Said {
    /// What is said for a caller that declared this.
    pub(super) fn of_caller(declared: &RawJson) -> Self {
        Self { capabilities: Some(ClientCapabilities::parse(declared).carried()), ..Self::default() }
    }

    /// The params with what is said.
    pub(super) fn with(&self, params: Option<&RawJson>) -> RawJson {
        let declared = self.capabilities.as_ref().map_or(CAPABILITIES, RawJson::as_str);
        with_client(params, &with_tasks(declared), self.log_level)
    }

    /// The headers of a request.
    pub(super) fn heading(&self, method: &str, params: Option<&RawJson>) -> Vec<(String, String)> {
        let heading = heading(method, params).into_iter().map(|(name, value)| (name.to_owned(), value));
        heading.chain(self.arguments.iter().cloned()).collect()
    }
}

/// A reply whose type is one that its request may get.
pub(super) fn expected(method: &str, reply: Reply) -> Reply {
    let Reply::Result(result) = &reply else { return reply };
    let how = match (result_type(result), method) {
        (ResultType::Complete, _)
        | (ResultType::InputRequired, "tools/call" | "prompts/get" | "resources/read")
        | (ResultType::Task, "tools/call") => return reply,
        (ResultType::InputRequired, _) => format!("it answers {method} by asking for input"),
        (ResultType::Task, _) => format!("it answers {method} with a task"),
        (ResultType::Unknown(word), _) => format!("its result has the resultType {word:?}, which nobody knows"),
    };
    Reply::Broken(how)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Of EXEC-18 the headers.
    #[test]
    fn a_request_has_the_headers_of_its_method() {
        let heading = |method: &str, params: &str| {
            let heading = Said::default().heading(method, Some(&RawJson::trusted(params)));
            heading.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
        };
        let of = |method: &str| vec![format!("mcp-protocol-version: {VERSION}"), format!("mcp-method: {method}")];
        let named = |method: &str, name: &str| [of(method), vec![format!("mcp-name: {name}")]].concat();
        assert_eq!(heading("tools/list", r#"{"name":"x"}"#), of("tools/list"));
        assert_eq!(heading("tools/call", r#"{"name":"t"}"#), named("tools/call", "t"));
        assert_eq!(heading("prompts/get", r#"{"name":" p"}"#), named("prompts/get", "=?base64?IHA=?="));
        assert_eq!(
            heading("resources/read", r#"{"uri":"x://\u00e9"}"#),
            named("resources/read", "=?base64?eDovL8Op?=")
        );
        assert_eq!(heading("tasks/get", r#"{"taskId":"id"}"#), named("tasks/get", "id"));
        assert_eq!(heading("tasks/cancel", "{}"), of("tasks/cancel"));
    }

    // Of EXEC-18 the types of results.
    #[test]
    fn a_result_of_a_type_that_its_request_cannot_get_is_broken() {
        let is_fine = |method: &str, result_type: &str| {
            let result = RawJson::trusted(format!(r#"{{"resultType":"{result_type}"}}"#));
            matches!(expected(method, Reply::Result(result)), Reply::Result(_))
        };
        for method in ["tools/call", "prompts/get", "resources/read"] {
            assert!(is_fine(method, "complete") && is_fine(method, "input_required") && !is_fine(method, "odd"));
        }
        assert!(is_fine("tools/call", "task") && !is_fine("prompts/get", "task"));
        for method in ["tools/list", "completion/complete", "tasks/get", "server/discover"] {
            assert!(is_fine(method, "complete") && !is_fine(method, "input_required") && !is_fine(method, "task"));
        }
        assert!(matches!(expected("tools/list", Reply::Result(RawJson::trusted("{}"))), Reply::Result(_)));
    }
}
