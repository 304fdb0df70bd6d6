//! The stateless era: refuses in its order what is wrong with a request (HTTP-13), asks the engine, encodes its answer.
//!
//! A request passes `_meta`, the version, the headers, the method; then what each method itself checks, in a file by topic.

mod call;
mod discover;
mod listen;
mod lists;
mod relay;
mod tasks;

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tracing::Instrument;

use super::answer::{self, Ending};
use crate::domain::context::AuthContext;
use crate::domain::json::RawJson;
use crate::engine::{Asked, Caller, Logs, Passed, Retry};
use crate::http::Front;
use crate::http::error::Rejection;
use crate::http::error::modern::Refused;
use crate::http::middleware::access_log::Served;
use crate::http::middleware::auth::Verified;
use crate::http::middleware::media::Accepts;
use crate::protocol::jsonrpc::{Id, Message, Request, write_error, write_result};
use crate::protocol::modern::headers::{
    METHOD_HEADER, Mismatch, NAME_HEADER, VERSION_HEADER, check_encoded, check_plain,
};
use crate::protocol::modern::meta::{RequestMeta, TraceParent};
use crate::protocol::modern::{
    Method, NameHeader, TASKS_EXTENSION, VERSION, errors, is_spoken as is_modern, names_newer, rounds,
};
use crate::protocol::scan::string_value;
use crate::protocol::splice::member;

/// Whether a message is of this era (MOD-09).
pub(super) fn is_spoken(headers: &HeaderMap, message: &Message) -> bool {
    let (method, params) = match message {
        Message::Request(request) => (Some(request.method.as_str()), request.params.as_ref()),
        Message::Notification(notification) => (Some(notification.method.as_str()), notification.params.as_ref()),
        Message::Response(_) => (None, None),
    };
    is_modern(method, params, &values(headers, VERSION_HEADER))
}

/// Whether a request without a body is of this era: it has nothing but POST (MOD-08).
pub(super) fn is_named(headers: &HeaderMap) -> bool {
    names_newer(&values(headers, VERSION_HEADER))
}

/// The answer to GET and DELETE.
pub(super) fn method_not_allowed() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, HeaderValue::from_static("POST"))]).into_response()
}

/// One message of this era.
pub(super) async fn post(
    front: Arc<Front>,
    verified: Verified,
    headers: &HeaderMap,
    accepts: Accepts,
    message: Message,
) -> Response {
    let request = match (message, &verified) {
        (Message::Request(request), _) => request,
        // Here a client that leaves cancels its request; no notification means anything.
        (Message::Notification(_), Verified::Caller(_)) => return StatusCode::ACCEPTED.into_response(),
        (Message::Notification(_), Verified::Unknown) => return Rejection::Unavailable.to_response(None),
        (Message::Response(_), _) => return Rejection::UnexpectedResponse.to_response(None),
    };
    let (id, method) = (request.id.clone(), Method::from_name(&request.method));
    let mut served = Served { method: method.map(Method::as_str), ..Served::default() };
    let opened = match verified {
        Verified::Caller(auth) => Exchange::open(front, auth, headers, accepts, request),
        Verified::Unknown => Err(Refused::unavailable()),
    };
    let answered = match opened {
        Ok(exchange) => {
            served.trace = exchange.meta.trace.map(|trace| trace.trace_id);
            let span = span(exchange.meta.trace);
            exchange.serve().instrument(span).await
        }
        Err(refused) => Err(refused),
    };
    let mut response = answered.unwrap_or_else(|refused| refusal(&id, &refused).into_response(accepts));
    response.extensions_mut().insert(served);
    response
}

/// What the log lines of a request say of its caller's trace (MOD-13).
fn span(trace: Option<TraceParent>) -> tracing::Span {
    let Some(TraceParent { trace_id, span_id }) = trace else { return tracing::Span::none() };
    let (trace_id, span_id) = (format!("{trace_id:032x}"), format!("{span_id:016x}"));
    tracing::info_span!("request", trace.id = trace_id, trace.parent = span_id)
}

/// One request on its way.
pub(super) struct Exchange<'a> {
    pub(super) front: Arc<Front>,
    pub(super) caller: Caller,
    pub(super) headers: &'a HeaderMap,
    pub(super) accepts: Accepts,
    pub(super) id: Id,
    pub(super) method: Method,
    pub(super) meta: RequestMeta,
    /// An object with a `_meta`.
    pub(super) params: RawJson,
    /// Set if its state is the upstream's.
    passed: Option<Passed>,
}

