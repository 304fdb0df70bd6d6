//! The resources of a link that somebody follows, all by one subscription.
//!
//! A new set is subscribed to before the old one is left, and one that is refused costs nothing that is followed already: which
//! of its resources are the reason is found out by asking for parts of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::super::table::Table;
use super::listen::{Ended, Pauses, listen};
use crate::domain::json::RawJson;
use crate::lifecycle::spawn;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, quoted};

/// How many parts of a set are asked for at most before the rest of it counts as refused.
const MOST_PARTS: usize = 256;

/// What is followed over one link.
#[derive(Default)]
pub(in super::super) struct Resources {
    desk: Mutex<Option<Desk>>,
}

#[derive(Clone)]
struct Desk {
    wanted: watch::Sender<Wanted>,
    decided: watch::Sender<Decided>,
}

/// What is to be followed. No entry is idle.
type Wanted = BTreeMap<String, Want>;

/// Why a resource is wanted.
#[derive(Default)]
struct Want {
    /// How many wait for what the upstream says of it.
    wishes: usize,
    /// Whether it is followed from now on, waited for or not.
    is_kept: bool,
}

/// What the upstream said of each resource that is wanted: that it tells of it, or why not.
type Decided = BTreeMap<String, Result<(), String>>;

impl Resources {
    /// Follows a resource from now on; one that is not followed is not wanted any more, nor is one that nobody waits for,
    /// unless it was before.
    ///
    /// # Errors
    /// Why the upstream does not tell of it.
    pub(in super::super) async fn add(&self, table: &Arc<Table>, uri: &str) -> Result<(), String> {
        let desk = self.desk(table);
        let wish = desk.wish(uri);
        let mut decided = desk.decided.subscribe();
        let answer = decided.wait_for(|decided| decided.contains_key(uri));
        let answer = tokio::select! {
            answer = answer => answer.ok().and_then(|decided| decided.get(uri).cloned()),
            () = table.closed().cancelled() => None,
        };
        let answer = answer.unwrap_or_else(|| Err(table.why_closed()));
        if answer.is_ok() {
            desk.keep(uri);
        }
        drop(wish);
        answer
    }

    /// Wants a resource followed, as soon as the upstream takes it.
    pub(in super::super) fn want(&self, table: &Arc<Table>, uri: &str) {
        self.desk(table).keep(uri);
    }

    /// Follows a resource no longer, unless somebody still waits to follow it.
    pub(in super::super) fn remove(&self, uri: &str) {
        if let Some(desk) = &*self.lock() {
            desk.take_back(uri, |want| want.is_kept = false);
        }
    }

    /// Where it is said what to follow; whoever acts on that runs as long as the link stands.
    fn desk(&self, table: &Arc<Table>) -> Desk {
        let mut desk = self.lock();
        let desk = desk.get_or_insert_with(|| {
            let (wanted, all) = watch::channel(Wanted::new());
            let desk = Desk { wanted, decided: watch::Sender::default() };
            let (table, tell) = (Arc::clone(table), desk.decided.clone());
            spawn("upstream resources", async move {
                let closed = table.closed().clone();
                tokio::select! {
                    () = closed.cancelled() => {}
                    () = follow_resources(table, all, tell) => {}
                }
            });
            desk
        });
        desk.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Desk>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    /// Wants a resource for somebody who waits for what is decided of it.
    fn wish<'a>(&'a self, uri: &'a str) -> Wish<'a> {
        self.wanted.send_if_modified(|wanted| {
            let is_new = !wanted.contains_key(uri);
            wanted.entry(uri.to_owned()).or_default().wishes += 1;
            if is_new {
                // Of another time. Whoever decides cannot see the wish before this is gone, and decides after it.
                self.decided.send_if_modified(|decided| decided.remove(uri).is_some());
            }
            is_new
        });
        Wish { desk: self, uri }
    }

    fn keep(&self, uri: &str) {
        self.wanted.send_if_modified(|wanted| {
            let is_new = !wanted.contains_key(uri);
            wanted.entry(uri.to_owned()).or_default().is_kept = true;
            is_new
        });
    }

    /// Takes a reason back for which a resource is wanted, and with the last one the resource.
    fn take_back(&self, uri: &str, reason: impl FnOnce(&mut Want)) {
        self.wanted.send_if_modified(|wanted| {
            let Some(want) = wanted.get_mut(uri) else { return false };
            reason(want);
            let is_idle = want.wishes == 0 && !want.is_kept;
            is_idle && wanted.remove(uri).is_some()
        });
    }
}

/// A resource that is wanted for somebody who waits for the answer: taken back when it is dropped.
struct Wish<'a> {
    desk: &'a Desk,
    uri: &'a str,
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.desk.take_back(self.uri, |want| want.wishes -= 1);
    }
}

