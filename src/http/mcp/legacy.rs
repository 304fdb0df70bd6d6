//! The handshake era: decodes parameters, asks the engine, encodes its answer. Decides nothing.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::answer;
use super::inputs;
use super::key::call_key;
use super::sessions::SESSION_HEADER;
use super::streams::{Encoder, asked};
use super::{relay, scopes};
use crate::domain::context::AuthContext;
use crate::domain::event_id::StreamKind;
use crate::domain::ids::{SessionId, TaskId};
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::domain::mode::TaskMode;
use crate::domain::session::Session;
use crate::engine::{Called, Caller, Refusal, Stream, ToolCall};
use crate::http::Front;
use crate::http::error::legacy::Refused;
use crate::http::error::{Rejection, refusal_error, store_error, task_not_found};
use crate::http::middleware::access_log::Served;
use crate::http::middleware::media::Accepts;
use crate::protocol::jsonrpc::{
    ErrorObject, Id, METHOD_NOT_FOUND, Message, Notification, Request, write_error, write_result,
};
use crate::protocol::legacy::initialize::{InitializeParams, TaskOffer, initialize_result, known_capabilities};
use crate::protocol::legacy::tools::{Answer, CallParams};
use crate::protocol::legacy::{Method, Revision, cancelled_request, tasks, tools};

const VERSION_HEADER: &str = "mcp-protocol-version";

/// The notifications that mean something here, for the access log.
const NOTIFICATIONS: [&str; 2] = ["notifications/initialized", "notifications/cancelled"];

/// One message of this era.
pub(super) async fn post(
    front: Arc<Front>,
    auth: AuthContext,
    headers: &HeaderMap,
    accepts: Accepts,
    message: Message,
) -> Response {
    let (id, method, named) = match &message {
        Message::Request(request) => {
            let method = Method::from_name(&request.method);
            (Some(&request.id), method, method.map(Method::as_str))
        }
        Message::Notification(notification) => {
            (None, None, NOTIFICATIONS.into_iter().find(|known| *known == notification.method))
        }
        Message::Response(_) => (None, None, None),
    };
    let served = Served { method: named, ..Served::default() };
    if let Message::Request(request) = &message
        && method == Some(Method::Initialize)
    {
        return logged(initialize(&front, &auth, accepts, request).await, served);
    }
    let session = match front.sessions.find(&auth, headers, front.state.engine.now()).await {
        Ok(session) => session,
        Err(error) => {
            let response = match (id, error.store_failure()) {
                (Some(id), Some(failure)) => answer::now(accepts, write_error(Some(id), &failure.to_raw())),
                _ => error.to_rejection().to_response(id),
            };
            return logged(response, served);
        }
    };
    if !version_is_served(headers) {
        return logged(Rejection::VersionHeader.to_response(id), served);
    }
    follow_log_level(&front, &auth, &session);
    let response = match message {
        Message::Request(request) => {
            let exchange = Exchange::new(front, auth, session, headers, accepts, request.id);
            exchange.serve(method, request.params.as_ref()).await
        }
        Message::Notification(notification) => notified(&front, auth, session, &notification).await,
        Message::Response(response) => inputs::answered(&front, &caller(&front, auth, session).0, response).await,
    };
    logged(response, served)
}

fn logged(mut response: Response, served: Served) -> Response {
    response.extensions_mut().insert(served);
    response
}

/// Absent, the session's revision holds; any other that is served will do (HTTP-08).
pub(super) fn version_is_served(headers: &HeaderMap) -> bool {
    let mut versions = headers.get_all(VERSION_HEADER).iter();
    match (versions.next(), versions.next()) {
        (None, _) => true,
        (Some(version), None) => version.to_str().is_ok_and(|version| Revision::from_name(version).is_some()),
        (Some(_), Some(_)) => false,
    }
}

