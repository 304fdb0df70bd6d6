//! Subscriptions to resources: rows of sessions, followed at their upstreams by one node each, and those of streams without a
//! session, which are in memory alone and followed by the node that has the stream.
//!
//! A row, or the stream's wish, comes before the upstream is asked and goes when it refuses, so that whatever is followed is
//! wanted; what is not any more is given up by [`Engine::tend_subscriptions_once`], which also follows what is wanted and is
//! not followed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::streams::Nobody;
use super::{Called, Caller, Engine, Refusal};
use crate::domain::ids::{ContextId, SessionId};
use crate::domain::json::RawJson;
use crate::domain::outcome::{Failure, Outcome};
use crate::executor::{Host, Relay, Subscription, Wanted};
use crate::lifecycle;
use crate::store::{NewSubscription, StoreError, SubscriptionRow};

/// What an index of either database can hold with room to spare.
pub(super) const MOST_URI_BYTES: usize = 2000;
const TEND_EVERY: Duration = Duration::from_secs(30);
/// Rows that one look takes over, or deletes.
const BATCH: u32 = 1000;
/// How many subscriptions are made anew at once, and how long each may take.
const FOLLOWING: usize = 8;
const FOLLOW_LIMIT: Duration = Duration::from_secs(30);
/// How long a stream that is opened waits for the upstreams of its resources: what is not followed by then is not promised.
const OPENING: Duration = Duration::from_secs(10);

/// Subscriptions that are being changed: each by one at a time.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<Subscription, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn of(&self, subscription: Subscription) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(subscription).or_default())
        };
        turn.lock_owned().await
    }
}

impl Engine {
    pub(super) fn check_uri(uri: &str) -> Result<(), Refusal> {
        if uri.len() > MOST_URI_BYTES {
            return Err(Refusal::UriTooLong { bytes: uri.len(), limit: MOST_URI_BYTES });
        }
        Ok(())
    }

    pub(super) async fn subscribe(
        self: &Arc<Self>,
        caller: &Caller,
        relay: Relay,
        uri: &str,
        host: Arc<dyn Host>,
        stop: CancellationToken,
    ) -> Result<Called, Refusal> {
        let Some(session) = caller.session else { return Err(Refusal::UnknownResource(uri.to_owned())) };
        Self::check_uri(uri)?;
        let (store, most) = (self.store.scoped(&caller.auth), self.rules.subscriptions_per_session);
        // Made again and refused, a subscription is what it was.
        let before = store.subscriptions(session).await?.into_iter().find(|row| row.uri == uri);
        let mut ended = Called::Outcome(Outcome::failure(&Failure::UpstreamUnavailable {
            detail: "no server takes subscriptions to it".to_owned(),
        }));
        // The row names the upstream, so they are asked one by one.
        for upstream in relay.upstreams.clone() {
            let subscription = Subscription { context: relay.context, upstream: upstream.clone(), uri: uri.to_owned() };
            let _turn = tokio::select! {
                turn = self.turns.of(subscription) => turn,
                () = stop.cancelled() => return Ok(Called::Stopped),
            };
            let new = NewSubscription {
                session,
                uri: uri.to_owned(),
                upstream: upstream.clone(),
                node: self.membership.node(),
                now: self.clock.now(),
            };
            if !store.add_subscription(new, most).await? {
                return Err(Refusal::LimitReached {
                    limit: "limits.subscriptions",
                    most: u64::from(most),
                    retry_after: Duration::from_secs(60),
                });
            }
            let one = Relay { upstreams: vec![upstream], ..relay.clone() };
            ended = self.pass_on(one, Arc::clone(&host), stop.clone()).await;
            if matches!(ended, Called::Outcome(Outcome::Result { .. })) {
                return Ok(ended);
            }
            match before.clone() {
                Some(SubscriptionRow { uri, upstream, node, .. }) => {
                    let old = NewSubscription { session, uri, upstream, node, now: self.clock.now() };
                    store.add_subscription(old, u32::MAX).await?;
                }
                None => {
                    store.end_subscription(session, uri).await?;
                }
            }
            if matches!(ended, Called::Stopped) {
                return Ok(ended);
            }
        }
        Ok(ended)
    }

