//! Updates of resources on streams of news: which streams follow what (NOTE-12).

use std::collections::{BTreeSet, HashMap, HashSet};

use super::Streams;
use super::delivery::Delivery;
use crate::domain::ids::ContextId;
use crate::domain::json::RawJson;
use crate::engine::subscriptions::MOST_URI_BYTES;
use crate::executor::Subscription;

/// The keys of streams by the upstream and the URI that they follow: an update costs the same however many listen to others.
#[derive(Default)]
pub(super) struct Followers(HashMap<String, HashMap<String, BTreeSet<u64>>>);

impl Followers {
    fn add(&mut self, key: u64, Subscription { upstream, uri, .. }: &Subscription) {
        self.0.entry(upstream.clone()).or_default().entry(uri.clone()).or_default().insert(key);
    }

    pub(super) fn remove(&mut self, key: u64, Subscription { upstream, uri, .. }: &Subscription) {
        let Some(by_uri) = self.0.get_mut(upstream) else { return };
        let Some(keys) = by_uri.get_mut(uri) else { return };
        keys.remove(&key);
        if keys.is_empty() {
            by_uri.remove(uri);
        }
        if by_uri.is_empty() {
            self.0.remove(upstream);
        }
    }

    fn exactly(&self, upstream: &str, uri: &str) -> impl Iterator<Item = u64> {
        self.0.get(upstream).and_then(|by_uri| by_uri.get(uri)).into_iter().flatten().copied()
    }

    /// Those that follow this, or what it is a part of, each once.
    fn of(&self, upstream: &str, uri: &str) -> BTreeSet<u64> {
        wholes(uri).flat_map(|whole| self.exactly(upstream, whole)).collect()
    }
}

/// The URI, and those of which it names a part: the same as [`crate::engine::logging::is_part`] says, without asking it of each
/// that is followed. Longer ones than may be followed are left out.
fn wholes(uri: &str) -> impl Iterator<Item = &str> {
    let cuts = uri.bytes().take(MOST_URI_BYTES).enumerate().flat_map(|(at, byte)| match byte {
        b'/' => at..at + 2,
        b'#' | b'?' => at..at + 1,
        _ => at..at,
    });
    cuts.chain([uri.len()]).filter(|cut| *cut <= MOST_URI_BYTES).map(|cut| &uri[..cut])
}

impl Streams {
    /// From now on the stream is told of what is said of this, if it is followed.
    pub(in crate::engine) fn wants_updates(&self, key: u64, subscription: Subscription) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(listener) = state.listeners.get_mut(&key) {
            state.followers.add(key, &subscription);
            listener.follows.insert(subscription);
        }
    }

    pub(in crate::engine) fn wants_no_updates(&self, key: u64, subscription: &Subscription) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(listener) = state.listeners.get_mut(&key) {
            listener.follows.remove(subscription);
            state.followers.remove(key, subscription);
        }
    }

    /// What is to be followed for streams of news here.
    pub(in crate::engine) fn subscriptions(&self) -> HashSet<Subscription> {
        self.lock().listeners.values().flat_map(|listener| listener.follows.iter().cloned()).collect()
    }

    pub(in crate::engine) fn is_followed(&self, subscription: &Subscription) -> bool {
        let state = self.lock();
        let mut keys = state.followers.exactly(&subscription.upstream, &subscription.uri);
        keys.any(|key| state.listeners.get(&key).is_some_and(|listener| listener.context == subscription.context))
    }

    /// An upstream says that a resource has changed: to the streams of one context, or of all over a link that is everybody's.
    /// It may be a part of what they follow.
    pub(in crate::engine) fn tell_update(
        &self,
        context: Option<ContextId>,
        upstream: &str,
        uri: &str,
        params: &RawJson,
    ) {
        let (state, now) = (self.lock(), self.clock.now());
        let following = state.followers.of(upstream, uri);
        for listener in following.iter().filter_map(|key| state.listeners.get(key)) {
            if context.is_none_or(|context| listener.context == context) {
                listener.line.push(Delivery::ResourceUpdated { params: params.clone() }, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::logging::is_part;

    #[test]
    fn a_part_is_of_the_same_whether_all_are_asked_or_its_wholes_are_looked_up() {
        for uri in ["file:///a/b/c.txt?x=1#y", "x://1", "x://1/", "/", "", "//é/ü#?", "a?b/c"] {
            let found: BTreeSet<_> = wholes(uri).collect();
            let ends = uri.char_indices().map(|(at, _)| at).chain([uri.len()]);
            let parts = ends.map(|end| &uri[..end]).filter(|of| *of == uri || is_part(uri, of));
            assert_eq!(found, parts.collect(), "{uri}");
        }
    }

    #[test]
    fn streams_are_found_by_what_they_follow_and_forgotten_without_a_trace() {
        let context = ContextId::new();
        let of =
            |upstream: &str, uri: &str| Subscription { context, upstream: upstream.to_owned(), uri: uri.to_owned() };
        let mut followers = Followers::default();
        let all = [(1, of("u", "x://a")), (2, of("u", "x://a/b")), (1, of("u", "x://a/b")), (3, of("v", "x://a"))];
        for (key, subscription) in &all {
            followers.add(*key, subscription);
        }
        let told = |followers: &Followers, uri: &str| followers.of("u", uri).into_iter().collect::<Vec<_>>();
        assert_eq!(told(&followers, "x://a"), [1]);
        assert_eq!(told(&followers, "x://a/b#c"), [1, 2], "each once");
        assert!(told(&followers, "x://ab").is_empty());
        followers.remove(1, &all[2].1);
        assert_eq!(told(&followers, "x://a/b"), [1, 2], "it follows the whole still");
        for (key, subscription) in &all {
            followers.remove(*key, subscription);
        }
        assert!(followers.0.is_empty());
    }
}
