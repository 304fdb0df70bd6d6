//! The handshake era: decodes parameters, asks the engine, encodes its answer. Decides nothing.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::answer::{self, Ending};
use super::sessions::SESSION_HEADER;
use crate::domain::context::AuthContext;
use crate::domain::ids::{SessionId, TaskId};
use crate::domain::json::RawJson;
use crate::domain::mode::TaskMode;
use crate::domain::session::Session;
use crate::engine::{Called, Caller, Refusal, ToolCall};
use crate::http::Front;
use crate::http::error::{Rejection, internal, refusal_error, store_error, task_not_found};
use crate::http::middleware::access_log::Served;
use crate::http::middleware::media::Accepts;
use crate::lifecycle;
use crate::protocol::jsonrpc::{
    ErrorObject, Id, METHOD_NOT_FOUND, Message, Notification, Request, write_error, write_result,
};
use crate::protocol::legacy::initialize::{InitializeParams, TaskOffer, initialize_result};
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
    let served = Served { method: named, context: None };
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
    let response = match message {
        Message::Request(request) => {
            let exchange = Exchange::new(front, auth, session, headers, accepts, request.id);
            exchange.serve(method, request.params.as_ref()).await
        }
        Message::Notification(notification) => {
            notified(&front, session.id, &notification);
            StatusCode::ACCEPTED.into_response()
        }
        // Nothing is asked of clients yet: an answer to an unknown id changes nothing.
        Message::Response(_) => StatusCode::ACCEPTED.into_response(),
    };
    logged(response, served)
}

fn logged(mut response: Response, served: Served) -> Response {
    response.extensions_mut().insert(served);
    response
}

/// Absent, the session's revision holds; any other that is served will do (HTTP-08).
fn version_is_served(headers: &HeaderMap) -> bool {
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
    let mut response = answer::now(accepts, write_result(&request.id, &initialize_result(revision, offer)));
    if let Ok(value) = HeaderValue::try_from(session.to_string()) {
        response.headers_mut().insert(SESSION_HEADER, value);
    }
    response
}

/// Unknown notifications are accepted and ignored (CAP-09).
fn notified(front: &Front, session: SessionId, notification: &Notification) {
    if notification.method == "notifications/cancelled"
        && let Some(id) = cancelled_request(notification.params.as_ref())
    {
        front.in_flight.cancel(session, id);
    }
}

