//! Sessions of the handshake era: rows in the database, valid on every node, remembered here for a moment.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use moka::sync::Cache;

use crate::domain::clock::Timestamp;
use crate::domain::context::AuthContext;
use crate::domain::ids::{ContextId, SessionId};
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::domain::session::Session;
use crate::engine::Engine;
use crate::http::error::{Rejection, store_error};
use crate::lifecycle;
use crate::protocol::jsonrpc::ErrorObject;
use crate::protocol::legacy::Revision;
use crate::store::{Store, StoreError};

pub(in crate::http) const SESSION_HEADER: &str = "mcp-session-id";

/// How long a session that another node ended may still be served here, where that is not heard sooner: a node without
/// streams and calls listens to no signals.
const REMEMBERED: Duration = Duration::from_secs(1);
const MOST_REMEMBERED: u64 = 100_000;
/// The last use is written at most this often.
const TOUCH_EVERY: Duration = Duration::from_secs(600);

pub(in crate::http) struct Sessions {
    engine: Arc<Engine>,
    store: Store,
    idle: Duration,
    /// Sessions of one context.
    most: u32,
    known: Cache<(ContextId, SessionId), Session>,
}

/// Why a request has no session.
#[derive(Debug, Clone, thiserror::Error)]
pub(in crate::http) enum NoSession {
    #[error("the session header is missing or repeated")]
    Missing,
    /// Also what a session of another context looks like.
    #[error("the session is unknown")]
    Unknown,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Sessions {
    pub(in crate::http) fn new(engine: Arc<Engine>, store: Store, idle: Duration, most: u32) -> Self {
        let known = Cache::builder().max_capacity(MOST_REMEMBERED).time_to_live(REMEMBERED).build();
        Self { engine, store, idle, most, known }
    }

    pub(super) async fn open(
        &self,
        caller: &AuthContext,
        revision: Revision,
        capabilities: RawJson,
        now: Timestamp,
    ) -> Result<SessionId, StoreError> {
        let session = Session {
            id: SessionId::new(),
            context: caller.id(),
            revision: revision.as_str().to_owned(),
            capabilities,
            created: now,
            last_used: now,
            initialized: false,
            stream: None,
            log_level: None,
        };
        self.store.scoped(caller).add_session(session.clone(), self.most).await?;
        Ok(session.id)
    }

    /// The session that the request names, if it is the caller's and still good.
    pub(super) async fn find(
        &self,
        caller: &AuthContext,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Session, NoSession> {
        let id = named(headers)?;
        let key = (caller.id(), id);
        if self.engine.session_has_ended(id) {
            self.known.invalidate(&key);
        }
        let session = match self.known.get(&key) {
            Some(session) => session,
            None => {
                let session = self.store.scoped(caller).session(id).await?.ok_or(NoSession::Unknown)?;
                // The client may say at any node that it is initialized, and is asked nothing before.
                if session.initialized {
                    self.known.insert(key, session.clone());
                }
                session
            }
        };
        if now.since(session.last_used) > self.idle {
            return Err(NoSession::Unknown);
        }
        if now.since(session.last_used) > TOUCH_EVERY {
            self.touch(caller, &session, now);
        }
        Ok(session)
    }

    /// The client has said that it is initialized.
    pub(super) async fn initialized(&self, caller: &AuthContext, session: &Session) -> Result<(), StoreError> {
        if !session.initialized {
            self.store.scoped(caller).session_initialized(session.id).await?;
            self.known.insert((caller.id(), session.id), Session { initialized: true, ..session.clone() });
        }
        Ok(())
    }

    pub(super) async fn set_log_level(
        &self,
        caller: &AuthContext,
        id: SessionId,
        level: LogLevel,
    ) -> Result<(), StoreError> {
        self.store.scoped(caller).set_log_level(id, level.as_str()).await?;
        let key = (caller.id(), id);
        if let Some(session) = self.known.get(&key) {
            self.known.insert(key, Session { log_level: Some(level.as_str().to_owned()), ..session });
        }
        Ok(())
    }

    pub(super) async fn end(
        &self,
        engine: &Arc<Engine>,
        caller: &AuthContext,
        headers: &HeaderMap,
    ) -> Result<(), NoSession> {
        let id = named(headers)?;
        self.forget(caller, id);
        let session = self.store.scoped(caller).session(id).await?;
        let was_good = session.is_some_and(|session| engine.now().since(session.last_used) <= self.idle);
        let ended = engine.end_session(caller, id).await?;
        // It may have been looked up meanwhile.
        self.forget(caller, id);
        if ended && was_good { Ok(()) } else { Err(NoSession::Unknown) }
    }

    /// It has ended, at this node or another.
    pub(super) fn forget(&self, caller: &AuthContext, id: SessionId) {
        self.known.invalidate(&(caller.id(), id));
    }

    /// Nobody waits for this write; the session is good meanwhile.
    fn touch(&self, caller: &AuthContext, session: &Session, now: Timestamp) {
        let touched = Session { last_used: now, ..session.clone() };
        if touched.initialized {
            self.known.insert((caller.id(), session.id), touched);
        }
        let (store, id) = (self.store.scoped(caller), session.id);
        lifecycle::spawn("session touch", async move {
            if let Err(error) = store.touch_session(id, now).await {
                tracing::debug!(%error, "cannot write a session's last use");
            }
        });
    }
}

impl NoSession {
    pub(super) fn to_rejection(&self) -> Rejection {
        match self {
            Self::Missing => Rejection::SessionMissing,
            Self::Unknown => Rejection::SessionUnknown,
            Self::Store(error) => {
                tracing::warn!(%error, "cannot look up a session");
                Rejection::Unavailable
            }
        }
    }

    /// The JSON-RPC error of a request, where the fault is the database's and not the session's (KEEP-11).
    pub(super) fn store_failure(&self) -> Option<ErrorObject> {
        match self {
            Self::Store(error) => Some(store_error(error)),
            Self::Missing | Self::Unknown => None,
        }
    }
}

fn named(headers: &HeaderMap) -> Result<SessionId, NoSession> {
    let mut values = headers.get_all(SESSION_HEADER).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(NoSession::Missing) };
    value.to_str().ok().and_then(|text| text.parse().ok()).ok_or(NoSession::Unknown)
}
