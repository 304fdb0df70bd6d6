//! What may happen next, and what follows from it. Each step is one that the service makes in one piece: a statement of the
//! database, or something that a process does between two of them. A process that stands still (SIGSTOP) takes no step while
//! time passes; that may happen to any, at any time, for any time.

use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::outcome::Ending;
use taskhold::domain::transition::{Event, next};

use super::state::{
    ATTEMPTS, Age, Attempt, Change, Holder, Lease, Node, Phase, Process, Rules, State, Task, Token, Write,
};

/// Writes that are on their way at once; the steps that would send one more wait.
const ON_THE_WAY: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// 10 s for a node: the ages of different nodes have nothing to do with each other.
    Pass {
        node: usize,
    },
    Beat {
        node: usize,
    },
    /// The heartbeat lands; its answer does not.
    BeatUnheard {
        node: usize,
    },
    Claim {
        node: usize,
        task: usize,
    },
    /// The claim lands; nobody hears of it.
    ClaimUnheard {
        node: usize,
        task: usize,
    },
    Dispatch {
        node: usize,
        attempt: usize,
    },
    /// What was checked goes out, however much later.
    Send {
        node: usize,
        attempt: usize,
    },
    Answer {
        node: usize,
        attempt: usize,
    },
    /// The upstream is gone, and with it whether it did the work.
    Lose {
        node: usize,
        attempt: usize,
    },
    /// The runner hears that its task has ended.
    Hear {
        node: usize,
        attempt: usize,
    },
    Ask {
        node: usize,
        attempt: usize,
    },
    AnswerQuestion {
        task: usize,
    },
    Deliver {
        write: usize,
    },
    /// It lands; its sender does not hear so, and sends it again.
    DeliverUnheard {
        write: usize,
    },
    /// It never arrives; its sender, if there is one, sends it again.
    Drop {
        write: usize,
    },
    Cancel {
        task: usize,
    },
    Declare {
        judge: usize,
        node: usize,
    },
    Recover {
        node: usize,
        task: usize,
    },
    Forgotten {
        node: usize,
        task: usize,
    },
    Crash {
        node: usize,
    },
    Start {
        node: usize,
    },
    Drain {
        node: usize,
    },
    HandBack {
        node: usize,
        attempt: usize,
    },
    /// The drain's period is over.
    Cut {
        node: usize,
        attempt: usize,
    },
    Leave {
        node: usize,
    },
}

impl Step {
    /// Whether it may be counted on: nothing of what goes wrong, and nothing that somebody outside has to want. Time passes; but
    /// a node that is there reports in time.
    pub fn is_fair(self, state: &State) -> bool {
        if let Self::Pass { node } = self {
            return state.nodes[node].process == Process::Crashed;
        }
        !matches!(
            self,
            Self::BeatUnheard { .. }
                | Self::ClaimUnheard { .. }
                | Self::Lose { .. }
                | Self::Ask { .. }
                | Self::DeliverUnheard { .. }
                | Self::Drop { .. }
                | Self::Cancel { .. }
                | Self::Crash { .. }
                | Self::Drain { .. }
        )
    }
}

/// The steps that are possible.
pub fn steps(rules: &Rules, state: &State, found: &mut Vec<Step>) {
    let faults = state.faults > 0;
    for (task, row) in state.tasks.iter().enumerate().filter(|(_, row)| !row.status.is_terminal()) {
        found.push(Step::Cancel { task });
        if next(row.status, Event::Answered).is_some() {
            found.push(Step::AnswerQuestion { task });
        }
    }
    for write in 0..state.wire.len() {
        found.push(Step::Deliver { write });
        if faults {
            found.extend([Step::DeliverUnheard { write }, Step::Drop { write }]);
        }
    }
    for (node, place) in state.nodes.iter().enumerate() {
        match place.process {
            Process::Absent => found.push(Step::Start { node }),
            Process::Crashed => {}
            Process::Up | Process::Draining => steps_of(rules, state, node, found),
        }
        if place.process == Process::Absent {
            continue;
        }
        if place.heartbeat < Age::Silent {
            found.push(Step::Pass { node });
        } else if !place.dead {
            let is_judge = |judge: &usize| state.nodes[*judge].runs() && state.nodes[*judge].heartbeat == Age::Fresh;
            let judges = (0..state.nodes.len()).filter(|&judge| judge != node).filter(is_judge);
            found.extend(judges.map(|judge| Step::Declare { judge, node }));
        }
    }
}

