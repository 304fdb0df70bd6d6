//! What a context's link is subscribed to, as long as somebody wants it.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;

use super::{Links, Slot, lock};
use crate::domain::ids::ContextId;
use crate::executor::upstream::link::Link;
use crate::executor::upstream::relay::{subscribe, unsubscribe};
use crate::lifecycle::spawn;

/// How many subscriptions of one link may be made anew at once.
const SUBSCRIBING: usize = 8;

impl Links {
    /// Notes that the context's link is subscribed to a resource.
    pub(in crate::executor::upstream) fn follow(&self, context: ContextId, uri: &str) {
        self.slot(context).lock().followed.entry(uri.to_owned()).or_default().insert(context);
    }

    pub(in crate::executor::upstream) fn follows(&self, context: ContextId, uri: &str) -> bool {
        let slot = lock(&self.slots).get(&self.key(context)).map(Arc::clone);
        slot.is_some_and(|slot| slot.lock().followed.get(uri).is_some_and(|contexts| contexts.contains(&context)))
    }

    /// Takes a subscription back; whether the link still needs it for somebody else.
    pub(in crate::executor::upstream) fn unfollow(&self, context: ContextId, uri: &str) -> bool {
        let slot = self.slot(context);
        let mut state = slot.lock();
        let Some(contexts) = state.followed.get_mut(uri) else { return false };
        contexts.remove(&context);
        if contexts.is_empty() {
            state.followed.remove(uri);
            return false;
        }
        true
    }

    /// Takes back all subscriptions but those that are wanted.
    pub(in crate::executor::upstream) fn keep(self: &Arc<Self>, is_wanted: impl Fn(ContextId, &str) -> bool) {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        for slot in slots {
            let gone: Vec<String> = {
                let mut state = slot.lock();
                for (uri, contexts) in &mut state.followed {
                    contexts.retain(|context| is_wanted(*context, uri));
                }
                let gone: Vec<_> = state.followed.extract_if(|_, contexts| contexts.is_empty()).collect();
                gone.into_iter().map(|(uri, _)| uri).collect()
            };
            if !gone.is_empty()
                && let Some(lease) = self.running(&slot)
            {
                spawn("upstream subscriptions end", async move {
                    for uri in gone {
                        unsubscribe(&lease.link, &uri).await;
                    }
                });
            }
        }
    }

    /// Starts again what is subscribed to something and has ended.
    pub(super) fn restart_followers(self: &Arc<Self>) {
        let slots: Vec<_> = lock(&self.slots).iter().map(|(key, slot)| (key.clone(), Arc::clone(slot))).collect();
        let is_down = |slot: &Slot| {
            let state = slot.lock();
            let up = state.link.as_ref().is_some_and(|link| !link.is_closed());
            !state.followed.is_empty() && !up && state.not_before <= self.clock.boot()
        };
        for (key, slot) in slots {
            if is_down(&slot) && slot.starting.try_lock().is_ok() {
                let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else { return };
                let links = Arc::clone(self);
                let start = async move { drop(links.running_or_started(key, Some(room)).await) };
                spawn("upstream subscriptions", start);
            }
        }
    }
}

/// Subscribes a new link to what the link before it was subscribed to.
pub(super) async fn subscribe_anew(link: Arc<Link>, slot: Arc<Slot>, uris: Vec<String>) {
    let one = async |uri: String| {
        // It may have been taken back meanwhile.
        if slot.lock().followed.contains_key(&uri) && !link.is_closed() {
            subscribe(&link, &uri).await;
        }
    };
    stream::iter(uris).for_each_concurrent(SUBSCRIBING, one).await;
}
