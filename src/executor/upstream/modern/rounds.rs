//! A request whose upstream may ask for input before it is done: asked of the caller, answered by a retry that stands alone.
//!
//! In a round each key is asked once. The retry has a new id, exactly the state that came with the round, and the answers; where
//! there is no state, also those of the rounds before, since nothing else remembers them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::super::link::Link;
use super::super::lists::tool_now;
use super::super::requests::{NoReply, Outbound, Reply};
use super::{Said, argument_headers};
use crate::domain::ids::random_bytes;
use crate::domain::input::{Answer, InputKind, Question};
use crate::domain::json::RawJson;
use crate::executor::{Host, Unasked};
use crate::protocol::jsonrpc::error_code;
use crate::protocol::modern::client::{InputRequest, InputRequired, ResultType, input_responses, result_type};
use crate::protocol::modern::errors::HEADER_MISMATCH;
use crate::protocol::modern::param_headers::declared;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted, set_members};

/// Rounds of one request; one that goes on asking is broken.
const MOST_ROUNDS: u32 = 64;
/// The pause before a retry that nobody was asked for, doubled each time.
const PAUSE: Duration = Duration::from_millis(100);
const MOST_DOUBLED: u32 = 6;
/// What a form or a URL gets where its caller cannot answer: this era has no errors in their place.
const CANCELLED: &str = r#"{"action":"cancel"}"#;

/// A request of a caller.
pub(in super::super) struct Rounds<'a> {
    pub(in super::super) link: &'a Link,
    /// The call's number, which is that of its first request and its progress token.
    pub(in super::super) call: u64,
    pub(in super::super) method: &'static str,
    /// As they go out, without what is said of the client.
    pub(in super::super) params: &'a RawJson,
    pub(in super::super) said: Said,
    pub(in super::super) host: &'a Arc<dyn Host>,
    pub(in super::super) stop: &'a CancellationToken,
    /// Questions that may be open at once.
    pub(in super::super) most_open: usize,
}

/// How a request ended.
#[derive(Debug)]
pub(in super::super) enum Ended {
    Reply(Reply),
    /// The upstream runs it as a task: the result that says so.
    Task(RawJson),
    /// It asked, and the host took that as its end.
    Asked,
}

