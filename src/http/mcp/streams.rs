//! Streams of the handshake era: the session's own, opened by GET, those that a GET resumes, and the text of what goes on
//! each.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::answer::{self, Encode, Ending};
use super::legacy::{called_answer, caller, follow_log_level, version_is_served};
use super::outgoing::Outgoing;
use super::{scopes, sse};
use crate::domain::context::AuthContext;
use crate::domain::event_id::{EventId, StreamKind};
use crate::domain::ids::{ContextId, SessionId, StreamId};
use crate::domain::json::RawJson;
use crate::domain::outcome::Outcome;
use crate::engine::{Asked, Called, Caller, Delivery, Engine, Item, Refusal, Resume, Step, Stream};
use crate::http::error::{Rejection, refusal_error, stream_refused};
use crate::http::middleware::media::takes_events;
use crate::http::{Front, HttpState};
use crate::lifecycle;
use crate::protocol::jsonrpc::{Id, write_error};
use crate::protocol::legacy::notify::{self, List};
use crate::protocol::legacy::{Revision, relay, tasks, tools};

const LAST_EVENT_ID: &str = "last-event-id";

/// Writes what a stream carries as its client reads it.
pub(super) struct Encoder {
    engine: Arc<Engine>,
    context: ContextId,
    session: SessionId,
    revision: Revision,
    kind: StreamKind,
    keep_alive: Duration,
    /// Whether the client can be told that URLs are to be visited first.
    visits_urls: bool,
}

impl Encoder {
    pub(super) fn new(
        state: &HttpState,
        caller: &Caller,
        session: SessionId,
        revision: Revision,
        kind: StreamKind,
    ) -> Self {
        let keep_alive = state.rules.keep_alive;
        let visits_urls = caller.declared().visits_urls();
        let engine = Arc::clone(&state.engine);
        Self { engine, context: caller.auth.id(), session, revision, kind, keep_alive, visits_urls }
    }

    /// What the outcome is told by, if that is not as it is.
    fn told_otherwise(&self, outcome: &Outcome) -> Option<tools::Answer> {
        (!self.visits_urls).then(|| tools::without_urls(outcome)).flatten()
    }
}

#[async_trait]
impl Encode for Encoder {
    fn keep_alive(&self) -> Duration {
        self.keep_alive
    }

    fn event_id(&self, stream: StreamId, count: i64) -> Option<String> {
        let id = EventId { session: self.session, stream, kind: self.kind.clone(), count };
        self.revision.resumes().then(|| self.engine.event_key().seal(self.context, &id)).flatten()
    }

    fn message(&self, delivery: &Delivery) -> Option<String> {
        Some(match delivery {
            Delivery::Status(task) => notify::task_status(task, self.engine.now(), self.engine.ttl_rules()),
            Delivery::Progress { task, token, params } => notify::progress(token, params, *task),
            Delivery::Log { task, params } => notify::log(params, *task),
            Delivery::Ask { id, task, question, as_task } => {
                notify::question(self.revision, id, question, *task, *as_task)
            }
            Delivery::ClientTask { id, step, client_task } => {
                let method = match step {
                    Step::Get => "tasks/get",
                    Step::Result => "tasks/result",
                    Step::Cancel => "tasks/cancel",
                };
                notify::client_task(id, method, client_task)
            }
            Delivery::Withdrawn { id, task, reason } => notify::cancelled(id, reason, *task),
            Delivery::ElicitationComplete { task, params } => notify::elicitation_complete(params, *task),
            Delivery::ToolsChanged => notify::list_changed(List::Tools),
            Delivery::PromptsChanged => notify::list_changed(List::Prompts),
            Delivery::ResourcesChanged => notify::list_changed(List::Resources),
            Delivery::ResourceUpdated { params } => notify::resource_updated(params),
        })
    }

    async fn answer(&self, item: Item) -> Option<Ending> {
        let (StreamKind::Result { request, .. } | StreamKind::Call { request }) = &self.kind else { return None };
        let id = Id::from_raw(request)?;
        let answer = match item {
            Item::Result { answer: Ok(answered), .. } => {
                if let Some(told) = self.told_otherwise(answered.outcome.outcome()) {
                    return Some(Ending::ok(told.to(&id)));
                }
                let prepare = |task, outcome: &Outcome| tasks::outcome_answer(task, outcome).into_value();
                let value = answered.outcome.prepared(prepare).await;
                let answer = match answered.outcome.outcome() {
                    Outcome::Result { .. } => tools::Answer::Result(value),
                    Outcome::Error { .. } | Outcome::Cancelled => tools::Answer::Error(value),
                };
                return Some(Ending::ok(Outgoing::from(answer.to(&id)).holding(answered)));
            }
            Item::Result { answer: Err(refusal), .. } => tools::Answer::error(refusal_error(&refusal).to_raw()),
            Item::Called { answer, of_tool, place, .. } => {
                if let Ok(Called::Outcome(outcome)) = &answer
                    && let Some(told) = self.told_otherwise(outcome)
                {
                    return Some(Ending::ok(told.to(&id)));
                }
                let revision = self.revision;
                let write = move |answer: &_| match (of_tool, answer) {
                    (true, answer) => called_answer(answer, revision),
                    (false, Ok(Called::Outcome(outcome))) => Some(relay::relayed_answer(outcome)),
                    (false, Ok(Called::Promoted(_) | Called::Asks(_) | Called::Stopped)) => None,
                    (false, Err(refusal)) => Some(tools::Answer::error(refusal_error(refusal).to_raw())),
                };
                let bytes = match &answer {
                    Ok(Called::Outcome(outcome)) => outcome.json().map_or(0, RawJson::len),
                    Ok(Called::Promoted(_) | Called::Asks(_) | Called::Stopped) | Err(_) => 0,
                };
                let copy = answer.clone();
                let written = lifecycle::aside(bytes, move || write(&copy)).await;
                // It panicked there; here the panic is this request's own.
                let message = Outgoing::from(written.unwrap_or_else(|| write(&answer))?.to(&id));
                return Some(Ending::ok(match place {
                    Some(place) => message.holding(place),
                    None => message,
                }));
            }
            Item::Message { .. } | Item::Task(_) | Item::End => return None,
        };
        Some(Ending::ok(answer.to(&id)))
    }
}

