//! `server/discover` (MOD-01).

use axum::response::Response;

use super::{Exchange, tasks};
use crate::http::error::modern::Refused;
use crate::http::mcp::relay::declared;
use crate::protocol::modern::discover::{Offer, discover_result};

impl Exchange<'_> {
    pub(super) fn discover(&self) -> Result<Response, Refused> {
        let served = declared(self.front.state.engine.shelf().served());
        let tasks = tasks::are_offered(&self.front, &self.caller.auth);
        Ok(self.answer(&discover_result(Offer { served, tasks })))
    }
}