async fn initialize(front: &Front, auth: &AuthContext, accepts: Accepts, request: &Request) -> Response {
    let params = match InitializeParams::parse(request.params.as_ref()) {
        Ok(params) => params,
        Err(error) => return answer::now(accepts, write_error(Some(&request.id), &ErrorObject::from(error).to_raw())),
    };
    let revision = Revision::negotiate(&params.protocol_version);
    let opened = front.sessions.open(auth, revision, params.capabilities, front.state.engine.now()).await;
    let session = match opened {
        Ok(session) => session,
        Err(error) => return answer::now(accepts, write_error(Some(&request.id), &store_error(&error).to_raw())),
    };
    let offer = match (revision.has_tasks() && front.state.rules.offers_tasks(auth), auth.is_identified()) {
        (false, _) => TaskOffer::None,
        (true, false) => TaskOffer::WithoutList,
        (true, true) => TaskOffer::All,
    };
    let served = relay::declared(front.state.engine.shelf().served());
    let result = initialize_result(revision, offer, served);
    let mut response = answer::now(accepts, write_result(&request.id, &result));
    if let Ok(value) = HeaderValue::try_from(session.to_string()) {
        response.headers_mut().insert(SESSION_HEADER, value);
    }
    response
}

/// Unknown notifications are accepted and ignored (CAP-09).
async fn notified(front: &Front, auth: AuthContext, session: Session, notification: &Notification) -> Response {
    let engine = &front.state.engine;
    match notification.method.as_str() {
        "notifications/initialized" => {
            if let Err(error) = front.sessions.initialized(&auth, &session).await {
                tracing::warn!(%error, "cannot write that a client is initialized");
                return Rejection::Unavailable.to_response(None);
            }
            engine.session_initialized(session.id);
        }
        "notifications/cancelled" => {
            if let Some(id) = cancelled_request(notification.params.as_ref()) {
                engine.cancel_request(auth.id(), session.id, id.as_raw());
            }
        }
        _ => {}
    }
    StatusCode::ACCEPTED.into_response()
}

/// Tells the engine from which level on the session wants logs: it may have said so at another node, or before a restart.
pub(super) fn follow_log_level(front: &Front, auth: &AuthContext, session: &Session) {
    if let Some(level) = session.log_level.as_deref().and_then(LogLevel::from_name) {
        front.state.engine.wants_log_from(auth.id(), session.id, level);
    }
}

/// Who speaks in this session, and by which revision.
pub(super) fn caller(front: &Front, auth: AuthContext, session: Session) -> (Caller, Revision) {
    // A row of a revision that is not served any more is read as the latest.
    let revision = Revision::negotiate(&session.revision);
    let tasks_enabled = revision.has_tasks() && front.state.rules.offers_tasks(&auth);
    let caller = Caller {
        auth,
        session: Some(session.id),
        capabilities: known_capabilities(revision, session.capabilities),
        initialized: session.initialized,
        takes_requests: true,
        tasks_enabled,
    };
    (caller, revision)
}

/// One request on its way through a session.
pub(super) struct Exchange<'a> {
    pub(super) front: Arc<Front>,
    pub(super) caller: Caller,
    pub(super) session: SessionId,
    revision: Revision,
    pub(super) headers: &'a HeaderMap,
    pub(super) accepts: Accepts,
    pub(super) id: Id,
}

impl<'a> Exchange<'a> {
    fn new(
        front: Arc<Front>,
        auth: AuthContext,
        session: Session,
        headers: &'a HeaderMap,
        accepts: Accepts,
        id: Id,
    ) -> Self {
        let id_of_session = session.id;
        let (caller, revision) = caller(&front, auth, session);
        Self { front, caller, session: id_of_session, revision, headers, accepts, id }
    }