fn steps_of(rules: &Rules, state: &State, node: usize, found: &mut Vec<Step>) {
    let (place, faults, has_room) = (&state.nodes[node], state.faults > 0, state.wire.len() < ON_THE_WAY);
    if place.dead || place.heartbeat > Age::Fresh {
        found.push(Step::Beat { node });
    }
    if faults {
        found.push(Step::Crash { node });
        if !place.dead && place.heartbeat == Age::Silent {
            found.push(Step::BeatUnheard { node });
        }
    }
    for (task, row) in state.tasks.iter().enumerate().filter(|(_, row)| !row.status.is_terminal()) {
        let may_claim =
            place.process == Process::Up && place.heartbeat == Age::Fresh && place.attempts.len() < state.tasks.len();
        match row.lease {
            None if may_claim => {
                found.push(Step::Claim { node, task });
                if faults {
                    found.push(Step::ClaimUnheard { node, task });
                }
            }
            None => {}
            Some(lease) => {
                let known = place.attempts.iter().any(|attempt| attempt.token == lease.token);
                if lease.holder == Holder::Node(node) && !known && !place.dead && has_room && rules.looks_for_forgotten
                {
                    found.push(Step::Forgotten { node, task });
                }
                let may_recover = match lease.holder {
                    Holder::Gone => true,
                    Holder::Node(of) => state.nodes[of].dead || !rules.only_the_dead && of != node,
                };
                if may_recover && has_room && place.heartbeat == Age::Fresh {
                    found.push(Step::Recover { node, task });
                }
            }
        }
    }
    for (attempt, its) in place.attempts.iter().enumerate() {
        let row = &state.tasks[its.task];
        let draining = place.process == Process::Draining;
        if its.phase != Phase::Settling && row.status.is_terminal() {
            found.push(Step::Hear { node, attempt });
        }
        match its.phase {
            Phase::Claimed if has_room || may_send(rules, place, its) => found.push(Step::Dispatch { node, attempt }),
            Phase::Checked => found.push(Step::Send { node, attempt }),
            Phase::Running => {
                if has_room {
                    found.push(Step::Answer { node, attempt });
                }
                if faults && has_room {
                    found.push(Step::Lose { node, attempt });
                }
                if row.may_ask && !its.of_old_id {
                    found.push(Step::Ask { node, attempt });
                }
                if draining && has_room {
                    found.push(if row.restart == RestartPolicy::Retry {
                        Step::HandBack { node, attempt }
                    } else {
                        Step::Cut { node, attempt }
                    });
                }
            }
            Phase::Claimed | Phase::Settling => {}
        }
    }
    match place.process {
        Process::Up if faults => found.push(Step::Drain { node }),
        Process::Draining if place.attempts.is_empty() => found.push(Step::Leave { node }),
        _ => {}
    }
}

/// The state after a step.
pub fn after(rules: &Rules, state: &State, step: Step) -> State {
    let mut state = state.clone();
    if matches!(
        step,
        Step::BeatUnheard { .. }
            | Step::ClaimUnheard { .. }
            | Step::Lose { .. }
            | Step::DeliverUnheard { .. }
            | Step::Drop { .. }
            | Step::Crash { .. }
            | Step::Drain { .. }
    ) {
        state.faults -= 1;
    }
    state.make(rules, step);
    state.normalize();
    state
}

