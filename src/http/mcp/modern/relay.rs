//! What is passed on besides calls of tools: prompts, resources, completions.

use axum::response::Response;

use super::Exchange;
use crate::engine::{Errand, Reference};
use crate::http::error::modern::Refused;
use crate::protocol::legacy::relay::{self, Ref};
use crate::protocol::modern::{Method, results, rounds};

impl Exchange<'_> {
    /// Passes a request on; it is unknown where no upstream serves it.
    pub(super) async fn relay(&self) -> Result<Response, Refused> {
        let engine = &self.front.state.engine;
        let (served, params) = (engine.shelf().served(), Some(&self.params));
        let errand = match self.method {
            Method::PromptsGet if served.prompts => Errand::Prompt { name: relay::name(params)? },
            Method::ResourcesRead if served.resources => Errand::Read { uri: relay::uri(params)? },
            Method::Complete if served.completions => Errand::Complete(match relay::reference(params)? {
                Ref::Prompt(name) => Reference::Prompt(name),
                Ref::Resource(uri) => Reference::Resource(uri),
            }),
            _ => return Err(Refused::method_not_found()),
        };
        let token = self.meta.progress_token.clone();
        // What came of its reader's own input is nobody else's, whoever kept the round (MOD-07).
        let written = match self.method {
            Method::ResourcesRead if self.passed.is_some() || rounds::is_retry(&self.params) => results::contents_once,
            Method::ResourcesRead => results::contents,
            _ => results::complete,
        };
        if let Some(retry) = self.retry()?.filter(|_| self.method != Method::Complete) {
            let stream = engine.retry(&self.caller, retry, self.asked(false)?, token).await?;
            return Ok(self.later(stream, written).await);
        }
        let stream = engine.relay(&self.caller, errand, self.params.clone(), token, self.asked(false)?)?;
        Ok(self.later(stream, written).await)
    }
}