    async fn serve(self, method: Option<Method>, params: Option<&RawJson>) -> Response {
        let tasks = self.caller.tasks_enabled;
        let answer = match method {
            Some(Method::Ping) => Ok(RawJson::trusted("{}")),
            Some(Method::ToolsList) => self.tools_list(params),
            Some(Method::ToolsCall) => match self.tools_call(params).await {
                Ok(response) => return response,
                Err(error) => Err(error),
            },
            Some(
                method @ (Method::PromptsList
                | Method::PromptsGet
                | Method::ResourcesList
                | Method::ResourceTemplatesList
                | Method::ResourcesRead
                | Method::ResourcesSubscribe
                | Method::ResourcesUnsubscribe
                | Method::Complete
                | Method::SetLogLevel),
            ) => match self.shelf_request(method, params).await {
                Ok(response) => return response,
                Err(error) => Err(error),
            },
            Some(Method::TasksGet) if tasks => self.tasks_get(params).await,
            Some(Method::TasksResult) if tasks => match tasks::task_id(params) {
                Ok(Some(task)) => return self.tasks_result(task).await,
                Ok(None) => Err(task_not_found().into()),
                Err(error) => Err(error.into()),
            },
            Some(Method::TasksCancel) if tasks => self.tasks_cancel(params).await,
            // Only who can be told from others has a list (AUTH-09).
            Some(Method::TasksList) if tasks && self.caller.auth.is_identified() => self.tasks_list(params).await,
            // Whoever sends `initialize` is answered before a session is looked for.
            None
            | Some(
                Method::Initialize | Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksList,
            ) => Err(ErrorObject::new(METHOD_NOT_FOUND, "method not found").into()),
        };
        self.answer(answer)
    }

    pub(super) fn answer(&self, answer: Result<RawJson, Refused>) -> Response {
        match answer {
            Ok(result) => answer::now(self.accepts, write_result(&self.id, &result)),
            Err(Refused::Error(error)) => answer::now(self.accepts, write_error(Some(&self.id), &error.to_raw())),
            Err(Refused::Draining) => Rejection::Draining.to_response(Some(&self.id)),
        }
    }

    fn tools_list(&self, params: Option<&RawJson>) -> Result<RawJson, Refused> {
        // All tools are on one page: no cursor of ours is out there.
        if tasks::cursor(params)?.is_some() {
            return Err(Refusal::BadCursor.into());
        }
        let tools = self.front.state.engine.tools();
        let shown: Vec<_> = tools
            .iter()
            .map(|tool| {
                let support = self.caller.tasks_enabled.then(|| tool.mode.support());
                tools::tool_definition(&tool.definition, &tool.exposed, support)
            })
            .collect();
        Ok(tools::list_result(shown.iter()))
    }

    async fn tools_call(&self, params: Option<&RawJson>) -> Result<Response, Refused> {
        let call = CallParams::parse(params)?;
        let (engine, auth) = (&self.front.state.engine, &self.caller.auth);
        if call.task.is_some()
            && self.revision.has_tasks()
            && self.front.state.rules.has_tasks_for(auth)
            && let Err(rejection) = scopes::check_task(auth)
        {
            return Ok(rejection.to_response(Some(&self.id)));
        }
        let tool = engine.tool(&call.name).ok_or_else(|| Refusal::UnknownTool(call.name.clone()))?;
        // The engine knows these rules too; here they come before the parameters have a say (HTTP-13).
        let task = call.task.filter(|_| self.caller.tasks_enabled);
        match (tool.mode, &task) {
            (TaskMode::Never, Some(_)) => return Err(Refusal::TaskForbidden { tool: call.name }.into()),
            (TaskMode::Always, None) if self.caller.tasks_enabled => {
                return Err(Refusal::TaskRequired { tool: call.name }.into());
            }
            _ => {}
        }
        let ttl = task.as_ref().map(tools::asked_ttl).transpose()?;
        let call = ToolCall {
            name: call.name,
            params: params.cloned().unwrap_or_else(|| RawJson::trusted("{}")),
            arguments: tools::arguments(params)?,
            progress_token: call.progress_token,
            key: call_key(self.headers, params)?,
        };
        match ttl {
            Some(ttl) => {
                let created = engine.create_task(&self.caller, call, ttl).await?;
                let text = created.immediate_response.as_deref();
                Ok(self.answer(Ok(tasks::create_result(&created.task, engine.now(), engine.ttl_rules(), text))))
            }
            None => Ok(self.call_plainly(call).await),
        }
    }

