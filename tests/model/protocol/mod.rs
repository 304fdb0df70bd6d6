//! The protocol of leases and outcomes as a model whose every reachable state is looked at: claims, heartbeats, deaths, recovery,
//! cancels, ends, drains, with crashed nodes, nodes that stand still, and messages that are lost or come late. Statuses change by
//! `domain::transition` and lost calls go on by `domain::lease`, so that a change of those rules is a change of the model.
//! What it covers and what not: `docs/adr/0003-checked-model.md`.

mod reach;
mod state;
mod steps;

use stateright::{Checker, HasDiscoveries, Model, Property};
use taskhold::domain::lease::RestartPolicy::{self, Fail, Retry};
use taskhold::domain::outcome::Ending;
use taskhold::domain::task::Status;

use reach::Reach;
use state::{ATTEMPTS, Rules, State};
use steps::Step;

/// One size of the protocol: which tasks there are, how many nodes, and how much may go wrong.
#[derive(Clone)]
struct Protocol {
    rules: Rules,
    tasks: Vec<RestartPolicy>,
    /// Places for nodes, and how many are taken at first.
    places: usize,
    up: usize,
    faults: u8,
    /// Whether work may ask its caller something, once.
    asks: bool,
}

impl Protocol {
    fn of(tasks: &[RestartPolicy], places: usize, up: usize, faults: u8) -> Self {
        Self { rules: Rules::ALL, tasks: tasks.to_vec(), places, up, faults, asks: false }
    }

    fn drains_repeatable_work(&self) -> bool {
        self.faults > 0 && self.tasks.contains(&Retry)
    }

    /// The same with a rule less.
    fn without(mut self, break_rule: impl FnOnce(&mut Rules)) -> Self {
        break_rule(&mut self.rules);
        self
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.tasks, self.asks, self.places, self.up, self.faults)]
    }

    fn actions(&self, state: &State, found: &mut Vec<Step>) {
        steps::steps(&self.rules, state, found);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let after = steps::after(&self.rules, state, step);
        (after != *state).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_END, |_, state: &State| !state.seen.end_changed),
            Property::always(CANCELLED, |_, state: &State| {
                let cancelled = Status::Ended(Ending::Cancelled);
                state.tasks.iter().all(|task| !task.cancelled || task.status == cancelled)
            }),
            Property::always(FENCED, |_, state: &State| !state.seen.stranger_spoke),
            Property::always(ONCE, |_, state: &State| {
                state.tasks.iter().all(|task| task.restart == Retry || task.sent <= 1)
            }),
            Property::always(BOUNDED, |_, state: &State| {
                let within = |task: &state::Task| task.attempt <= ATTEMPTS && task.sent <= ATTEMPTS + task.given_back;
                state.tasks.iter().all(within)
            }),
            Property::always(SENT_BY_LEASE, |_, state: &State| !state.seen.sent_without_lease),
            Property::always("an ended task has no lease", |_, state: &State| {
                state.tasks.iter().all(|task| !task.status.is_terminal() || task.lease.is_none())
            }),
            Property::sometimes("a late write is on its way", |_, state: &State| {
                state.wire.iter().any(|write| !state.holds(write.task, write.token))
            }),
            Property::sometimes("a node goes on under a new id", |_, state: &State| {
                state.nodes.iter().any(|node| node.attempts.iter().any(|attempt| attempt.of_old_id))
            }),
            Property::sometimes("a task goes on after a drain", |model: &Self, state: &State| {
                state.tasks.iter().any(|task| task.given_back > 0 && task.sent > 1) || !model.drains_repeatable_work()
            }),
            Property::sometimes("a task completes at its second attempt", |model: &Self, state: &State| {
                let completed = Status::Ended(Ending::Completed);
                let again = |task: &state::Task| task.status == completed && task.sent > 1;
                state.tasks.iter().any(again) || !model.tasks.contains(&Retry)
            }),
            Property::sometimes("a task asks", |model: &Self, state: &State| {
                state.tasks.iter().any(|task| task.status == Status::InputRequired) || !model.asks
            }),
            Property::sometimes("an outcome stays unknown", |model: &Self, state: &State| {
                state.tasks.iter().any(|task| task.status == Status::Ended(Ending::Failed)) || model.tasks == [Retry]
            }),
        ]
    }
}

const ONE_END: &str = "a task ends once";
const CANCELLED: &str = "cancelled stays cancelled";
const FENCED: &str = "nothing is written by a lost lease";
const ONCE: &str = "work that is not marked for retry is sent at most once";
const BOUNDED: &str = "attempts are bounded";
const SENT_BY_LEASE: &str = "nothing is sent under a lost lease";

