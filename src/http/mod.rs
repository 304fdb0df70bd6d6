//! The HTTP front: routes, middleware, the handlers of each protocol era. The only place that knows axum.
//!
//! Knows no SQL. A request passes, in this order (HTTP-13): Origin and Host, sizes and media types, the token, JSON, the
//! session, the version header, the method, then what the method itself checks. `error.rs` alone says which refusal
//! becomes which code and status. To add a protocol era: a file in `mcp/`.

pub mod error;
mod health;
mod mcp;
mod middleware;
mod router;
pub mod server;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::auth::Authenticator;
use crate::domain::context::AuthContext;
use crate::engine::Engine;
use crate::store::Store;

pub use router::router;

/// What the routes are served from.
#[derive(Clone)]
pub struct HttpState {
    pub engine: Arc<Engine>,
    pub auth: Arc<dyn Authenticator>,
    /// For sessions and readiness.
    pub store: Store,
    pub rules: HttpRules,
    /// Cancelled when this node starts to drain: who waits for a task goes to another node (KEEP-10).
    pub drain: CancellationToken,
}

/// The configured rules of the front.
#[derive(Debug, Clone)]
pub struct HttpRules {
    /// Hosts that may be asked for (HTTP-01): names without a port allow any port. Loopback names, the listen address and
    /// the host of the public URL have to be among them.
    pub allowed_hosts: Vec<String>,
    /// Origins of browsers that may call, such as `https://app.example`.
    pub allowed_origins: Vec<String>,
    /// Bytes of a request's body.
    pub body_limit: usize,
    /// A session unused for longer is ended.
    pub session_idle: Duration,
    /// Whether tasks are offered at all.
    pub tasks_enabled: bool,
    /// Tenants whose callers are not offered tasks.
    pub tenants_without_tasks: HashSet<String>,
}

impl HttpRules {
    fn offers_tasks(&self, caller: &AuthContext) -> bool {
        self.tasks_enabled && !caller.tenant().is_some_and(|tenant| self.tenants_without_tasks.contains(tenant))
    }
}

/// [`HttpState`] with what the front itself remembers.
struct Front {
    state: HttpState,
    sessions: mcp::sessions::Sessions,
    in_flight: Arc<mcp::in_flight::InFlight>,
}