impl<'a> Exchange<'a> {
    /// What is the same for all methods, in the order of refusals.
    fn open(
        front: Arc<Front>,
        auth: AuthContext,
        headers: &'a HeaderMap,
        accepts: Accepts,
        request: Request,
    ) -> Result<Self, Refused> {
        let meta = RequestMeta::parse(request.params.as_ref()).map_err(Refused::without_meta)?;
        let params = request.params.unwrap_or_else(|| RawJson::trusted("{}"));
        check_plain("MCP-Protocol-Version", &values(headers, VERSION_HEADER), "the version in _meta", &meta.version)?;
        if meta.version != VERSION {
            return Err(errors::unsupported_version(&meta.version).into());
        }
        check_plain("Mcp-Method", &values(headers, METHOD_HEADER), "method", &request.method)?;
        let method = Method::from_name(&request.method);
        if let Some(method) = method {
            check_name(&front, headers, method, &params)?;
            call::check_param_headers(&front, headers, method, &params)?;
        }
        let method = method.ok_or_else(Refused::method_not_found)?;
        let tasks_enabled = tasks::are_offered(&front, &auth) && meta.declares_extension(TASKS_EXTENSION);
        let caller = Caller {
            auth,
            session: None,
            capabilities: meta.capabilities.clone(),
            initialized: true,
            takes_requests: false,
            tasks_enabled,
        };
        Ok(Self { front, caller, headers, accepts, id: request.id, method, meta, params, passed: None })
    }

    async fn serve(mut self) -> Result<Response, Refused> {
        self.open_passed()?;
        match self.method {
            Method::Discover => self.discover(),
            Method::ToolsList => self.tools_list(),
            Method::ToolsCall => self.tools_call().await,
            Method::PromptsList | Method::ResourcesList | Method::ResourceTemplatesList => self.list(),
            Method::PromptsGet | Method::ResourcesRead | Method::Complete => self.relay().await,
            Method::Listen => self.listen().await,
            Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => self.tasks().await,
        }
    }

    /// Answers with a result, which says all that results of this era say.
    pub(super) fn answer(&self, result: &RawJson) -> Response {
        answer::now(self.accepts, write_result(&self.id, result))
    }

    /// A request that comes back from a round which its upstream keeps goes on there as one of its own (MOD-12).
    fn open_passed(&mut self) -> Result<(), Refused> {
        let Some(digest) = rounds::digest(self.method, &self.params) else { return Ok(()) };
        let Some((state, _)) = rounds::retry(&self.params)? else { return Ok(()) };
        if let Some(passed) = self.front.state.engine.open_passed(&self.caller, &digest, &state)? {
            self.params = rounds::passed_on(&self.params, passed.state());
            self.passed = Some(passed);
        }
        Ok(())
    }

    /// What the request brings of a round before it that is kept here.
    pub(super) fn retry(&self) -> Result<Option<Retry>, Refused> {
        if self.passed.is_some() {
            return Ok(None);
        }
        let given = rounds::retry(&self.params)?;
        Ok(given.map(|(state, responses)| Retry { tool: None, key: None, state, responses }))
    }

    /// How a request asks the engine for a stream.
    pub(super) fn asked(&self, is_call: bool) -> Result<Asked, Refused> {
        let logs = self.meta.log_level()?.map_or(Logs::None, Logs::From);
        let request = self.id.as_raw().to_owned();
        let by_rounds = rounds::digest(self.method, &self.params);
        let (takes_events, passed) = (self.accepts.events, self.passed.clone());
        Ok(Asked { request, takes_events, is_call, ends_with_client: true, by_rounds, passed, logs })
    }
}

/// The response to a request that is refused.
pub(super) fn refusal(id: &Id, refused: &Refused) -> Ending {
    let message = write_error(Some(id), &refused.error.to_raw()).into();
    Ending { message, status: refused.status, retry_after: refused.retry_after }
}

/// `Mcp-Name` (MOD-03, EXT-10).
fn check_name(front: &Front, headers: &HeaderMap, method: Method, params: &RawJson) -> Result<(), Refused> {
    let values = values(headers, NAME_HEADER);
    let name = match method.name_header() {
        NameHeader::Required(name) => name,
        NameHeader::IfPresent(name) if !values.is_empty() || front.state.rules.task_names_required => name,
        NameHeader::IfPresent(_) => {
            front.state.counts.unnamed_task_request();
            return Ok(());
        }
        NameHeader::None => return Ok(()),
    };
    let expected = member(params.as_str(), name).and_then(string_value);
    let field = format!("params.{name}");
    match check_encoded("Mcp-Name", &values, &field, expected.as_deref().unwrap_or_default()) {
        Err(Mismatch::Different { header, .. }) if expected.is_none() => {
            Err(Mismatch::Unfounded { header, field }.into())
        }
        // A parameter that is missing is refused after this; no header can repeat it.
        checked => Ok(checked?),
    }
}

/// All values of a header.
pub(super) fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
}