impl State {
    fn make(&mut self, rules: &Rules, step: Step) {
        match step {
            Step::Pass { node } => {
                let place = &mut self.nodes[node];
                place.heartbeat = if place.heartbeat == Age::Fresh { Age::Stale } else { Age::Silent };
            }
            Step::Beat { node } | Step::BeatUnheard { node } => {
                self.beat(rules, node, matches!(step, Step::Beat { .. }));
            }
            Step::Claim { node, task } => {
                let token = self.claim(node, task);
                let number = self.tasks[task].attempt;
                let attempt = Attempt { task, token, number, phase: Phase::Claimed, of_old_id: false };
                self.nodes[node].attempts.push(attempt);
            }
            Step::ClaimUnheard { node, task } => {
                self.claim(node, task);
            }
            Step::Dispatch { node, attempt } => self.dispatch(rules, node, attempt),
            Step::Send { node, attempt } => self.send(node, attempt),
            Step::Answer { node, attempt } => self.settle(node, attempt, Change::Complete),
            Step::Lose { node, attempt } => {
                let its = &self.nodes[node].attempts[attempt];
                let change = lost(rules, &self.tasks[its.task], its.number);
                self.settle(node, attempt, change);
            }
            Step::Hear { node, attempt } => {
                self.nodes[node].attempts.remove(attempt);
            }
            Step::Ask { node, attempt } => {
                let Attempt { task, token, .. } = self.nodes[node].attempts[attempt];
                self.tasks[task].may_ask = false;
                self.change(rules, task, token, Event::Ask);
            }
            Step::AnswerQuestion { task } => {
                let row = &mut self.tasks[task];
                row.status = next(row.status, Event::Answered).expect("it is asked only where it may happen");
            }
            Step::Deliver { write } => {
                let write = self.wire.remove(write);
                self.apply(rules, write);
                // Whether it landed or was refused: whoever waits for it is done.
                self.each_settling(write, |attempts, at| {
                    attempts.remove(at);
                });
            }
            Step::DeliverUnheard { write } => {
                self.apply(rules, self.wire[write]);
                self.keep_if_waited_for(write);
            }
            Step::Drop { write } => self.keep_if_waited_for(write),
            Step::Cancel { task } => {
                // The caller's own write: no lease is asked for.
                if let Some(status) = next(self.tasks[task].status, Event::End(Ending::Cancelled)) {
                    let row = &mut self.tasks[task];
                    (row.status, row.lease, row.writer, row.cancelled) = (status, None, None, true);
                }
            }
            Step::Declare { node, .. } => {
                self.nodes[node].dead = true;
                if self.nodes[node].process == Process::Crashed {
                    self.vacate(node);
                }
            }
            Step::Recover { node: _, task } | Step::Forgotten { node: _, task } => {
                let row = &self.tasks[task];
                let token = row.lease.expect("it is held").token;
                let write = Write { task, token, change: lost(rules, row, row.attempt) };
                self.put(write);
            }
            Step::Crash { node } => {
                self.nodes[node].attempts.clear();
                self.nodes[node].process = Process::Crashed;
                if self.nodes[node].dead {
                    self.vacate(node);
                }
            }
            Step::Start { node } => self.nodes[node].process = Process::Up,
            Step::Drain { node } => self.nodes[node].process = Process::Draining,
            Step::HandBack { node, attempt } => {
                let task = self.nodes[node].attempts[attempt].task;
                self.tasks[task].given_back += 1;
                self.settle(node, attempt, Change::Release { counted: false });
            }
            Step::Cut { node, attempt } => self.settle(node, attempt, Change::Fail),
            Step::Leave { node } => self.vacate(node),
        }
    }

    fn beat(&mut self, rules: &Rules, node: usize, heard: bool) {
        let place = &mut self.nodes[node];
        if !place.dead || !rules.death_is_final {
            place.dead = false;
            place.heartbeat = if heard { Age::Fresh } else { Age::Stale };
            return;
        }
        // Stops what it runs and goes on under a new id. What was not dispatched yet learns of it at its dispatch, and writes
        // that are on their way are waited for.
        place.attempts.retain(|attempt| attempt.phase != Phase::Running);
        for attempt in &mut place.attempts {
            attempt.of_old_id = true;
        }
        (place.dead, place.heartbeat) = (false, Age::Fresh);
        self.orphan(node);
    }

    fn claim(&mut self, node: usize, task: usize) -> Token {
        let token = self.new_token();
        let row = &mut self.tasks[task];
        row.lease = Some(Lease { holder: Holder::Node(node), token });
        row.attempt += 1;
        token
    }

    fn dispatch(&mut self, rules: &Rules, node: usize, attempt: usize) {
        let place = &self.nodes[node];
        if !may_send(rules, place, &place.attempts[attempt]) {
            self.settle(node, attempt, Change::Release { counted: false });
        } else if rules.no_window {
            self.send(node, attempt);
        } else {
            self.nodes[node].attempts[attempt].phase = Phase::Checked;
        }
    }