    /// Answers `{}` also where there was no subscription: none is left.
    pub(super) async fn unsubscribe(
        self: &Arc<Self>,
        caller: &Caller,
        relay: Relay,
        uri: &str,
        host: Arc<dyn Host>,
        stop: CancellationToken,
    ) -> Result<Called, Refusal> {
        let done = Called::Outcome(Outcome::Result { json: RawJson::trusted("{}"), is_error: false });
        let Some(session) = caller.session else { return Ok(done) };
        let Some(row) = self.store.scoped(&caller.auth).end_subscription(session, uri).await? else { return Ok(done) };
        if row.node != self.membership.node() {
            // That node gives it up when it next looks at what is still wanted.
            return Ok(done);
        }
        let subscription = Subscription { context: relay.context, upstream: row.upstream.clone(), uri: uri.to_owned() };
        let _turn = tokio::select! {
            turn = self.turns.of(subscription.clone()) => turn,
            () = stop.cancelled() => return Ok(Called::Stopped),
        };
        let is_listened_to = self.streams.is_followed(&subscription);
        let others = self.subscribers(Some(relay.context), &row.upstream, uri).await?;
        if !others.is_empty() || is_listened_to {
            return Ok(done);
        }
        let ended = self.pass_on(Relay { upstreams: vec![row.upstream], ..relay }, host, stop).await;
        // Whatever the upstream says, nobody here is told of the resource any more.
        Ok(if matches!(ended, Called::Stopped) { ended } else { done })
    }

    /// The sessions that this node follows a resource for: of one context, or of all over a link that is everybody's.
    pub(super) async fn subscribers(
        &self,
        context: Option<ContextId>,
        upstream: &str,
        uri: &str,
    ) -> Result<Vec<(ContextId, SessionId)>, StoreError> {
        self.store.system().subscribers(self.membership.node(), context, upstream, uri).await
    }

    /// Takes over what a session subscribed to at nodes that may be gone: called when its stream opens here.
    pub(super) async fn take_over_subscriptions(&self, caller: &Caller) -> Result<(), StoreError> {
        let Some(session) = caller.session else { return Ok(()) };
        let store = self.store.scoped(&caller.auth);
        let node = self.membership.node();
        for row in store.subscriptions(session).await?.into_iter().filter(|row| row.node != node) {
            if self.store.system().take_subscription(row.clone(), node).await? {
                self.follow_again(followed_by(&row)).await;
            }
        }
        Ok(())
    }

    /// Takes over what dead nodes followed.
    pub(super) async fn take_orphaned_subscriptions(self: &Arc<Self>) -> Result<(), StoreError> {
        let store = self.store.system();
        let mut is_more = false;
        for row in store.orphaned_subscriptions(BATCH).await? {
            is_more |= store.take_subscription(row, self.membership.node()).await?;
        }
        if is_more {
            self.tend_subscriptions();
        }
        Ok(())
    }

