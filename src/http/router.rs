//! Every route, in one list.

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use super::mcp::in_flight::InFlight;
use super::mcp::sessions::Sessions;
use super::{Front, HttpState, health, mcp, middleware};

/// The whole service. Layers run from the last one named to the first.
pub fn router(state: HttpState) -> Router {
    let front = Arc::new(Front {
        sessions: Sessions::new(state.store.clone(), state.rules.session_idle, state.rules.sessions),
        in_flight: Arc::new(InFlight::default()),
        state,
    });
    let mcp = Router::new()
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route_layer(from_fn_with_state(Arc::clone(&front), middleware::auth::authenticate))
        .route_layer(from_fn_with_state(Arc::clone(&front), middleware::media::check))
        .layer(from_fn_with_state(Arc::clone(&front), middleware::origin::check));
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .merge(mcp)
        .layer(from_fn(middleware::access_log::write))
        .with_state(front)
}
