//! What upstreams say outside of calls, and who wants to hear it: log messages by the level of each session (MOD-14), updates
//! of resources by subscription (NOTE-12).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use serde::Deserialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::input::PAUSE;
use super::{Caller, Engine};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, SessionId};
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::executor::{Notice, Said};
use crate::store::{SignalKind, StoreError};

const MOST_SESSIONS: u64 = 100_000;
/// Notices that are looked at together: of updates of one resource among them only the last is told.
const TOGETHER: usize = 256;
/// Sessions unused for longer are forgotten anyway.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// From which level on sessions want log messages, as far as this node has heard of it.
pub(super) struct LogLevels(Cache<SessionId, (LogLevel, Timestamp)>);

impl Default for LogLevels {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MOST_SESSIONS).time_to_idle(KEPT).build())
    }
}

impl LogLevels {
    pub(super) fn of(&self, session: SessionId) -> Option<LogLevel> {
        self.0.get(&session).map(|(level, _)| level)
    }

    /// Notes what was set then; false if something else was set later.
    fn set(&self, session: SessionId, level: LogLevel, at: Timestamp) -> bool {
        let known = self.0.get(&session);
        if known.is_some_and(|(other, since)| other != level && since > at) {
            return false;
        }
        if known.is_none_or(|(other, _)| other != level) {
            self.0.insert(session, (level, at));
        }
        true
    }

    /// Whether the session wants a message with these params: all that it did not rule out.
    pub(super) fn admits(&self, session: Option<SessionId>, params: &RawJson) -> bool {
        let Some(lowest) = session.and_then(|session| self.of(session)) else { return true };
        level_of(params).is_none_or(|level| level >= lowest)
    }
}

/// The level of a log message with these params, if it is one of the eight.
pub(super) fn level_of(params: &RawJson) -> Option<LogLevel> {
    #[derive(Deserialize)]
    struct Params {
        level: String,
    }
    let params = serde_json::from_str::<Params>(params.as_str()).ok()?;
    LogLevel::from_name(&params.level)
}

impl Engine {
    /// The caller's session has set its level: it holds at once, here and at other nodes.
    pub fn log_level_set(self: &Arc<Self>, caller: &Caller, level: LogLevel) {
        let Some(session) = caller.session else { return };
        let context = caller.auth.id();
        self.wants_log_from(context, session, level);
        self.signal(SignalKind::LogLevel, context, Some(session), level.as_str().to_owned(), None);
    }

    /// A session wants log messages of this level and above: told by each of its requests, and by other nodes.
    pub fn wants_log_from(&self, context: ContextId, session: SessionId, level: LogLevel) {
        self.log_level_was_set(context, session, level, self.now());
    }

    /// The same, set at this time.
    pub(super) fn log_level_was_set(&self, context: ContextId, session: SessionId, level: LogLevel, at: Timestamp) {
        if self.streams.levels.set(session, level, at) {
            self.executor.listen_from(context, level);
        }
    }

