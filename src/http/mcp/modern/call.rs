//! `tools/call`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::HeaderMap;
use axum::response::Response;

use super::{Exchange, refusal, tasks, values};
use crate::domain::capabilities::ClientCapabilities;
use crate::domain::ids::StreamId;
use crate::domain::json::RawJson;
use crate::domain::outcome::Outcome;
use crate::engine::{Called, Delivery, Directed, Engine, Item, Refusal, Retry, Stream, ToolCall};
use crate::http::Front;
use crate::http::error::modern::{Refused, status_of};
use crate::http::mcp::answer::{self, Encode, Ending};
use crate::http::mcp::key::call_key;
use crate::protocol::jsonrpc::{ErrorObject, Id, TASK_CANCELLED, error_code, write_error, write_result};
use crate::protocol::legacy::notify;
use crate::protocol::legacy::tools::{CallParams, arguments};
use crate::protocol::modern::{Method, errors, results, rounds};
use crate::protocol::splice::member;

/// `Mcp-Param-*` of the tool that is called (MOD-11).
pub(super) fn check_param_headers(
    front: &Front,
    headers: &HeaderMap,
    method: Method,
    params: &RawJson,
) -> Result<(), Refused> {
    if method != Method::ToolsCall {
        return Ok(());
    }
    // What is wrong with the name itself is refused later.
    let name = CallParams::parse(Some(params)).ok().map(|call| call.name);
    let Some(tool) = name.and_then(|name| front.state.engine.tool(&name)) else { return Ok(()) };
    let arguments = member(params.as_str(), "arguments").unwrap_or("{}");
    for param in &tool.param_headers {
        param.check(&values(headers, &param.header), arguments)?;
    }
    Ok(())
}

impl Exchange<'_> {
    pub(super) async fn tools_call(&self) -> Result<Response, Refused> {
        self.check_takes_tasks(&CallParams::parse(Some(&self.params))?.name)?;
        let call = self.tool_call()?;
        if let Some(retry) = self.retry()? {
            let (engine, token) = (&self.front.state.engine, call.progress_token.clone());
            let retry = Retry { tool: Some(call.name), key: call.key, ..retry };
            let stream = engine.retry(&self.caller, retry, self.asked(true)?, token).await?;
            return Ok(self.later(stream, results::complete).await);
        }
        match self.direct(call).await? {
            Ok(Directed::Stream(stream)) => Ok(self.later(stream, results::complete).await),
            Ok(Directed::Task(created)) => Ok(self.answer(&tasks::create_result(&self.front.state.engine, &created))),
            // The model can mend its arguments if it sees what was wrong (EXEC-10).
            Err(refusal @ Refusal::InvalidArguments { .. }) => {
                Ok(self.answer(&results::tool_error(&refusal.to_string())))
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The call as the engine takes it; `task` means nothing here (MOD-08).
    pub(super) fn tool_call(&self) -> Result<ToolCall, Refused> {
        let CallParams { name, progress_token, .. } = CallParams::parse(Some(&self.params))?;
        let arguments = arguments(Some(&self.params))?;
        let key = call_key(self.headers, Some(&self.params))?;
        Ok(ToolCall { name, params: self.params.clone(), arguments, progress_token, key })
    }

    fn has_key(&self) -> bool {
        call_key(self.headers, Some(&self.params)).is_ok_and(|key| key.is_some())
    }

    /// Answers with the end of a stream; its result is written by `written`. A client that leaves before it ends the work
    /// (MOD-10).
    pub(super) async fn later(&self, stream: Stream, written: fn(&RawJson) -> RawJson) -> Response {
        let state = &self.front.state;
        let keep_alive = state.rules.keep_alive;
        let engine = Arc::clone(&state.engine);
        let declared = self.caller.capabilities.clone();
        // What is stored under a key stays as it is.
        let may_ask = self.method != Method::Complete && !self.has_key();
        let encoder = Box::new(Encoder { engine, id: self.id.clone(), keep_alive, declared, may_ask, written });
        // It cannot go on elsewhere: a drain waits for it as long as it waits for anything.
        let watch = answer::watch(Arc::clone(&state.auth), &self.caller.auth, self.headers, None);
        answer::later(self.accepts, stream, encoder, watch).await
    }
}

/// Writes what the stream of one request carries. It cannot be resumed, and what is asked is its end.
struct Encoder {
    engine: Arc<Engine>,
    id: Id,
    keep_alive: Duration,
    /// What the client declared with this request.
    declared: RawJson,
    /// Whether URLs that are to be visited first may be asked for.
    may_ask: bool,
    written: fn(&RawJson) -> RawJson,
}

#[async_trait]
impl Encode for Encoder {
    fn keep_alive(&self) -> Duration {
        self.keep_alive
    }

    fn event_id(&self, _stream: StreamId, _count: i64) -> Option<String> {
        None
    }

    fn message(&self, delivery: &Delivery) -> Option<String> {
        match delivery {
            Delivery::Progress { token, params, .. } => Some(notify::progress(token, params, None)),
            Delivery::Log { params, .. } => Some(notify::log(params, None)),
            _ => None,
        }
    }

    async fn answer(&self, item: Item) -> Option<Ending> {
        let Item::Called { answer, place, .. } = item else { return None };
        let mut ending = match answer {
            Ok(Called::Outcome(Outcome::Result { json, .. })) => {
                Ending::ok(write_result(&self.id, &(self.written)(&json)))
            }
            Ok(Called::Outcome(Outcome::Error { json })) => self.failed(&json),
            Ok(Called::Outcome(Outcome::Cancelled)) => {
                self.error(&ErrorObject::new(TASK_CANCELLED, "the call was cancelled").to_raw())
            }
            Ok(Called::Promoted(created)) => {
                Ending::ok(write_result(&self.id, &tasks::create_result(&self.engine, &created)))
            }
            Ok(Called::Asks(round)) => {
                let questions = round.questions.iter().map(|(key, question)| (key.into(), question));
                Ending::ok(write_result(&self.id, &rounds::input_required(questions, Some(&round.state))))
            }
            Ok(Called::Stopped) => return None,
            Err(refused) => refusal(&self.id, &Refused::from(&refused)),
        };
        if let Some(place) = place {
            ending.message = ending.message.holding(place);
        }
        Some(ending)
    }
}

impl Encoder {
    /// An upstream's error. Where that says which URLs are to be visited first, those are asked for, and the same request is
    /// simply made again (MOD-16).
    fn failed(&self, error: &RawJson) -> Ending {
        let Some(urls) = rounds::urls_needed(error).filter(|_| self.may_ask) else {
            return self.error(&errors::relayed_to(error, &self.declared));
        };
        let declared = ClientCapabilities::parse(&self.declared);
        if urls.iter().any(|(_, question)| declared.lacks(question).is_some()) {
            let message = "the tool's server wants URLs to be visited first";
            return self.error(&errors::missing_capability(message, &RawJson::trusted(rounds::URL_MODE)).to_raw());
        }
        let questions = urls.iter().map(|(key, question)| (key.into(), question));
        Ending::ok(write_result(&self.id, &rounds::input_required(questions, None)))
    }

    fn error(&self, error: &RawJson) -> Ending {
        let status = error_code(error).map_or(axum::http::StatusCode::OK, status_of);
        Ending { message: write_error(Some(&self.id), error).into(), status, retry_after: None }
    }
}