    /// Follows resources for the stream of this key, which has no session; answers those that an upstream took, in their
    /// order. Each upstream that may have one is asked in turn.
    pub(super) async fn follow_for(self: &Arc<Self>, context: ContextId, key: u64, uris: Vec<String>) -> Vec<String> {
        if uris.is_empty() {
            return uris;
        }
        let until = Instant::now() + OPENING;
        let (engine, shelf) = (Arc::clone(self), self.shelf());
        // Whether or not the client is still there, so that what an upstream took is known to be followed.
        let follow = lifecycle::spawn("subscriptions", async move {
            let engine = &engine;
            let follow = |uri: String| {
                let upstreams = shelf.publishers(&uri);
                async move {
                    for upstream in upstreams {
                        let subscription = Subscription { context, upstream, uri: uri.clone() };
                        engine.streams.wants_updates(key, subscription.clone());
                        if timeout_at(until, engine.follow_resource(&subscription)).await.unwrap_or(false) {
                            return Some(uri);
                        }
                        engine.streams.wants_no_updates(key, &subscription);
                    }
                    None
                }
            };
            let followed: Vec<_> = stream::iter(uris).map(follow).buffered(FOLLOWING).collect().await;
            followed.into_iter().flatten().collect()
        });
        follow.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// Follows what a row of this node names, or a stream here, unless that is so or nobody wants it any more. One that fails
    /// is tried again with the next look.
    async fn follow_again(&self, subscription: Subscription) {
        let Subscription { context, upstream, uri } = &subscription;
        let rows = self.subscribers(Some(*context), upstream, uri).await;
        let is_wanted = rows.is_ok_and(|rows| !rows.is_empty()) || self.streams.is_followed(&subscription);
        if is_wanted && !timeout(FOLLOW_LIMIT, self.follow_resource(&subscription)).await.unwrap_or(false) {
            tracing::debug!(upstream.name = upstream, "a subscription could not be made anew; it will be tried again");
        }
    }

    /// Subscribes at the upstream, unless that is so. False if it did not take it.
    async fn follow_resource(&self, subscription: &Subscription) -> bool {
        let _turn = self.turns.of(subscription.clone()).await;
        if self.executor.follows(subscription) {
            return true;
        }
        let Subscription { context, upstream, uri } = subscription;
        let params = RawJson::from_value(&serde_json::json!({ "uri": uri }));
        let wanted = Wanted::Subscription(uri.clone());
        let capabilities = RawJson::trusted("{}");
        let relay = Relay { context: *context, upstreams: vec![upstream.clone()], wanted, params, capabilities };
        let ended = self.pass_on(relay, Arc::new(Nobody), self.stopped.child_token()).await;
        matches!(ended, Called::Outcome(Outcome::Result { .. }))
    }

    pub(super) async fn tend_subscriptions_loop(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(TEND_EVERY) => {}
                () = self.stopped.cancelled() => return,
            }
            if let Err(error) = self.tend_subscriptions_once().await {
                tracing::debug!(%error, "subscriptions could not be looked through");
            }
        }
    }

    /// Deletes rows whose session is gone, gives up what this node follows without a row, and follows what has one. Answers
    /// how many were deleted.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn tend_subscriptions_once(&self) -> Result<u64, StoreError> {
        let deleted = self.store.system().reap_subscriptions(BATCH).await?;
        self.look_through_subscriptions().await?;
        Ok(deleted)
    }

    async fn look_through_subscriptions(&self) -> Result<(), StoreError> {
        let rows = self.store.system().subscriptions_at(self.membership.node()).await?;
        let mut wanted: HashSet<_> = rows.iter().map(followed_by).collect();
        wanted.extend(self.streams.subscriptions());
        self.executor.keep_subscriptions(&wanted);
        wanted.retain(|subscription| !self.executor.follows(subscription));
        stream::iter(wanted).for_each_concurrent(FOLLOWING, |missing| self.follow_again(missing)).await;
        Ok(())
    }

    /// Looks soon, after a session or a stream ended or another node's subscriptions were taken over.
    pub fn tend_subscriptions(self: &Arc<Self>) {
        let engine = Arc::clone(self);
        lifecycle::spawn("subscriptions", async move {
            if let Err(error) = engine.look_through_subscriptions().await {
                tracing::debug!(%error, "subscriptions could not be looked through");
            }
        });
    }
}

fn followed_by(row: &SubscriptionRow) -> Subscription {
    Subscription { context: row.context, upstream: row.upstream.clone(), uri: row.uri.clone() }
}
