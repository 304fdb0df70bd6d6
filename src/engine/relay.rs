//! Requests about what upstreams have besides tools: prompts, resources, completions. They run as plain calls do.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::call::run_limited;
use super::streams::{Asked, Stream};
use super::{Called, Caller, Engine, Refusal};
use crate::domain::json::RawJson;
use crate::domain::outcome::Outcome;
use crate::executor::{Host, Reference, Relay, Shelf, Wanted};

/// What a caller wants, by the names that it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Errand {
    Prompt { name: String },
    Read { uri: String },
    Complete(Reference),
    Subscribe { uri: String },
    Unsubscribe { uri: String },
}

/// The answer where an upstream has what is referred to and completes nothing.
const NO_COMPLETIONS: &str = r#"{"completion":{"values":[]}}"#;

impl Engine {
    /// What is offered besides tools.
    #[must_use]
    pub fn shelf(&self) -> Arc<Shelf> {
        self.catalogue.shelf()
    }

    /// Passes a request on; its stream ends with the answer.
    ///
    /// # Errors
    /// A [`Refusal`] if nothing was asked; [`Refusal::LimitReached`] if too many requests of its context wait here.
    pub fn relay(
        self: &Arc<Self>,
        caller: &Caller,
        errand: Errand,
        params: RawJson,
        progress_token: Option<RawJson>,
        asked: Asked,
    ) -> Result<Stream, Refusal> {
        self.refuse_while_draining()?;
        let route = route(&self.shelf(), &errand)?;
        if let (Some(request), Some((wanted, upstreams))) = (asked.by_rounds.clone(), route.clone()) {
            // Of several that might have it the one that asked has the answers.
            let upstreams: Vec<_> =
                upstreams.into_iter().filter(|upstream| asked.may_be_passed_to(upstream).is_ok()).collect();
            if upstreams.is_empty() {
                return Err(Refusal::BadState);
            }
            let capabilities = caller.capabilities.clone();
            let relay = Relay { context: caller.auth.id(), upstreams, wanted, params, capabilities };
            return self.relay_by_rounds(caller, relay, request, asked, progress_token);
        }
        let (engine, by) = (Arc::clone(self), caller.clone());
        self.begin(caller, asked, progress_token, move |host, stop| async move {
            let Some((wanted, upstreams)) = route else {
                return Ok(Called::Outcome(Outcome::Result {
                    json: RawJson::trusted(NO_COMPLETIONS),
                    is_error: false,
                }));
            };
            let capabilities = by.capabilities.clone();
            let relay = Relay { context: by.auth.id(), upstreams, wanted, params, capabilities };
            match errand {
                Errand::Subscribe { uri } => engine.subscribe(&by, relay, &uri, host, stop).await,
                Errand::Unsubscribe { uri } => engine.unsubscribe(&by, relay, &uri, host, stop).await,
                Errand::Prompt { .. } | Errand::Read { .. } | Errand::Complete(_) => {
                    Ok(engine.pass_on(relay, host, stop).await)
                }
            }
        })
    }

    pub(super) async fn pass_on(&self, relay: Relay, host: Arc<dyn Host>, stop: CancellationToken) -> Called {
        let limit = self.rules.run_limit.min(self.rules.hard_run_limit);
        run_limited(limit, (&stop, &self.cut), |stop| self.executor.relay(relay, host, stop)).await
    }
}

/// What is to be asked of whom; `None` if there is nothing to ask.
fn route(shelf: &Shelf, errand: &Errand) -> Result<Option<(Wanted, Vec<String>)>, Refusal> {
    let unknown = |uri: &String| Refusal::UnknownResource(uri.clone());
    let some = |upstreams: Vec<String>, uri: &String| {
        if upstreams.is_empty() { Err(unknown(uri)) } else { Ok(upstreams) }
    };
    Ok(Some(match errand {
        Errand::Prompt { name } => {
            let prompt = shelf.prompt(name).ok_or_else(|| Refusal::UnknownPrompt(name.clone()))?;
            (Wanted::Prompt(prompt.upstream_prompt.clone()), vec![prompt.upstream.clone()])
        }
        Errand::Read { uri } => (Wanted::Contents(uri.clone()), some(shelf.readers(uri), uri)?),
        Errand::Subscribe { uri } => (Wanted::Subscription(uri.clone()), some(shelf.publishers(uri), uri)?),
        Errand::Unsubscribe { uri } => (Wanted::EndOfSubscription(uri.clone()), Vec::new()),
        Errand::Complete(reference) => {
            let (upstream, wanted) = match reference {
                Reference::Prompt(name) => {
                    let prompt = shelf.prompt(name).ok_or_else(|| Refusal::UnknownPrompt(name.clone()))?;
                    (prompt.upstream.clone(), Wanted::PromptArgument(prompt.upstream_prompt.clone()))
                }
                Reference::Resource(uri) => {
                    (shelf.referred(reference).ok_or_else(|| unknown(uri))?, Wanted::TemplateArgument)
                }
            };
            if !shelf.completes(&upstream) {
                return Ok(None);
            }
            (wanted, vec![upstream])
        }
    }))
}