/// Looks at every state twice: by the library for what always holds and for what happens at all, by [`Reach`] for ways to the end.
fn proves(protocol: &Protocol) {
    let checker = protocol.clone().checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checker.assert_properties();
    let reach = Reach::of(protocol);
    assert_eq!(reach.states, checker.unique_state_count(), "both looks see the same states");
    if let Some((steps, state)) = reach.stuck {
        panic!("from here there is no way to the end: {state:#?}\nafter {steps:?}");
    }
}

/// A protocol with a rule less is found out: this does not hold of it.
fn violates(protocol: &Protocol, property: &'static str) {
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = protocol.clone().checker().threads(2).finish_when(found).spawn_bfs().join();
    assert!(checker.discovery(property).is_some(), "without the rule all is well: {property:?} holds");
}

// req: LIFE-01, LIFE-04, LIFE-07, KEEP-07, KEEP-08, KEEP-09, KEEP-10
#[test]
fn no_interleaving_of_two_nodes_without_faults_breaks_a_rule() {
    for tasks in [[Fail], [Retry]] {
        proves(&Protocol { asks: true, ..Protocol::of(&tasks, 2, 2, 0) });
    }
}

// req: LIFE-01, LIFE-04, LIFE-07, KEEP-06, KEEP-07, KEEP-09, KEEP-10
#[test]
fn no_fault_repeats_work_that_is_not_marked_for_retry() {
    proves(&Protocol { asks: true, ..Protocol::of(&[Fail], 2, 2, 1) });
    proves(&Protocol::of(&[Fail], 3, 2, 1));
}

// req: LIFE-01, LIFE-04, LIFE-07, KEEP-06, KEEP-07, KEEP-08, KEEP-09, KEEP-10
#[test]
fn no_fault_loses_or_repeats_for_ever_what_may_be_retried() {
    proves(&Protocol::of(&[Retry], 2, 2, 1));
}

/// Minutes: what the record of the decision gives numbers of.
#[test]
fn larger_sizes_hold_as_well() {
    if std::env::var_os("TASKHOLD_TEST_LARGE_MODEL").is_none() {
        return;
    }
    for (tasks, places, up, faults) in [(&[Retry][..], 3, 2, 1), (&[Fail], 3, 2, 2), (&[Retry, Fail], 2, 2, 0)] {
        proves(&Protocol::of(tasks, places, up, faults));
    }
}

/// `docs/state-machine.md` says what can come of the window between check and sending: a call may go out when its lease is
/// taken. Work that is not marked for retry is sent once all the same.
#[test]
fn the_small_window_lets_a_call_out_late_and_repeats_nothing() {
    let windowed = |tasks: &[RestartPolicy]| Protocol::of(tasks, 2, 2, 0).without(|rules| rules.no_window = false);
    violates(&windowed(&[Fail]), SENT_BY_LEASE);
    for tasks in [[Fail], [Retry]] {
        let model = windowed(&tasks);
        let checker = model.checker().threads(2).finish_when(HasDiscoveries::All).spawn_bfs().join();
        for holds in [ONE_END, CANCELLED, FENCED, ONCE, BOUNDED] {
            checker.assert_no_discovery(holds);
        }
    }
}

/// Each rule of the protocol is there for something.
#[test]
fn a_protocol_with_a_rule_less_is_found_out() {
    let of = |tasks: &[RestartPolicy], faults| Protocol::of(tasks, 2, 2, faults);
    let fail = || of(&[Fail], 0);
    violates(&fail().without(|rules| rules.tokens = false), FENCED);
    violates(&fail().without(|rules| (rules.tokens, rules.transitions) = (false, false)), ONE_END);
    violates(&fail().without(|rules| (rules.tokens, rules.transitions) = (false, false)), CANCELLED);
    violates(&fail().without(|rules| rules.fresh = false), SENT_BY_LEASE);
    violates(&fail().without(|rules| rules.same_id = false), SENT_BY_LEASE);
    violates(&fail().without(|rules| rules.death_is_final = false), SENT_BY_LEASE);
    violates(&fail().without(|rules| rules.only_the_dead = false), SENT_BY_LEASE);
    violates(&fail().without(|rules| rules.policy = false), ONCE);
    violates(&of(&[Retry], 0).without(|rules| rules.policy = false), BOUNDED);
    let forgetful = of(&[Fail], 1).without(|rules| rules.looks_for_forgotten = false);
    assert!(Reach::of(&forgetful).stuck.is_some(), "a claim whose answer was lost is held for ever");
}