    /// Whatever the engine runs for this request goes on when its client leaves; only a cancellation of its session stops it
    /// (TASK-23, CAP-10).
    pub(super) async fn later(&self, stream: Stream, kind: StreamKind) -> Response {
        let state = &self.front.state;
        // A plain call cannot go on elsewhere: a drain waits for it as long as it waits for anything.
        let drain = matches!(kind, StreamKind::Result { .. }).then(|| state.drain.clone());
        let encoder = Box::new(Encoder::new(state, &self.caller, self.session, self.revision, kind));
        let watch = answer::watch(Arc::clone(&state.auth), &self.caller.auth, self.headers, drain);
        answer::later(self.accepts, stream, encoder, watch).await
    }

    async fn call_plainly(&self, call: ToolCall) -> Response {
        let asked = asked(&self.id, self.accepts.events, true);
        match self.front.state.engine.call(&self.caller, call, asked).await {
            Ok(stream) => self.later(stream, StreamKind::Call { request: self.id.as_raw().to_owned() }).await,
            Err(refusal @ Refusal::ShuttingDown) => self.answer(Err(refusal.into())),
            Err(refusal) => match called_answer(&Err(refusal), self.revision) {
                Some(answer) => answer::now(self.accepts, answer.to(&self.id)),
                None => StatusCode::ACCEPTED.into_response(),
            },
        }
    }

    async fn tasks_get(&self, params: Option<&RawJson>) -> Result<RawJson, Refused> {
        let id = known_task_id(params)?;
        let engine = &self.front.state.engine;
        let task = engine.get(&self.caller, id).await?;
        Ok(tasks::task_object(&task, engine.now(), engine.ttl_rules()))
    }

    async fn tasks_cancel(&self, params: Option<&RawJson>) -> Result<RawJson, Refused> {
        let id = known_task_id(params)?;
        let engine = &self.front.state.engine;
        let task = engine.cancel(&self.caller, id).await?;
        Ok(tasks::task_object(&task, engine.now(), engine.ttl_rules()))
    }

    async fn tasks_list(&self, params: Option<&RawJson>) -> Result<RawJson, Refused> {
        let cursor = tasks::cursor(params)?;
        let engine = &self.front.state.engine;
        let page = engine.list(&self.caller, cursor.as_deref()).await?;
        Ok(tasks::list_result(&page.tasks, page.next.as_deref(), engine.now(), engine.ttl_rules()))
    }

    /// Waits for the task's end; a client that leaves or cancels ends the waiting and nothing else.
    async fn tasks_result(&self, task: TaskId) -> Response {
        let asked = asked(&self.id, self.accepts.events, false);
        match self.front.state.engine.open_result_stream(&self.caller, task, asked, None).await {
            Ok(stream) => self.later(stream, StreamKind::Result { task, request: self.id.as_raw().to_owned() }).await,
            Err(refusal) => self.answer(Err(refusal.into())),
        }
    }
}

/// How a plain call's end answers its request; `None` if its client stopped it.
pub(super) fn called_answer(called: &Result<Called, Refusal>, revision: Revision) -> Option<Answer> {
    match called {
        Ok(Called::Outcome(outcome)) => Some(tools::plain_answer(outcome)),
        // Who is not directed is not promoted.
        Ok(Called::Promoted(_) | Called::Asks(_) | Called::Stopped) => None,
        // The model can mend its arguments if it sees what was wrong; older revisions have an error for that (EXEC-10).
        Err(refusal @ Refusal::InvalidArguments { .. }) if revision >= Revision::V2025_11_25 => {
            Some(Answer::Result(tools::error_result(&refusal.to_string()).into()))
        }
        Err(refusal) => Some(Answer::error(refusal_error(refusal).to_raw())),
    }
}

/// Text that cannot be an id is the same as an unknown one (TASK-11).
fn known_task_id(params: Option<&RawJson>) -> Result<TaskId, Refused> {
    tasks::task_id(params)?.ok_or_else(|| task_not_found().into())
}