/// One request on its way through a session.
struct Exchange<'a> {
    front: Arc<Front>,
    caller: Caller,
    session: SessionId,
    revision: Revision,
    headers: &'a HeaderMap,
    accepts: Accepts,
    id: Id,
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
        // A row of a revision that is not served any more is read as the latest.
        let revision = Revision::negotiate(&session.revision);
        let tasks_enabled = revision.has_tasks() && front.state.rules.offers_tasks(&auth);
        let caller = Caller { auth, session: Some(session.id), capabilities: session.capabilities, tasks_enabled };
        Self { front, caller, session: session.id, revision, headers, accepts, id }
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
            Some(Method::TasksGet) if tasks => self.tasks_get(params).await,
            Some(Method::TasksResult) if tasks => match tasks::task_id(params) {
                Ok(Some(task)) => return self.tasks_result(task).await,
                Ok(None) => Err(task_not_found()),
                Err(error) => Err(error.into()),
            },
            Some(Method::TasksCancel) if tasks => self.tasks_cancel(params).await,
            // Only who can be told from others has a list (AUTH-09).
            Some(Method::TasksList) if tasks && self.caller.auth.is_identified() => self.tasks_list(params).await,
            // Whoever sends `initialize` is answered before a session is looked for.
            None
            | Some(
                Method::Initialize | Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksList,
            ) => Err(ErrorObject::new(METHOD_NOT_FOUND, "method not found")),
        };
        self.answer(answer)
    }

    fn answer(&self, answer: Result<RawJson, ErrorObject>) -> Response {
        let message = match answer {
            Ok(result) => write_result(&self.id, &result),
            Err(error) => write_error(Some(&self.id), &error.to_raw()),
        };
        answer::now(self.accepts, message)
    }

    fn tools_list(&self, params: Option<&RawJson>) -> Result<RawJson, ErrorObject> {
        // All tools are on one page: no cursor of ours is out there.
        if tasks::cursor(params)?.is_some() {
            return Err(refusal_error(&Refusal::BadCursor));
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

    async fn tools_call(&self, params: Option<&RawJson>) -> Result<Response, ErrorObject> {
        let call = CallParams::parse(params)?;
        let engine = &self.front.state.engine;
        let tool = engine.tool(&call.name).ok_or_else(|| refusal_error(&Refusal::UnknownTool(call.name.clone())))?;
        // The engine knows these rules too; here they come before the parameters have a say (HTTP-13).
        let task = call.task.filter(|_| self.caller.tasks_enabled);
        match (tool.mode, &task) {
            (TaskMode::Never, Some(_)) => return Err(refusal_error(&Refusal::TaskForbidden { tool: call.name })),
            (TaskMode::Always, None) if self.caller.tasks_enabled => {
                return Err(refusal_error(&Refusal::TaskRequired { tool: call.name }));
            }
            _ => {}
        }
        let ttl = task.as_ref().map(tools::asked_ttl).transpose()?;
        let call = ToolCall {
            name: call.name,
            params: params.cloned().unwrap_or_else(|| RawJson::trusted("{}")),
            arguments: tools::arguments(params)?,
            progress_token: call.progress_token,
        };
        match ttl {
            Some(ttl) => {
                let created =
                    engine.create_task(&self.caller, call, ttl).await.map_err(|refusal| refusal_error(&refusal))?;
                let text = created.immediate_response.as_deref();
                Ok(self.answer(Ok(tasks::create_result(&created.task, engine.now(), engine.ttl_rules(), text))))
            }
            None => Ok(self.call_plainly(call).await),
        }
    }

    /// The call goes on when its client leaves; only a cancellation of its session stops it (TASK-23, CAP-10).
    async fn call_plainly(&self, call: ToolCall) -> Response {
        let entry = self.front.in_flight.enter(self.session, self.id.clone());
        let (front, caller, id, revision) =
            (Arc::clone(&self.front), self.caller.clone(), self.id.clone(), self.revision);
        let run = lifecycle::spawn("plain call", async move {
            let called = front.state.engine.call(&caller, call, entry.stop()).await;
            called_answer(called, revision).map(|answer| message(&id, answer))
        });
        let id = self.id.clone();
        let work = Box::pin(async move {
            match run.await {
                Ok(Some(message)) => Ending::Message(message),
                Ok(None) => Ending::Silent,
                Err(error) => {
                    tracing::error!(%error, "a plain call panicked");
                    Ending::Message(write_error(Some(&id), &internal().to_raw()))
                }
            }
        });
        // A plain call cannot go on elsewhere: a drain waits for it as long as it waits for anything.
        let watch = answer::watch(Arc::clone(&self.front.state.auth), &self.caller.auth, self.headers, None);
        answer::later(self.accepts, work, watch).await
    }

    async fn tasks_get(&self, params: Option<&RawJson>) -> Result<RawJson, ErrorObject> {
        let id = known_task_id(params)?;
        let engine = &self.front.state.engine;
        let task = engine.get(&self.caller, id).await.map_err(|refusal| refusal_error(&refusal))?;
        Ok(tasks::task_object(&task, engine.now(), engine.ttl_rules()))
    }

    async fn tasks_cancel(&self, params: Option<&RawJson>) -> Result<RawJson, ErrorObject> {
        let id = known_task_id(params)?;
        let engine = &self.front.state.engine;
        let task = engine.cancel(&self.caller, id).await.map_err(|refusal| refusal_error(&refusal))?;
        Ok(tasks::task_object(&task, engine.now(), engine.ttl_rules()))
    }

    async fn tasks_list(&self, params: Option<&RawJson>) -> Result<RawJson, ErrorObject> {
        let cursor = tasks::cursor(params)?;
        let engine = &self.front.state.engine;
        let page = engine.list(&self.caller, cursor.as_deref()).await.map_err(|refusal| refusal_error(&refusal))?;
        Ok(tasks::list_result(&page.tasks, page.next.as_deref(), engine.now(), engine.ttl_rules()))
    }

    /// Waits for the task's end; a client that leaves or cancels ends the waiting and nothing else.
    async fn tasks_result(&self, task: TaskId) -> Response {
        let entry = self.front.in_flight.enter(self.session, self.id.clone());
        let (engine, caller, id) = (Arc::clone(&self.front.state.engine), self.caller.clone(), self.id.clone());
        let work = Box::pin(async move {
            let stop = entry.stop();
            let waited = tokio::select! {
                biased;
                waited = engine.result(&caller, task) => waited,
                () = stop.cancelled() => return Ending::Silent,
            };
            let answer = match waited {
                Ok((task, outcome)) => tasks::outcome_answer(task.id, &outcome),
                Err(refusal) => Answer::Error(refusal_error(&refusal).to_raw()),
            };
            Ending::Message(message(&id, answer))
        });
        let drain = self.front.state.drain.clone();
        let watch = answer::watch(Arc::clone(&self.front.state.auth), &self.caller.auth, self.headers, Some(drain));
        answer::later(self.accepts, work, watch).await
    }
}

/// How a plain call's end answers its request; `None` if its client stopped it.
fn called_answer(called: Result<Called, Refusal>, revision: Revision) -> Option<Answer> {
    match called {
        Ok(Called::Outcome(outcome)) => Some(tools::plain_answer(&outcome)),
        Ok(Called::Stopped) => None,
        // The model can mend its arguments if it sees what was wrong; older revisions have an error for that (EXEC-10).
        Err(refusal @ Refusal::InvalidArguments { .. }) if revision >= Revision::V2025_11_25 => {
            Some(Answer::Result(tools::error_result(&refusal.to_string())))
        }
        Err(refusal) => Some(Answer::Error(refusal_error(&refusal).to_raw())),
    }
}

fn message(id: &Id, answer: Answer) -> String {
    match answer {
        Answer::Result(result) => write_result(id, &result),
        Answer::Error(error) => write_error(Some(id), &error),
    }
}

/// Text that cannot be an id is the same as an unknown one (TASK-11).
fn known_task_id(params: Option<&RawJson>) -> Result<TaskId, ErrorObject> {
    tasks::task_id(params)?.ok_or_else(task_not_found)
}
