//! The checker finds each kind of fault in a history that has it, and nothing in one that has none.

use std::collections::HashMap;
use std::time::Duration;

use super::checker::{Allowed, Verdict, judge};
use super::history::{Era, Event, Pages, What};
use super::work::{Kind, Work};

const ALL: Allowed = Allowed { hiccups: true, lost_runs: true };
const NONE: Allowed = Allowed { hiccups: false, lost_runs: false };
const UNKNOWN: &str = r#"{"error":{"code":-32603,"message":"x","data":{"reason":"outcome_unknown"}}}"#;
const CHARGED: &str = r#"{"result":{"content":[{"type":"text","text":"charged"}]}}"#;

/// A history of one task, `t`, of context 0, whose call is not to be repeated.
struct Book {
    pages: Pages,
    runs: HashMap<usize, usize>,
    clock: u64,
}

impl Book {
    fn new(kind: Kind) -> Self {
        let work = Work { mark: "c0-0".to_owned(), context: 0, kind };
        let mut runs = HashMap::new();
        if let Kind::Charge(_) = kind {
            runs.insert(0, 1);
        }
        let book = Self { pages: Pages { works: vec![work], events: Vec::new() }, runs, clock: 0 };
        book.then(What::Made { work: 0, task: "t".to_owned(), status: "working".to_owned() })
    }

    /// What was seen after all of before.
    fn then(self, what: What) -> Self {
        self.by(0, what)
    }

    fn by(mut self, context: usize, what: What) -> Self {
        self.clock += 2;
        let event = |at| Duration::from_millis(at);
        self.pages.events.push(Event { asked: event(self.clock), answered: event(self.clock + 1), context, what });
        self
    }

    fn seen(self, status: &str, updated: &str) -> Self {
        self.then(seen("t", status, updated))
    }

    fn outcome(self, text: &str) -> Self {
        self.then(outcome(text))
    }

    fn ended(self) -> Self {
        self.seen("working", "1").seen("completed", "2").outcome(CHARGED)
    }

    fn judge(&self, allowed: Allowed) -> Verdict {
        judge(&self.pages, &self.runs, allowed)
    }

    /// Which kinds of faults are found.
    fn found(&self, allowed: Allowed) -> Vec<&'static str> {
        let verdict = self.judge(allowed);
        verdict.faults().into_iter().filter(|(_, faults)| !faults.is_empty()).map(|(kind, _)| kind).collect()
    }
}

fn seen(task: &str, status: &str, updated: &str) -> What {
    What::Seen {
        task: task.to_owned(),
        era: Era::Legacy,
        status: status.to_owned(),
        created: "0".to_owned(),
        updated: updated.to_owned(),
        text: format!("{status} {updated}"),
    }
}

fn outcome(text: &str) -> What {
    What::Outcome { task: "t".to_owned(), era: Era::Legacy, text: text.to_owned() }
}

fn listed(tasks: &[&str]) -> What {
    What::Listed { tasks: tasks.iter().map(|&task| task.to_owned()).collect() }
}

fn charge() -> Book {
    Book::new(Kind::Charge(1))
}

