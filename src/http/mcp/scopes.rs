//! Which scopes each message and each stream needs (AUTH-10). To add a method: a line here, without which this does not
//! compile.

use crate::domain::context::AuthContext;
use crate::domain::event_id::StreamKind;
use crate::domain::json::RawJson;
use crate::domain::scope::Scope;
use crate::http::error::Rejection;
use crate::protocol::jsonrpc::Message;
use crate::protocol::modern::listen::Filter;
use crate::protocol::{legacy, modern};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// A good token.
    Nothing,
    /// One of these; a caller without is told of the first.
    Any(&'static [Scope]),
    All(&'static [Scope]),
}

/// Of a session: whatever its holder may do, it is of use to nobody who may do nothing.
const SESSION: Need = Need::Any(&[Scope::ToolsCall, Scope::TasksRead, Scope::TasksWrite]);
const CALL: Need = Need::All(&[Scope::ToolsCall]);
const READ: Need = Need::All(&[Scope::TasksRead]);
const WRITE: Need = Need::All(&[Scope::TasksWrite]);
const CALL_AND_READ: Need = Need::All(&[Scope::ToolsCall, Scope::TasksRead]);

/// Looked at once it is known what a message is and before anything in it has a say (HTTP-13).
///
/// # Errors
/// What lacks.
pub(super) fn check(caller: &AuthContext, message: &Message, is_modern: bool) -> Result<(), Rejection> {
    needed(message, is_modern).check(caller)
}

/// For a session's own stream, and for its end.
///
/// # Errors
/// What lacks.
pub(super) fn check_session(caller: &AuthContext) -> Result<(), Rejection> {
    SESSION.check(caller)
}

/// For what a stream carries that is resumed.
///
/// # Errors
/// What lacks.
pub(super) fn check_resume(caller: &AuthContext, kind: &StreamKind) -> Result<(), Rejection> {
    let need = match kind {
        StreamKind::Session => SESSION,
        StreamKind::Call { .. } => CALL,
        StreamKind::Result { .. } => READ,
    };
    need.check(caller)
}

/// For a call that is to be a task: its caller could not read what comes of it otherwise.
///
/// # Errors
/// What lacks.
pub(super) fn check_task(caller: &AuthContext) -> Result<(), Rejection> {
    CALL_AND_READ.check(caller)
}

impl Need {
    fn check(self, caller: &AuthContext) -> Result<(), Rejection> {
        let (is_met, scopes) = match self {
            Self::Nothing => return Ok(()),
            Self::Any(scopes) => (scopes.iter().any(|scope| caller.may(*scope)), scopes.get(..1).unwrap_or(scopes)),
            Self::All(scopes) => (scopes.iter().all(|scope| caller.may(*scope)), scopes),
        };
        if is_met { Ok(()) } else { Err(Rejection::ScopeMissing { scopes }) }
    }
}

/// Methods that nobody knows are refused elsewhere.
fn needed(message: &Message, is_modern: bool) -> Need {
    match message {
        Message::Request(request) if is_modern => modern::Method::from_name(&request.method)
            .map_or(Need::Nothing, |method| of_modern(method, request.params.as_ref())),
        Message::Request(request) => legacy::Method::from_name(&request.method).map_or(Need::Nothing, of_legacy),
        // Among them the cancelling of a request, which only who sent it can do: whoever may begin something may stop it.
        Message::Notification(_) => Need::Nothing,
        // What was asked may be of a task or of a plain call.
        Message::Response(_) => Need::Any(&[Scope::TasksWrite, Scope::ToolsCall]),
    }
}

fn of_legacy(method: legacy::Method) -> Need {
    use legacy::Method;
    match method {
        Method::Ping | Method::SetLogLevel => Need::Nothing,
        Method::Initialize => SESSION,
        Method::ToolsList
        | Method::ToolsCall
        | Method::PromptsList
        | Method::PromptsGet
        | Method::ResourcesList
        | Method::ResourceTemplatesList
        | Method::ResourcesRead
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::Complete => CALL,
        Method::TasksGet | Method::TasksResult | Method::TasksList => READ,
        Method::TasksCancel => WRITE,
    }
}

fn of_modern(method: modern::Method, params: Option<&RawJson>) -> Need {
    use modern::Method;
    match method {
        Method::Discover => Need::Nothing,
        Method::ToolsList
        | Method::ToolsCall
        | Method::PromptsList
        | Method::PromptsGet
        | Method::ResourcesList
        | Method::ResourceTemplatesList
        | Method::ResourcesRead
        | Method::Complete => CALL,
        Method::Listen => of_news(params),
        Method::TasksGet => READ,
        Method::TasksUpdate | Method::TasksCancel => WRITE,
    }
}

/// By what is to be heard. A filter that cannot be read is refused later, when its caller may be told why.
fn of_news(params: Option<&RawJson>) -> Need {
    let filter = params.and_then(|params| Filter::parse(params, usize::MAX).ok()).unwrap_or_default();
    let of_offers = filter.tools || filter.prompts || filter.resources || filter.updates.is_some();
    match (of_offers, filter.tasks.is_some()) {
        (false, false) => SESSION,
        (true, false) => CALL,
        (false, true) => READ,
        (true, true) => CALL_AND_READ,
    }
}