/// A subscription that was acknowledged. Dropping it ends it.
struct Standing {
    uris: BTreeSet<String>,
    honoured: BTreeSet<String>,
    since: Instant,
    ended: AbortOnDropHandle<Ended>,
}

impl Standing {
    async fn open(table: &Arc<Table>, uris: BTreeSet<String>) -> Result<Self, Ended> {
        let (acknowledge, acknowledged) = oneshot::channel();
        let quoted: Vec<_> = uris.iter().map(|uri| quoted(uri)).collect();
        let filter = format!(r#"{{"resourceSubscriptions":[{}]}}"#, quoted.join(","));
        let on = Arc::clone(table);
        let mut ended = AbortOnDropHandle::new(spawn("upstream subscription", async move {
            listen(&on, &filter, |honoured| drop(acknowledge.send(honoured))).await
        }));
        match acknowledged.await {
            Ok(honoured) => Ok(Self { uris, honoured: uris_in(&honoured), since: Instant::now(), ended }),
            Err(_) => {
                Err((&mut ended).await.unwrap_or_else(|error| Ended { why: error.to_string(), is_refusal: false }))
            }
        }
    }

    fn decides(&self, uri: &str) -> Result<(), String> {
        let is_honoured = self.honoured.contains(uri);
        is_honoured.then_some(()).ok_or_else(|| "the server does not tell of changes of this resource".to_owned())
    }
}

/// Keeps one subscription open to all that is wanted and that the upstream takes.
async fn follow_resources(table: Arc<Table>, mut wanted: watch::Receiver<Wanted>, tell: watch::Sender<Decided>) {
    let mut pauses = Pauses::default();
    let mut standing: Option<Standing> = None;
    loop {
        let asked: BTreeSet<_> = wanted.borrow_and_update().keys().cloned().collect();
        if asked.is_empty() || standing.as_ref().is_some_and(|standing| standing.ended.is_finished()) {
            standing = None;
        }
        let mut settling = Settling { table: &table, asked: &asked, standing, refused: BTreeMap::new() };
        if !settling.is_done() {
            settling.run(&tell).await;
        }
        tell.send_replace(settling.decided());
        let is_done = settling.is_done();
        standing = settling.standing;
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = until_again(&mut standing, is_done, &mut pauses) => {}
        }
    }
}

/// Ready when what stands has ended, or what was refused may be asked for again. What is wanted may change before.
async fn until_again(standing: &mut Option<Standing>, is_done: bool, pauses: &mut Pauses) {
    match standing {
        Some(standing) if is_done => {
            drop((&mut standing.ended).await);
            pauses.after(Some(standing.since.elapsed())).await;
        }
        Some(standing) => {
            let ended = tokio::select! {
                _ = &mut standing.ended => true,
                () = pauses.after(None) => false,
            };
            if ended {
                pauses.after(Some(standing.since.elapsed())).await;
            }
        }
        None if is_done => std::future::pending().await,
        None => pauses.after(None).await,
    }
}

/// Bringing the subscription to what is wanted.
struct Settling<'a> {
    table: &'a Arc<Table>,
    asked: &'a BTreeSet<String>,
    standing: Option<Standing>,
    /// Why not.
    refused: BTreeMap<String, String>,
}

