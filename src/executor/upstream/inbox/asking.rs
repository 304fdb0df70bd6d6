//! An upstream's questions: which call each is put to, what else one may get instead of an answer.
//!
//! Where it is not known which of a context's calls asks, the likeliest one whose caller can be asked is taken. When that
//! one ends first, the next one is.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::revision::not_in_revision;
use super::{Entry, Inbox, RELATED_TASK, Whose, related, without_ours};
use crate::domain::answer::own_error;
use crate::domain::input::{Answer, InputKind, Question};
use crate::domain::json::RawJson;
use crate::executor::{Host, Unasked};
use crate::lifecycle::spawn;
use crate::protocol::jsonrpc::{
    ErrorObject, INTERNAL_ERROR, INVALID_REQUEST, Id, METHOD_NOT_FOUND, Request, write_error, write_result,
};
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted, set_meta};

/// Questions of all calls of a link that may be open at once: as many, or as those of this many calls.
const MOST_QUESTIONS: usize = 256;
const MOST_FULL_CALLS: usize = 8;
/// The longest id of a URL elicitation that is kept.
const MOST_ELICITATION_ID: usize = 512;

impl Inbox {
    /// A request of the upstream. What can be answered at once is returned; an answer that has to be waited for goes back
    /// later through `back`.
    ///
    /// `origin` is the call on whose stream it came, where the transport has such streams.
    pub(in crate::executor::upstream) fn take_request<F>(
        self: &Arc<Self>,
        request: &Request,
        origin: Option<u64>,
        back: impl FnOnce(String) -> F + Send + 'static,
    ) -> Option<String>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let id = request.id.clone();
        if request.method == "ping" {
            return Some(write_result(&id, &RawJson::trusted("{}")));
        }
        match self.admit(request, origin) {
            Ok(asked) => {
                spawn("upstream question", async move {
                    if let Some(text) = asked.answer().await {
                        back(text).await;
                    }
                });
                None
            }
            Err(error) => Some(write_error(Some(&id), &error)),
        }
    }

    /// Lets a question wait for its answer, or says why it may not.
    fn admit(self: &Arc<Self>, request: &Request, origin: Option<u64>) -> Result<Asked, RawJson> {
        let kind = InputKind::from_method(&request.method).ok_or_else(|| {
            let message = format!("this client does not serve {}", quoted(&request.method));
            ErrorObject::new(METHOD_NOT_FOUND, message).to_raw()
        })?;
        let params = request.params.as_ref();
        let mut state = self.lock();
        let state = &mut *state;
        if !state.revision.is_empty() {
            not_in_revision(&state.revision, kind, params).map_err(|error| error.to_raw())?;
        }
        let mut calls = match state.whose(origin, params) {
            Whose::Call(call) => VecDeque::from([call]),
            Whose::Likely(_) => state.likeliest().collect(),
            Whose::Nobody if origin.is_some() || related(params).is_some() || state.has_served => return Err(ended()),
            Whose::Nobody => {
                let message = format!("nobody serves {} while no call is in progress", quoted(&request.method));
                return Err(own_error(METHOD_NOT_FOUND, "nobody_there", &message));
            }
            Whose::Unclear => {
                let message = "calls of several callers are in progress on this shared server, and the request does \
                               not say which one it belongs to";
                return Err(own_error(INTERNAL_ERROR, "call_unknown", message));
            }
        };
        if state.questions.contains_key(&request.id) {
            let message = "another request with this id waits for its answer";
            return Err(own_error(INVALID_REQUEST, "id_in_use", message));
        }
        let limit = self.owner.open_questions;
        let most = MOST_QUESTIONS.max(limit.saturating_mul(MOST_FULL_CALLS));
        if state.questions.len() >= most {
            let message = format!("{most} requests of this server wait for their answers; no more can");
            return Err(own_error(INTERNAL_ERROR, "limit_reached", &message));
        }
        let Some(place) = Place::first(&mut state.calls, &mut calls, limit) else {
            let message = format!("the limit limits.open_questions of {limit} is reached");
            return Err(own_error(INTERNAL_ERROR, "limit_reached", &message));
        };
        let withdrawn = CancellationToken::new();
        state.questions.insert(request.id.clone(), withdrawn.clone());
        let elicitation = elicitation_id(params);
        if let Some(id) = &elicitation {
            state.elicitations.asked(id, place.call);
        }
        Ok(Asked {
            inbox: Arc::clone(self),
            id: request.id.clone(),
            question: Question { kind, params: params.map(without_ours) },
            elicitation,
            place,
            others: calls,
            withdrawn,
        })
    }
}