/// How a request asks the engine for a stream.
pub(super) fn asked(id: &Id, takes_events: bool, is_call: bool) -> Asked {
    Asked::in_session(id.as_raw().to_owned(), takes_events, is_call)
}

/// Opens the session's stream, or goes on with one that broke (HTTP-06, HTTP-09).
pub(super) async fn open(front: Arc<Front>, auth: AuthContext, headers: &HeaderMap) -> Response {
    if !takes_events(headers) {
        return Rejection::EventsOnly { method: "GET" }.to_response(None);
    }
    let session = match front.sessions.find(&auth, headers, front.state.engine.now()).await {
        Ok(session) => session,
        Err(error) => return error.to_rejection().to_response(None),
    };
    if !version_is_served(headers) {
        return Rejection::VersionHeader.to_response(None);
    }
    let id = session.id;
    follow_log_level(&front, &auth, &session);
    let (caller, revision) = caller(&front, auth, session);
    let last = match last_event(&front, &caller, id, headers) {
        Ok(last) => last,
        Err(rejection) => return rejection.to_response(None),
    };
    let opening = Opening { front: &front, caller: &caller, session: id, revision, headers };
    match last {
        None => opening.session_stream(None).await,
        Some(EventId { stream, kind, count, .. }) => opening.resume(kind, Resume { stream, after: count }).await,
    }
}

/// What the client has seen last, if it says so. Empty text says nothing.
fn last_event(
    front: &Front,
    caller: &Caller,
    session: SessionId,
    headers: &HeaderMap,
) -> Result<Option<EventId>, Rejection> {
    let mut values = headers.get_all(LAST_EVENT_ID).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key(LAST_EVENT_ID) { Err(Rejection::EventUnknown) } else { Ok(None) };
    };
    if value.is_empty() {
        return Ok(None);
    }
    let id = value.to_str().ok().and_then(|text| front.state.engine.event_key().open(caller.auth.id(), text));
    id.filter(|id| id.session == session).map(Some).ok_or(Rejection::EventUnknown)
}

struct Opening<'a> {
    front: &'a Arc<Front>,
    caller: &'a Caller,
    session: SessionId,
    revision: Revision,
    headers: &'a HeaderMap,
}

impl Opening<'_> {
    async fn session_stream(&self, resume: Option<Resume>) -> Response {
        let engine = &self.front.state.engine;
        match engine.open_session_stream(self.caller, self.session, resume).await {
            Ok(stream) => self.stream(stream, StreamKind::Session, resume.is_none(), true).await,
            Err(refusal) => {
                if matches!(refusal, Refusal::UnknownSession) {
                    self.front.sessions.forget(&self.caller.auth, self.session);
                }
                stream_refused(&refusal).to_response(None)
            }
        }
    }

    async fn resume(&self, kind: StreamKind, resume: Resume) -> Response {
        let engine = &self.front.state.engine;
        // A stream goes on for those alone who may ask for what it carries.
        if let Err(rejection) = scopes::check_resume(&self.caller.auth, &kind) {
            return rejection.to_response(None);
        }
        match &kind {
            StreamKind::Session => self.session_stream(Some(resume)).await,
            StreamKind::Result { .. } if engine.is_cancelled(resume.stream) => {
                Rejection::EventUnknown.to_response(None)
            }
            StreamKind::Result { task, request } => {
                let asked = Asked::in_session(request.clone(), true, false);
                match engine.open_result_stream(self.caller, *task, asked, Some(resume)).await {
                    Ok(stream) => self.stream(stream, kind, false, true).await,
                    // The answer to the request, as it would have come on the stream that broke.
                    Err(refusal @ Refusal::UnknownTask) => {
                        let error = write_error(Id::from_raw(request).as_ref(), &refusal_error(&refusal).to_raw());
                        sse::response(sse::event(None, error.into()).into_body())
                    }
                    Err(refusal) => stream_refused(&refusal).to_response(None),
                }
            }
            StreamKind::Call { request } => {
                match engine.resume_call(self.caller, resume.stream, request, resume.after) {
                    Ok(Some(stream)) => self.stream(stream, kind, false, false).await,
                    Ok(None) => Rejection::EventUnknown.to_response(None),
                    Err(refusal) => stream_refused(&refusal).to_response(None),
                }
            }
        }
    }

    async fn stream(&self, stream: Stream, kind: StreamKind, is_new: bool, ends_with_drain: bool) -> Response {
        let state = &self.front.state;
        let encoder = Box::new(Encoder::new(state, self.caller, self.session, self.revision, kind));
        let drain = ends_with_drain.then(|| state.drain.clone());
        let watch = answer::watch(Arc::clone(&state.auth), &self.caller.auth, self.headers, drain);
        sse::response(sse::stream(stream, encoder, watch, is_new, None).await).into_response()
    }
}
