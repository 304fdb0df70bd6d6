//! Every route, in one list.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, delete, get, post};

use super::mcp::sessions::Sessions;
use super::{Front, HttpState, health, mcp, middleware, resource};

/// A route of the service. What is not in [`Self::ALL`] is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// One message from a client.
    Message,
    /// A session's stream.
    Stream,
    /// The end of a session.
    EndSession,
    Health,
    Readiness,
    /// What OAuth clients are told, of the host's only resource.
    ResourceMetadata,
    /// The same of the resource whose path follows.
    ResourceMetadataOf,
}

impl Route {
    pub const ALL: [Self; 7] = [
        Self::Message,
        Self::Stream,
        Self::EndSession,
        Self::Health,
        Self::Readiness,
        Self::ResourceMetadata,
        Self::ResourceMetadataOf,
    ];

    #[must_use]
    pub const fn method(self) -> Method {
        match self {
            Self::Message => Method::POST,
            Self::EndSession => Method::DELETE,
            Self::Stream | Self::Health | Self::Readiness | Self::ResourceMetadata | Self::ResourceMetadataOf => {
                Method::GET
            }
        }
    }

    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Message | Self::Stream | Self::EndSession => "/mcp",
            Self::Health => "/healthz",
            Self::Readiness => "/readyz",
            Self::ResourceMetadata => resource::WELL_KNOWN,
            Self::ResourceMetadataOf => "/.well-known/oauth-protected-resource/{*resource}",
        }
    }

    /// Whether anybody may ask, by any name: probes, which are told nothing but the state (HTTP-01), and clients that do not
    /// know yet where to get a token (AUTH-10).
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Readiness | Self::ResourceMetadata | Self::ResourceMetadataOf)
    }

    fn handler(self) -> MethodRouter<Arc<Front>> {
        match self {
            Self::Message => post(mcp::post),
            Self::Stream => get(mcp::get),
            Self::EndSession => delete(mcp::delete),
            Self::Health => get(health::healthz),
            Self::Readiness => get(health::readyz),
            Self::ResourceMetadata | Self::ResourceMetadataOf => get(resource::metadata),
        }
    }
}

/// The whole service. Layers run from the last one named to the first.
pub fn router(state: HttpState) -> Router {
    let front = Arc::new(Front {
        sessions: Sessions::new(
            Arc::clone(&state.engine),
            state.store.clone(),
            state.rules.session_idle,
            state.rules.sessions,
        ),
        state,
    });
    let guarded = routes(false)
        .route_layer(from_fn_with_state(Arc::clone(&front), middleware::auth::authenticate))
        .route_layer(from_fn_with_state(Arc::clone(&front), middleware::media::check))
        .layer(from_fn_with_state(Arc::clone(&front), middleware::origin::check));
    routes(true).merge(guarded).layer(from_fn(middleware::access_log::write)).with_state(front)
}

fn routes(open: bool) -> Router<Arc<Front>> {
    let routes = Route::ALL.into_iter().filter(|route| route.is_open() == open);
    routes.fold(Router::new(), |router, route| router.route(route.path(), route.handler()))
}