impl Rounds<'_> {
    /// Sends it, and again with answers as often as that is asked for.
    ///
    /// # Errors
    /// Why there is no end. What was sent once and then asked for input counts as sent.
    pub(in super::super) async fn run(&self) -> Result<Ended, NoReply> {
        let seed = random_bytes::<16>();
        let mut answers = BTreeMap::new();
        let (mut number, mut retry) = (self.call, None);
        let mut said = self.said.clone();
        let mut is_read_again = false;
        let mut round = 0;
        while round < MOST_ROUNDS {
            let params = retry.as_ref().unwrap_or(self.params);
            let request = Outbound {
                call: Some(self.call),
                said: said.clone(),
                ..Outbound::new(number, self.method, Some(params))
            };
            let result = match self.link.request(request, self.stop).await {
                Ok(Reply::Result(result)) => result,
                Ok(Reply::Error(error)) if !is_read_again && error_code(&error) == Some(HEADER_MISMATCH) => {
                    is_read_again = true;
                    match self.headers_now().await {
                        Some(headers) if headers != said.arguments => said.arguments = headers,
                        _ => return Ok(Ended::Reply(Reply::Error(error))),
                    }
                    number = self.link.next_number();
                    continue;
                }
                Ok(reply) => return Ok(Ended::Reply(reply)),
                Err(NoReply::NotSent(how)) if round > 0 => return Err(NoReply::Lost(how)),
                Err(why) => return Err(why),
            };
            match result_type(&result) {
                ResultType::InputRequired => {}
                ResultType::Task => return Ok(Ended::Task(result)),
                // Others do not come so far.
                ResultType::Complete | ResultType::Unknown(_) => return Ok(Ended::Reply(Reply::Result(result))),
            }
            let asked = match InputRequired::read(&result) {
                Ok(asked) => asked,
                Err(how) => return Ok(Ended::Reply(Reply::Broken(how))),
            };
            if asked.requests.len() > self.most_open {
                let how = format!("it asks {} things at once, more than {}", asked.requests.len(), self.most_open);
                return Ok(Ended::Reply(Reply::Broken(how)));
            }
            let seed: [&[u8]; 2] = [&seed, &round.to_be_bytes()];
            let named: Vec<_> = asked.requests.iter().map(|asked| (asked.name(), question(asked, &seed))).collect();
            // The state of a process may be one that no other process takes back: another node has another one.
            let is_anywhere = !self.link.is_process();
            if is_anywhere && self.host.takes_round(self.link.upstream(), &named, asked.state.as_ref()).await {
                return Ok(Ended::Asked);
            }
            if asked.state.is_some() {
                answers.clear();
            }
            let gathered = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(NoReply::Stopped),
                gathered = self.gather(&asked.requests, named, round) => gathered,
            };
            match gathered {
                Ok(gathered) => answers.extend(gathered),
                Err(error) => return Ok(Ended::Reply(Reply::Error(error))),
            }
            retry = Some(self.retried(&answers, asked.state.as_ref()));
            number = self.link.next_number();
            round += 1;
        }
        Ok(Ended::Reply(Reply::Broken(format!("it asked for input more than {MOST_ROUNDS} times"))))
    }

    /// The headers that repeat arguments of this call, by the tool as its server lists it now: a call that was refused for them
    /// did not run. `None` if there is no such tool, or none of it can be read.
    async fn headers_now(&self) -> Option<Vec<(String, String)>> {
        if self.method != "tools/call" || self.link.is_process() {
            return None;
        }
        // Whoever calls it next is not to be refused as well.
        self.link.table().lists_may_have_changed();
        let name = member(self.params.as_str(), "name").and_then(string_value)?;
        match tool_now(self.link, &name, self.stop).await {
            Ok(tool) => Some(argument_headers(&declared(&tool?).ok()?, self.params)),
            Err(why) => {
                tracing::debug!(
                    upstream.name = self.link.upstream(),
                    "the tools of an upstream that refused a call's headers cannot be read again: {why}"
                );
                None
            }
        }
    }

    /// The answers of one round. An error where the caller gives one that cannot be passed on.
    async fn gather(
        &self,
        requests: &[InputRequest],
        named: Vec<(String, Question)>,
        round: u32,
    ) -> Result<Vec<(String, RawJson)>, RawJson> {
        if requests.is_empty() {
            sleep(PAUSE * (1 << round.min(MOST_DOUBLED))).await;
        }
        let answers = join_all(requests.iter().zip(named).map(async |(request, (name, question))| {
            let answer = self.host.ask_named(&name, question).await;
            (request.key.clone(), sendable(request.question.kind, answer))
        }));
        answers.await.into_iter().map(|(key, answer)| Ok((key, answer?))).collect()
    }

    fn retried(&self, answers: &BTreeMap<String, RawJson>, state: Option<&RawJson>) -> RawJson {
        let responses = input_responses(answers.iter());
        let mut set = vec![("inputResponses", responses.as_str())];
        set.extend(state.map(|state| ("requestState", state.as_str())));
        set_members(self.params, &set, &["requestState"])
    }
}

/// The question of an input request as callers are asked it: a URL has an id in the legacy era (EXEC-20), which is the same
/// whenever the same `seed` is asked about the same key.
pub(super) fn question(request: &InputRequest, seed: &[&[u8]]) -> Question {
    let Question { kind, params } = request.question.clone();
    let text = |name| member(params.as_ref()?.as_str(), name).and_then(string_value);
    let is_url = kind == InputKind::Elicitation && text("mode").is_some_and(|mode| mode == "url");
    if !is_url || text("elicitationId").is_some() {
        return Question { kind, params };
    }
    let mut digest = Sha256::new();
    for part in seed.iter().copied().chain([request.key.as_bytes()]) {
        digest.update(part);
    }
    let id = data_encoding::HEXLOWER.encode(&digest.finalize()[..16]);
    Question { kind, params: params.map(|params| set_members(&params, &[("elicitationId", &quoted(&id))], &[])) }
}

/// An answer as it goes to the upstream.
///
/// # Errors
/// The caller's error, where nothing can stand for it.
pub(super) fn sendable(kind: InputKind, answer: Result<Answer, Unasked>) -> Result<RawJson, RawJson> {
    match answer.unwrap_or_else(|Unasked(answer)| answer) {
        Answer::Result(result) => Ok(result),
        Answer::Error(_) if kind == InputKind::Elicitation => Ok(RawJson::trusted(CANCELLED)),
        Answer::Error(error) => Err(error),
    }
}