    /// Hears one upstream.
    pub(super) async fn notices_loop(self: Arc<Self>, mut notices: broadcast::Receiver<Notice>) {
        let lagged = |lost| tracing::warn!(lost, "messages of an upstream were lost: too many at once");
        // Updates that nobody could be told of while the database was away.
        let mut late = Vec::new();
        loop {
            let first = tokio::select! {
                first = notices.recv() => first,
                () = tokio::time::sleep(PAUSE), if !late.is_empty() => {
                    late = self.take_notices(last_updates(late)).await;
                    continue;
                }
                () = self.stopped.cancelled() => return,
            };
            let mut together = match first {
                Ok(notice) => vec![notice],
                Err(RecvError::Lagged(lost)) => {
                    lagged(lost);
                    continue;
                }
                Err(RecvError::Closed) => return,
            };
            while together.len() < TOGETHER {
                match notices.try_recv() {
                    Ok(notice) => together.push(notice),
                    Err(TryRecvError::Lagged(lost)) => lagged(lost),
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
            late.extend(self.take_notices(last_updates(together)).await);
            if late.len() > TOGETHER {
                late = last_updates(late);
                if let Some(lost @ 1..) = late.len().checked_sub(TOGETHER) {
                    tracing::warn!(lost, "updates of resources were lost: who follows them cannot be read");
                    late.drain(..lost);
                }
            }
        }
    }

    /// Answers those to be taken again when the database is back.
    async fn take_notices(self: &Arc<Self>, notices: Vec<Notice>) -> Vec<Notice> {
        let mut late = Vec::new();
        for notice in notices {
            match (&notice.said, notice.context) {
                (Said::ResourceUpdated(params), context) => {
                    match self.take_update(context, &notice.upstream, params.clone()).await {
                        Ok(()) => {}
                        Err(error @ StoreError::Unavailable(_)) => {
                            tracing::debug!(%error, upstream.name = notice.upstream, "an update of a resource has to wait");
                            late.push(notice);
                        }
                        Err(error) => {
                            tracing::warn!(%error, upstream.name = notice.upstream, "an update of a resource is lost");
                        }
                    }
                }
                (Said::Log(params), Some(context)) => self.streams.log(context, params),
                // What everybody's link says of its own is nobody's.
                (Said::Log(_), None) => {}
            }
        }
        late
    }

    async fn take_update(
        self: &Arc<Self>,
        context: Option<ContextId>,
        upstream: &str,
        params: RawJson,
    ) -> Result<(), StoreError> {
        let Some(uri) = uri_of(&params) else { return Ok(()) };
        self.streams.tell_update(context, upstream, &uri, &params);
        for (context, session) in self.followers_of(context, upstream, &uri).await? {
            self.resource_updated(context, session, &uri, params.clone()).await?;
        }
        Ok(())
    }

    /// Who is to be told of a change; it may be of a part of what was subscribed to.
    async fn followers_of(
        &self,
        context: Option<ContextId>,
        upstream: &str,
        uri: &str,
    ) -> Result<Vec<(ContextId, SessionId)>, StoreError> {
        let exact = self.subscribers(context, upstream, uri).await?;
        if !exact.is_empty() {
            return Ok(exact);
        }
        let rows = self.store.system().subscriptions_at(self.membership.node()).await?;
        let mut followers: Vec<_> = rows
            .into_iter()
            .filter(|row| row.upstream == upstream && context.is_none_or(|context| row.context == context))
            .filter(|row| is_part(uri, &row.uri))
            .map(|row| (row.context, row.session))
            .collect();
        followers.dedup();
        Ok(followers)
    }
}

/// Whether a resource is a part of another.
pub(super) fn is_part(uri: &str, of: &str) -> bool {
    uri.strip_prefix(of).is_some_and(|rest| of.ends_with('/') || rest.starts_with(['/', '#', '?']))
}

fn uri_of(params: &RawJson) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        uri: String,
    }
    serde_json::from_str::<Params>(params.as_str()).ok().map(|params| params.uri)
}

/// Without updates of a resource that are followed by another of the same one.
fn last_updates(notices: Vec<Notice>) -> Vec<Notice> {
    let mut updated = HashSet::new();
    let is_last = |notice: &Notice| match &notice.said {
        Said::ResourceUpdated(params) => uri_of(params).is_none_or(|uri| updated.insert((notice.context, uri))),
        Said::Log(_) => true,
    };
    let mut kept: Vec<_> = notices.into_iter().rev().filter(is_last).collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_updates_of_a_resource_the_last_is_told_to_each_context() {
        let (ours, theirs) = (ContextId::new(), ContextId::new());
        let of = |context, said| Notice { upstream: "u".to_owned(), context: Some(context), said };
        let update = |context, uri: &str, n: u8| {
            of(context, Said::ResourceUpdated(RawJson::trusted(format!(r#"{{"uri":"{uri}","n":{n}}}"#))))
        };
        let log = |n: u8| of(ours, Said::Log(RawJson::trusted(n.to_string())));
        let all = vec![
            update(ours, "a", 1),
            log(1),
            update(theirs, "a", 2),
            update(ours, "b", 3),
            update(ours, "a", 4),
            log(1),
        ];
        let kept = vec![log(1), update(theirs, "a", 2), update(ours, "b", 3), update(ours, "a", 4), log(1)];
        assert_eq!(last_updates(all), kept);
    }

    #[test]
    fn a_session_hears_its_level_and_above() {
        let levels = LogLevels::default();
        let session = SessionId::new();
        let admits = |session, text: &str| levels.admits(session, &RawJson::trusted(text));
        let debug = r#"{"level":"debug","data":1e400}"#;
        assert!(admits(Some(session), debug) && admits(None, debug), "nothing was ruled out");
        let at = Timestamp::from_micros;
        assert!(levels.set(session, LogLevel::Debug, at(1)) && levels.set(session, LogLevel::Warning, at(3)));
        assert!(!levels.set(session, LogLevel::Error, at(2)), "it is older than what is known");
        assert!(!admits(Some(session), debug) && !admits(Some(session), r#"{"level":"notice"}"#));
        assert!(admits(Some(session), r#"{"level":"warning"}"#) && admits(Some(session), r#"{"level":"alert"}"#));
        assert!(admits(Some(session), r#"{"level":"odd"}"#) && admits(Some(session), "{}"), "not known, not ruled out");
        assert!(admits(Some(SessionId::new()), debug));
    }
}
