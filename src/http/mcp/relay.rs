//! Requests about the shelf, in the handshake era: prompts, resources, completions, logging.
//!
//! A method is served where an upstream serves it, and else unknown (CAP-11).

use axum::response::Response;

use super::legacy::Exchange;
use super::streams::asked;
use crate::domain::event_id::StreamKind;
use crate::domain::json::RawJson;
use crate::engine::{Errand, Reference, Refusal, Served};
use crate::http::error::legacy::Refused;
use crate::http::error::store_error;
use crate::protocol::jsonrpc::{ErrorObject, METHOD_NOT_FOUND};
use crate::protocol::legacy::relay::{self, Ref};
use crate::protocol::legacy::{Method, initialize, progress_token, tasks};

/// What `initialize` declares of it.
pub(super) const fn declared(served: Served) -> initialize::Served {
    let Served { prompts, resources, subscribe, completions, logging } = served;
    initialize::Served { prompts, resources, subscribe, completions, logging }
}

const fn is_served(served: Served, method: Method) -> bool {
    match method {
        Method::PromptsList | Method::PromptsGet => served.prompts,
        Method::ResourcesList | Method::ResourceTemplatesList | Method::ResourcesRead => served.resources,
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => served.subscribe,
        Method::Complete => served.completions,
        Method::SetLogLevel => served.logging,
        _ => false,
    }
}

impl Exchange<'_> {
    /// Answers one of these methods.
    pub(super) async fn shelf_request(&self, method: Method, params: Option<&RawJson>) -> Result<Response, Refused> {
        let shelf = self.front.state.engine.shelf();
        if !is_served(shelf.served(), method) {
            return Err(ErrorObject::new(METHOD_NOT_FOUND, "method not found").into());
        }
        let errand = match method {
            Method::PromptsList => {
                let shown = shelf.prompts().iter().map(|one| relay::prompt_definition(&one.definition, &one.exposed));
                return self.one_page("prompts", params, &shown.collect::<Vec<_>>());
            }
            Method::ResourcesList => {
                let shown: Vec<_> = shelf.resources().iter().map(|one| one.definition.clone()).collect();
                return self.one_page("resources", params, &shown);
            }
            Method::ResourceTemplatesList => {
                let shown: Vec<_> = shelf.templates().iter().map(|one| one.definition.clone()).collect();
                return self.one_page("resourceTemplates", params, &shown);
            }
            Method::SetLogLevel => {
                let level = relay::level(params)?;
                let set = self.front.sessions.set_log_level(&self.caller.auth, self.session, level).await;
                set.map_err(|error| store_error(&error))?;
                self.front.state.engine.log_level_set(&self.caller, level);
                return Ok(self.answer(Ok(RawJson::trusted("{}"))));
            }
            Method::PromptsGet => Errand::Prompt { name: relay::name(params)? },
            Method::ResourcesRead => Errand::Read { uri: relay::uri(params)? },
            Method::ResourcesSubscribe => Errand::Subscribe { uri: relay::uri(params)? },
            Method::ResourcesUnsubscribe => Errand::Unsubscribe { uri: relay::uri(params)? },
            _ => Errand::Complete(match relay::reference(params)? {
                Ref::Prompt(name) => Reference::Prompt(name),
                Ref::Resource(uri) => Reference::Resource(uri),
            }),
        };
        Ok(self.relay(errand, params.cloned().unwrap_or_else(|| RawJson::trusted("{}"))).await)
    }

    fn one_page(&self, list: &str, params: Option<&RawJson>, shown: &[RawJson]) -> Result<Response, Refused> {
        // Everything is on one page: no cursor of ours is out there.
        if tasks::cursor(params)?.is_some() {
            return Err(Refusal::BadCursor.into());
        }
        Ok(self.answer(Ok(relay::list_result(list, shown.iter()))))
    }

    async fn relay(&self, errand: Errand, params: RawJson) -> Response {
        let (asked, token) = (asked(&self.id, self.accepts.events, false), progress_token(Some(&params)));
        match self.front.state.engine.relay(&self.caller, errand, params, token, asked) {
            Ok(stream) => self.later(stream, StreamKind::Call { request: self.id.as_raw().to_owned() }).await,
            Err(refusal) => self.answer(Err(refusal.into())),
        }
    }
}