#[test]
fn a_good_history_has_no_faults() {
    let book = charge().ended().outcome(CHARGED).seen("completed", "2").then(listed(&["t"]));
    assert!(book.found(NONE).is_empty(), "{}", book.judge(NONE).complaint());
    assert_eq!(book.judge(NONE).acknowledged, 1);
    let asked = Book::new(Kind::Ask).seen("input_required", "1").seen("working", "2").seen("completed", "3");
    let asked = asked.outcome(r#"{"result":{"content":[{"type":"text","text":"[{\"answer\":\"c0-0\"}]"}]}}"#);
    assert!(asked.found(NONE).is_empty(), "{}", asked.judge(NONE).complaint());
    let cancelled = charge().then(What::Cancels { task: "t".to_owned() }).seen("cancelled", "2");
    assert!(cancelled.found(NONE).is_empty(), "{}", cancelled.judge(NONE).complaint());
}

#[test]
fn a_lost_task_is_found() {
    assert_eq!(charge().ended().then(What::Missing { task: "t".to_owned() }).found(ALL), ["lost"]);
    assert_eq!(charge().ended().then(listed(&[])).found(ALL), ["lost"]);
}

#[test]
fn an_end_that_changes_is_found() {
    assert_eq!(charge().ended().outcome(UNKNOWN).found(ALL), ["changed"]);
    assert_eq!(charge().ended().seen("completed", "3").found(ALL), ["changed"]);
    assert_eq!(charge().ended().seen("working", "2").found(ALL), ["changed"]);
    assert_eq!(charge().ended().seen("failed", "2").found(ALL), ["changed", "dishonest"]);
    // Looks that overlap with the end say nothing.
    let mut overlapping = charge().ended().seen("working", "1");
    overlapping.pages.events.last_mut().unwrap().asked = Duration::from_millis(1);
    assert!(overlapping.found(ALL).is_empty());
}

#[test]
fn work_that_runs_twice_is_found() {
    let mut book = charge().ended();
    book.runs.insert(0, 2);
    assert_eq!(book.found(ALL), ["run twice"]);
    let work = Work { mark: "c0-1".to_owned(), context: 0, kind: Kind::Charge(1) };
    let mut unanswered = charge().ended().then(What::Unanswered { work: 1 });
    unanswered.pages.works.push(work);
    unanswered.runs.insert(1, 2);
    assert_eq!(unanswered.found(ALL), ["run twice"], "also where nobody was told of it");
}

#[test]
fn a_stuck_task_is_found() {
    assert_eq!(charge().found(ALL), ["stuck"]);
    assert_eq!(charge().seen("working", "1").seen("input_required", "2").found(ALL), ["stuck"]);
}

#[test]
fn forbidden_steps_are_found() {
    let mut ended = Book::new(Kind::Ask).ended().pages;
    let What::Made { status, .. } = &mut ended.events[0].what else { panic!("it is made first") };
    *status = "completed".to_owned();
    let book = Book { pages: ended, ..charge() };
    assert_eq!(book.found(ALL)[0], "forbidden", "LIFE-01");
    assert_eq!(charge().seen("working", "2").seen("working", "1").seen("completed", "2").found(ALL), ["forbidden"]);
    assert_eq!(charge().seen("paused", "1").ended().found(ALL), ["forbidden"]);
}

#[test]
fn foreign_data_is_found() {
    let seen_by = |context| charge().ended().by(context, seen("t", "completed", "2"));
    assert_eq!(seen_by(1).found(ALL), ["foreign"]);
    assert!(seen_by(0).found(ALL).is_empty());
    let trespassed = What::Trespassed { task: "t".to_owned(), text: "all of it".to_owned() };
    assert_eq!(charge().ended().by(1, trespassed).found(ALL), ["foreign"]);
    assert_eq!(charge().ended().by(1, listed(&["t"])).found(ALL), ["foreign"]);
    assert_eq!(charge().ended().then(listed(&["t", "t"])).found(ALL), ["foreign"]);
    assert_eq!(charge().ended().then(listed(&["t", "u"])).found(ALL), ["foreign"], "a task of nobody");
    let again = What::Made { work: 0, task: "t".to_owned(), status: "working".to_owned() };
    assert_eq!(charge().ended().then(again).found(ALL), ["foreign"], "an id that was given twice");
    // Another call's result.
    let other = r#"{"result":{"structuredContent":{"mark":"c1-7"}}}"#;
    assert_eq!(Book::new(Kind::Echo).seen("completed", "1").outcome(other).found(ALL), ["dishonest"]);
}

#[test]
fn dishonest_ends_are_found() {
    let ends = |status: &str, text: &str| charge().seen(status, "1").outcome(text);
    assert!(ends("failed", UNKNOWN).found(ALL).is_empty());
    assert_eq!(ends("failed", UNKNOWN).found(NONE), ["dishonest"], "nothing broke");
    assert_eq!(ends("failed", CHARGED).found(ALL), ["dishonest"]);
    let unavailable = UNKNOWN.replace("outcome_unknown", "upstream_unavailable");
    assert_eq!(ends("failed", &unavailable).found(ALL), ["dishonest"], "it ran");
    let mut never_ran = ends("completed", CHARGED);
    never_ran.runs.insert(0, 0);
    assert_eq!(never_ran.found(ALL), ["dishonest"]);
    let cancelled = r#"{"error":{"code":-32800,"message":"cancelled"}}"#;
    assert_eq!(ends("cancelled", cancelled).found(ALL), ["dishonest"], "by nobody");
    // LIFE-07
    let told = charge().then(What::Cancels { task: "t".to_owned() }).then(What::Cancelled { task: "t".to_owned() });
    assert_eq!(told.ended().found(ALL), ["dishonest"]);
}

#[test]
fn failed_requests_are_found_where_nothing_may_fail() {
    let hiccup = charge().ended().then(What::Hiccup { text: "503".to_owned() });
    assert!(hiccup.found(ALL).is_empty());
    assert_eq!(hiccup.found(NONE), ["dishonest"]);
    assert_eq!(charge().ended().then(What::Strange { text: "500".to_owned() }).found(ALL), ["dishonest"]);
    let plain = |text: &str| charge().ended().then(What::Plain { work: 0, text: text.to_owned() });
    assert!(plain(CHARGED).found(NONE).is_empty());
    assert_eq!(plain(UNKNOWN).found(NONE), ["dishonest"]);
    assert!(plain(UNKNOWN).found(ALL).is_empty());
}
