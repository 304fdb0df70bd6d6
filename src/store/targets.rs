//! The servers that may have the database, and which of them is in use.
//!
//! Whoever opens a connection asks for the server to [`aim`](Targets::aim) at, and says how it went: [`turn`](Targets::turn)
//! after a failure, [`reached`](Targets::reached) after a success. Connections to another server than the one that was
//! reached last are left.
//!
//! Each step of a start looks for the server anew. The log has one line of where it was found, by whoever opens the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Mutex, OwnedMutexGuard, watch};

/// One server.
#[derive(Debug, Clone)]
pub struct Server<O> {
    /// For people; without secrets.
    pub name: String,
    pub options: O,
}

/// The servers of one database, in the order in which they are tried. Of all there is at least one.
#[derive(Debug)]
pub struct Targets<O> {
    list: Vec<Server<O>>,
    /// How often the next one was turned to.
    turns: AtomicU64,
    /// The place in the list of the one that was reached last.
    held: watch::Sender<usize>,
    /// Whether one was reached yet.
    in_use: AtomicBool,
    searching: Arc<Mutex<()>>,
}

/// What to connect to now.
#[derive(Debug, Clone, Copy)]
pub struct Aim<'t, O> {
    pub options: &'t O,
    /// Its place in the list.
    pub at: usize,
    /// How often was turned before.
    pub seen: u64,
}

impl<O> Targets<O> {
    /// # Panics
    /// If the list is empty: the configuration does not let it be.
    pub fn new(list: Vec<Server<O>>) -> Self {
        assert!(!list.is_empty(), "a database has a server");
        Self {
            list,
            turns: AtomicU64::new(0),
            held: watch::Sender::new(0),
            in_use: AtomicBool::new(false),
            searching: Arc::default(),
        }
    }

    /// One server alone.
    pub fn one(name: impl Into<String>, options: O) -> Self {
        Self::new(vec![Server { name: name.into(), options }])
    }

    /// Whether there is another one to turn to.
    pub fn several(&self) -> bool {
        self.list.len() > 1
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn aim(&self) -> Aim<'_, O> {
        let seen = self.turns.load(Ordering::SeqCst);
        let at = usize::try_from(seen % self.list.len() as u64).unwrap_or_default();
        Aim { options: &self.list[at].options, at, seen }
    }

    /// Turns to the next one, unless somebody has since `seen`: of many who find a server gone, one turns.
    pub fn turn(&self, seen: u64) -> bool {
        self.several() && self.turns.compare_exchange(seen, seen + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// A connection to the server at this place can be used. If that is another one than before, whoever has connections to
    /// that one leaves it.
    pub fn reached(&self, at: usize) {
        let was_in_use = self.in_use.swap(true, Ordering::SeqCst);
        self.held.send_if_modified(|held| {
            let from = std::mem::replace(held, at);
            if from != at && was_in_use {
                tracing::warn!(
                    from = %self.list[from].name, to = %self.list[at].name,
                    "the database is used on another server from now on"
                );
            }
            from != at
        });
    }

    /// Starts from the server at this place, which somebody found to be the one.
    pub fn go_to(&self, at: usize) {
        self.in_use.store(true, Ordering::SeqCst);
        self.turns.store(at as u64, Ordering::SeqCst);
        self.held.send_replace(at);
    }

    /// Says so if the first one is not the one.
    pub fn tell_where(&self) {
        let at = self.held();
        if at > 0 {
            tracing::warn!(
                first = %self.list[0].name, to = %self.list[at].name,
                "the database is used on another server than the first, which does not answer or takes no writes"
            );
        }
    }

    /// The place of the server that was reached last, and to which connections are kept.
    pub fn held(&self) -> usize {
        *self.held.borrow()
    }

    pub fn options(&self, at: usize) -> &O {
        &self.list[at].options
    }

    pub fn name(&self, at: usize) -> &str {
        &self.list[at].name
    }

    /// The same servers, to be connected to in another way; the same one is in use.
    pub fn map<P>(&self, options: impl Fn(&O) -> P) -> Targets<P> {
        let list =
            self.list.iter().map(|server| Server { name: server.name.clone(), options: options(&server.options) });
        Targets {
            list: list.collect(),
            turns: AtomicU64::new(self.held() as u64),
            held: watch::Sender::new(self.held()),
            in_use: AtomicBool::new(self.in_use.load(Ordering::SeqCst)),
            searching: Arc::default(),
        }
    }

    /// The right to search for another server; `None` while somebody has it.
    pub fn search(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.searching).try_lock_owned().ok()
    }

    /// Hears of each move to another server.
    pub fn moves(&self) -> watch::Receiver<usize> {
        self.held.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(names: &[&'static str]) -> Targets<&'static str> {
        Targets::new(names.iter().map(|name| Server { name: (*name).to_owned(), options: *name }).collect())
    }

    #[test]
    fn of_many_who_find_a_server_gone_one_turns() {
        let targets = targets(&["a", "b", "c"]);
        let seen = targets.aim().seen;
        assert_eq!(*targets.aim().options, "a");
        assert!(targets.turn(seen) && !targets.turn(seen));
        assert_eq!(*targets.aim().options, "b");
        assert!(targets.turn(targets.aim().seen) && targets.turn(targets.aim().seen));
        assert_eq!(*targets.aim().options, "a", "after the last comes the first");
    }

    #[test]
    fn one_server_alone_is_never_left() {
        let targets = targets(&["a"]);
        assert!(!targets.several() && !targets.turn(0));
        assert_eq!(targets.aim().seen, 0);
    }

    #[test]
    fn a_move_is_told_when_the_new_server_answers() {
        let targets = targets(&["a", "b"]);
        let mut moves = targets.moves();
        targets.reached(0);
        targets.turn(0);
        assert!(!moves.has_changed().unwrap() && targets.held() == 0, "to be tried is not to be used");
        targets.reached(1);
        assert_eq!((*moves.borrow_and_update(), targets.held()), (1, 1));
        targets.reached(1);
        assert!(!moves.has_changed().unwrap());
    }
}