    fn send(&mut self, node: usize, attempt: usize) {
        let its = &mut self.nodes[node].attempts[attempt];
        its.phase = Phase::Running;
        let row = &mut self.tasks[its.task];
        row.sent += 1;
        // That it was cancelled meanwhile is told to the work when its runner hears of it.
        let held = row.lease.is_some_and(|lease| lease.token == its.token);
        self.seen.sent_without_lease |= !held && !row.cancelled;
    }

    fn settle(&mut self, node: usize, attempt: usize, change: Change) {
        let its = &mut self.nodes[node].attempts[attempt];
        its.phase = Phase::Settling;
        let write = Write { task: its.task, token: its.token, change };
        self.put(write);
    }

    fn put(&mut self, write: Write) {
        if !self.wire.contains(&write) {
            self.wire.push(write);
        }
    }

    fn keep_if_waited_for(&mut self, write: usize) {
        let mut waited_for = false;
        self.each_settling(self.wire[write], |_, _| waited_for = true);
        if !waited_for {
            self.wire.remove(write);
        }
    }

    /// Calls with the attempt that waits for this write.
    fn each_settling(&mut self, write: Write, mut then: impl FnMut(&mut Vec<Attempt>, usize)) {
        for node in &mut self.nodes {
            let waits = |attempt: &Attempt| attempt.phase == Phase::Settling && attempt.token == write.token;
            if let Some(at) = node.attempts.iter().position(waits) {
                then(&mut node.attempts, at);
            }
        }
    }

    fn apply(&mut self, rules: &Rules, write: Write) {
        let Write { task, token, change } = write;
        match change {
            Change::Complete | Change::Fail => {
                let ending = if change == Change::Complete { Ending::Completed } else { Ending::Failed };
                // A repeated write finds itself.
                if self.tasks[task].writer != Some(token) && self.change(rules, task, token, Event::End(ending)) {
                    let row = &mut self.tasks[task];
                    (row.lease, row.writer) = (None, Some(token));
                }
            }
            Change::Release { counted } => {
                if !self.may_speak(rules, task, token) || self.tasks[task].status.is_terminal() {
                    return;
                }
                let row = &mut self.tasks[task];
                // Its questions are withdrawn with it.
                row.status = next(row.status, Event::Answered).unwrap_or(row.status);
                row.lease = None;
                row.attempt = row.attempt.saturating_sub(u32::from(!counted));
            }
        }
    }

    /// Changes the status by the rule of `domain::transition`; false if it may not happen.
    fn change(&mut self, rules: &Rules, task: usize, token: Token, event: Event) -> bool {
        if !self.may_speak(rules, task, token) {
            return false;
        }
        let row = &mut self.tasks[task];
        let status = match (next(row.status, event), event) {
            (Some(status), _) => status,
            (None, Event::End(ending)) if !rules.transitions => taskhold::domain::task::Status::Ended(ending),
            (None, _) => return false,
        };
        self.seen.end_changed |= row.status.is_terminal() && status != row.status;
        row.status = status;
        true
    }

    fn may_speak(&mut self, rules: &Rules, task: usize, token: Token) -> bool {
        let row = &self.tasks[task];
        let held = row.lease.is_some_and(|lease| lease.token == token);
        if !held && rules.tokens {
            return false;
        }
        self.seen.stranger_spoke |= !held && !row.status.is_terminal();
        true
    }

    /// Nobody is there any more, and nothing of this id will come back.
    fn vacate(&mut self, node: usize) {
        self.orphan(node);
        self.nodes[node] = Node::absent();
    }

    fn orphan(&mut self, node: usize) {
        for lease in self.tasks.iter_mut().filter_map(|task| task.lease.as_mut()) {
            if lease.holder == Holder::Node(node) {
                lease.holder = Holder::Gone;
            }
        }
    }
}

/// The check before a call is sent.
fn may_send(rules: &Rules, place: &Node, attempt: &Attempt) -> bool {
    let is_fresh = !rules.fresh || place.heartbeat == Age::Fresh;
    let is_ours = !rules.same_id || !attempt.of_old_id;
    is_fresh && is_ours && place.process == Process::Up
}

/// What follows a call whose outcome is lost.
fn lost(rules: &Rules, task: &Task, attempt: u32) -> Change {
    let again = if rules.policy { task.restart.repeats(attempt, ATTEMPTS) } else { true };
    if again { Change::Release { counted: true } } else { Change::Fail }
}