impl Settling<'_> {
    fn is_done(&self) -> bool {
        self.standing.as_ref().map_or(self.asked.is_empty(), |standing| standing.uris == *self.asked)
    }

    fn is_followed(&self, uri: &str) -> bool {
        self.standing.as_ref().is_some_and(|standing| standing.uris.contains(uri))
    }

    fn decided(&self) -> Decided {
        let refused = self.refused.iter().map(|(uri, why)| (uri.clone(), Err(why.clone())));
        let standing = self.standing.iter().flat_map(|standing| {
            let uris = standing.uris.intersection(self.asked);
            uris.map(|uri| (uri.clone(), standing.decides(uri)))
        });
        refused.chain(standing).collect()
    }

    /// Asks for all of it; if that is refused for what is followed already, and then with parts of what is new, down to each
    /// resource that is refused by itself.
    async fn run(&mut self, tell: &watch::Sender<Decided>) {
        let (old, new) = self.asked.iter().cloned().partition::<Vec<_>, _>(|uri| self.is_followed(uri));
        let mut taken = BTreeSet::new();
        let mut refused_sets: Vec<(BTreeSet<String>, String)> = Vec::new();
        let mut parts = vec![self.asked.iter().cloned().collect::<Vec<_>>()];
        let mut why = String::new();
        while let Some(mut part) = parts.pop() {
            let set: BTreeSet<_> = taken.iter().cloned().chain(part.iter().cloned()).collect();
            match refused_sets.iter().find(|(refused, _)| *refused == set) {
                Some((_, known)) => why.clone_from(known),
                None if refused_sets.len() >= MOST_PARTS => break,
                None => match Standing::open(self.table, set.clone()).await {
                    Ok(standing) => {
                        self.standing = Some(standing);
                        taken = set;
                        tell.send_replace(self.decided());
                        continue;
                    }
                    Err(ended) => {
                        why = ended.why;
                        if !ended.is_refusal {
                            break;
                        }
                        refused_sets.push((set, why.clone()));
                    }
                },
            }
            if let [uri] = part.as_slice() {
                self.refused.insert(uri.clone(), why.clone());
                tell.send_replace(self.decided());
                continue;
            }
            let rest = if part.len() == self.asked.len() && !old.is_empty() && !new.is_empty() {
                part.clone_from(&old);
                new.clone()
            } else {
                part.split_off(part.len() / 2)
            };
            parts.extend([rest, part]);
        }
        for uri in self.asked {
            if !self.is_followed(uri) && !self.refused.contains_key(uri) {
                self.refused.insert(uri.clone(), why.clone());
            }
        }
    }
}

fn uris_in(honoured: &RawJson) -> BTreeSet<String> {
    let list = member(honoured.as_str(), "resourceSubscriptions").unwrap_or("[]");
    items(list).filter_map(string_value).map(std::borrow::Cow::into_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    const URI: &str = "x://1";

    fn desk() -> Desk {
        Desk { wanted: watch::Sender::default(), decided: watch::Sender::default() }
    }

    // Bug: the decision of another time was removed after the wish was seen, and with it, now and then, that of this one.
    #[test]
    fn what_is_decided_of_a_wish_is_not_taken_for_that_of_another_time() {
        let (desk, is_over) = (desk(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (mut wanted, tell, is_over) = (desk.wanted.subscribe(), desk.decided.clone(), &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    if wanted.has_changed().unwrap_or(false) {
                        let uris: Vec<_> = wanted.borrow_and_update().keys().cloned().collect();
                        tell.send_replace(uris.into_iter().map(|uri| (uri, Ok(()))).collect());
                    }
                }
            });
            let lost = (0..20_000).find(|_| {
                let deadline = Instant::now() + Duration::from_secs(5);
                let _wish = desk.wish(URI);
                while !desk.decided.borrow().contains_key(URI) {
                    if Instant::now() > deadline {
                        return true;
                    }
                    std::thread::yield_now();
                }
                false
            });
            is_over.store(true, Ordering::SeqCst);
            assert_eq!(lost, None, "the wish whose decision was lost");
        });
    }

    // Bug: the first one who wished for a resource took it with him when he left, and others waited for it in vain.
    #[test]
    fn a_resource_is_wanted_as_long_as_anybody_waits_for_it_or_keeps_it() {
        let desk = desk();
        let is_wanted = || desk.wanted.borrow().contains_key(URI);
        let (first, second) = (desk.wish(URI), desk.wish(URI));
        drop(first);
        assert!(is_wanted(), "the second one waits");
        // Another one takes back what he had.
        desk.take_back(URI, |want| want.is_kept = false);
        assert!(is_wanted(), "the second one waits");
        drop(second);
        assert!(!is_wanted());
        let wish = desk.wish(URI);
        desk.keep(URI);
        drop(wish);
        assert!(is_wanted(), "it is kept");
        desk.take_back(URI, |want| want.is_kept = false);
        assert!(!is_wanted());
        desk.take_back(URI, |want| want.is_kept = false);
        assert!(desk.wanted.borrow().is_empty());
    }
}