/// A question that waits for its answer.
struct Asked {
    inbox: Arc<Inbox>,
    id: Id,
    question: Question,
    /// The id of a URL elicitation.
    elicitation: Option<String>,
    place: Place,
    /// The calls that may have asked, too, the likeliest first.
    others: VecDeque<u64>,
    withdrawn: CancellationToken,
}

/// The call that a question is put to.
struct Place {
    call: u64,
    host: Arc<dyn Host>,
    task: Option<RawJson>,
    ended: CancellationToken,
}

impl Place {
    /// Takes the first of these calls that is still in progress and may have another question, and those before it off.
    fn first(
        open: &mut std::collections::BTreeMap<u64, Entry>,
        calls: &mut VecDeque<u64>,
        limit: usize,
    ) -> Option<Self> {
        while let Some(call) = calls.pop_front() {
            let Some(entry) = open.get_mut(&call).filter(|entry| entry.questions < limit) else { continue };
            entry.questions += 1;
            let (host, task, ended) = (Arc::clone(&entry.host), entry.task.clone(), entry.ended.clone());
            return Some(Self { call, host, task, ended });
        }
        None
    }
}

impl Asked {
    /// The response to write; none if the upstream took its question back, or goes on without us.
    async fn answer(mut self) -> Option<String> {
        // What the work gets if nobody else can be asked.
        let mut error = None;
        loop {
            let answered = tokio::select! {
                biased;
                () = self.withdrawn.cancelled() => return None,
                () = self.place.ended.cancelled() => None,
                answered = self.place.host.ask(self.question.clone()) => Some(answered),
            };
            match answered {
                Some(Ok(answer)) => return Some(self.write(answer)),
                Some(Err(Unasked(why))) => {
                    // Whose client was not asked hears nothing of a completion either.
                    self.forget_elicitation();
                    // The likeliest one says more than those after it.
                    error.get_or_insert(why);
                }
                // A task may go on without this call, and then asks whoever follows it next.
                None if self.place.task.is_some() => {}
                None => _ = error.get_or_insert_with(|| Answer::Error(ended())),
            }
            if !self.move_on() {
                return error.map(|error| self.write(error));
            }
        }
    }

    fn forget_elicitation(&self) {
        if let Some(id) = &self.elicitation {
            self.inbox.lock().elicitations.forget(id, self.place.call);
        }
    }

    /// Goes to the next call that may have asked; false if there is none.
    fn move_on(&mut self) -> bool {
        let mut state = self.inbox.lock();
        let state = &mut *state;
        let Some(next) = Place::first(&mut state.calls, &mut self.others, self.inbox.owner.open_questions) else {
            return false;
        };
        let last = std::mem::replace(&mut self.place, next);
        if let Some(call) = state.calls.get_mut(&last.call) {
            call.questions -= 1;
        }
        if let Some(id) = &self.elicitation {
            state.elicitations.forget(id, last.call);
            state.elicitations.asked(id, self.place.call);
        }
        true
    }

    fn write(&self, answer: Answer) -> String {
        match (answer, &self.place.task) {
            (Answer::Result(result), Some(task)) => {
                let related = format!(r#"{{"taskId":{}}}"#, task.as_str());
                write_result(&self.id, &set_meta(&result, &[(RELATED_TASK, &related)], &[]))
            }
            // What the client says of a task of its own is not theirs.
            (Answer::Result(result), None) => write_result(&self.id, &set_meta(&result, &[], &[RELATED_TASK])),
            (Answer::Error(error), _) => write_error(Some(&self.id), &error),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut state = self.inbox.lock();
        if !self.withdrawn.is_cancelled() {
            state.questions.remove(&self.id);
        }
        if let Some(call) = state.calls.get_mut(&self.place.call) {
            call.questions -= 1;
        }
    }
}

fn ended() -> RawJson {
    own_error(INTERNAL_ERROR, "withdrawn", "the call that this request belongs to has ended")
}

fn elicitation_id(params: Option<&RawJson>) -> Option<String> {
    let text = params?.as_str();
    let is_url = member(text, "mode").and_then(string_value).is_some_and(|mode| mode == "url");
    let id = member(text, "elicitationId").filter(|_| is_url).and_then(string_value)?;
    (id.len() <= MOST_ELICITATION_ID).then(|| id.into_owned())
}
