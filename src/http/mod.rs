//! The HTTP front: routes, middleware, the handlers of each protocol era. The only place that knows axum.
//!
//! Knows no SQL. A request passes, in this order (HTTP-13): Origin and Host, sizes and media types, the token, JSON; in the
//! handshake era the session, the version header, the method; in the stateless era `_meta`, the version, the headers that
//! repeat the body, the method; then what the method itself checks. `error.rs` alone says which refusal becomes which code and
//! status. To add a protocol era: a file in `mcp/`.

mod counts;
pub mod error;
mod health;
mod mcp;
mod middleware;
mod resource;
mod router;
pub mod server;
mod socket;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use tokio_util::sync::CancellationToken;

use crate::auth::Authenticator;
use crate::domain::context::AuthContext;
use crate::domain::scope::Scope;
use crate::engine::Engine;
use crate::store::Store;

pub use counts::Counts;
pub use resource::ProtectedResource;
pub use router::{Route, router};

/// What the routes are served from.
#[derive(Clone)]
pub struct HttpState {
    pub engine: Arc<Engine>,
    pub auth: Arc<dyn Authenticator>,
    /// For sessions and readiness.
    pub store: Store,
    pub rules: HttpRules,
    pub counts: Arc<Counts>,
    /// Cancelled when this node was asked to stop, before anything else happens: it is not ready any more (KEEP-10).
    pub leaving: CancellationToken,
    /// Cancelled when this node starts to drain: who waits for a task goes to another node (KEEP-10).
    pub drain: CancellationToken,
}

/// The configured rules of the front.
#[derive(Debug, Clone)]
pub struct HttpRules {
    /// Hosts that may be asked for (HTTP-01), [`Self::own_hosts`] among them; without a port they allow any.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages that may call, such as `https://app.example`, [`Self::own_origins`] among them.
    pub allowed_origins: Vec<String>,
    /// How often a stream on which nothing happens carries a comment: at least every 15 s (NOTE-08).
    pub keep_alive: Duration,
    /// Bytes of a request's body.
    pub body_limit: usize,
    /// A session unused for longer is ended.
    pub session_idle: Duration,
    /// Sessions of one context; the one that was used longest ago makes room for a new one.
    pub sessions: u32,
    /// Whether tasks are offered at all.
    pub tasks_enabled: bool,
    /// Whether requests about a task must name it in `Mcp-Name` (EXT-10).
    pub task_names_required: bool,
    /// Tenants whose callers are not offered tasks.
    pub tenants_without_tasks: HashSet<String>,
    /// Where callers show access tokens of an OAuth issuer: what those that have none are told.
    pub resource: Option<ProtectedResource>,
}

const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl HttpRules {
    /// The hosts that a service at this address answers to without being told: loopback names, the address itself and the
    /// host of its public URL.
    #[must_use]
    pub fn own_hosts(listen: SocketAddr, public_url: Option<&str>) -> Vec<String> {
        let public = public_url.and_then(|url| url.parse::<Uri>().ok());
        let public = public.as_ref().and_then(Uri::host).map(str::to_owned);
        let loopback = LOOPBACK_NAMES.map(str::to_owned);
        loopback.into_iter().chain([listen.ip().to_string()]).chain(public).collect()
    }

    /// The origins of what this service itself could show: that of its public URL, and its loopback names on its own port if
    /// it listens there. A page that rebinds its name has another origin.
    #[must_use]
    pub fn own_origins(listen: SocketAddr, public_url: Option<&str>) -> Vec<String> {
        let public = public_url.and_then(|url| url.parse::<Uri>().ok());
        let public = public.and_then(|url| Some(format!("{}://{}", url.scheme_str()?, url.authority()?)));
        let loopback = LOOPBACK_NAMES.map(|name| format!("http://{name}:{}", listen.port()));
        loopback.into_iter().filter(|_| listen.ip().is_loopback()).chain(public).collect()
    }

    /// Only who may read tasks has any: nobody else could see what became of one.
    fn offers_tasks(&self, caller: &AuthContext) -> bool {
        self.has_tasks_for(caller) && caller.may(Scope::TasksRead)
    }

    /// Whether there are tasks for this caller, whatever its token allows.
    fn has_tasks_for(&self, caller: &AuthContext) -> bool {
        self.tasks_enabled && !caller.tenant().is_some_and(|tenant| self.tenants_without_tasks.contains(tenant))
    }
}

/// [`HttpState`] with what the front itself remembers.
struct Front {
    state: HttpState,
    sessions: mcp::sessions::Sessions,
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: HTTP-01
    #[test]
    fn a_service_knows_its_own_names() {
        let listen = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(HttpRules::own_hosts(listen, None), ["localhost", "127.0.0.1", "[::1]", "127.0.0.1"]);
        assert_eq!(
            HttpRules::own_origins(listen, Some("https://mcp.example/base")),
            ["http://localhost:8080", "http://127.0.0.1:8080", "http://[::1]:8080", "https://mcp.example"]
        );
        let listen = "10.0.0.7:80".parse().unwrap();
        let hosts = HttpRules::own_hosts(listen, Some("https://mcp.example:8443"));
        assert_eq!(hosts, ["localhost", "127.0.0.1", "[::1]", "10.0.0.7", "mcp.example"]);
        assert_eq!(HttpRules::own_origins(listen, None), Vec::<String>::new());
        assert_eq!(HttpRules::own_origins(listen, Some("https://mcp.example:8443")), ["https://mcp.example:8443"]);
    }
}
