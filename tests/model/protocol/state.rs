//! What the protocol's model knows: the database, the nodes, and the writes that are on their way between them.

use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::task::Status;
use taskhold::domain::transition::INITIAL;

/// The number of a lease's token; only equality counts, so they are renamed after each step.
pub type Token = u8;

/// Attempts that each task may use.
pub const ATTEMPTS: u32 = 2;

/// Which rules hold. A mutant of the protocol is one with a rule less.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// What an attempt or a recovery writes matches the lease's token.
    pub tokens: bool,
    /// A change of status matches the status from which it may happen: `domain::transition` decides.
    pub transitions: bool,
    /// A heartbeat of a node that was declared dead does not land.
    pub death_is_final: bool,
    /// A call is sent only by a node whose last heartbeat is young.
    pub fresh: bool,
    /// A call is sent only under the id by which it was claimed.
    pub same_id: bool,
    /// Only the claims of the dead are recovered by others.
    pub only_the_dead: bool,
    /// What follows a lost call is `domain::lease`'s to say.
    pub policy: bool,
    /// A node looks for claims of its own that no runner knows.
    pub looks_for_forgotten: bool,
    /// Check and sending are one step. They are not, and what follows from that is `docs/state-machine.md`'s small window.
    pub no_window: bool,
}

impl Rules {
    pub const ALL: Self = Self {
        tokens: true,
        transitions: true,
        death_is_final: true,
        fresh: true,
        same_id: true,
        only_the_dead: true,
        policy: true,
        looks_for_forgotten: true,
        no_window: true,
    };
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub tasks: Vec<Task>,
    pub nodes: Vec<Node>,
    /// Sent to the database and not there yet, or there and not known to be.
    pub wire: Vec<Write>,
    /// Faults that may still happen: crashes, lost messages, lost calls, and drains.
    pub faults: u8,
    pub seen: Seen,
}

/// What only an observer sees who sees everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// An end was followed by another.
    pub end_changed: bool,
    /// A write under a lease that was not held changed a task.
    pub stranger_spoke: bool,
    /// A call was sent under a lease that had been taken away.
    pub sent_without_lease: bool,
}

/// A task, its live row, and what has become of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Task {
    pub status: Status,
    pub restart: RestartPolicy,
    pub lease: Option<Lease>,
    pub attempt: u32,
    /// By whose token it ended; a repeated write finds itself by it.
    pub writer: Option<Token>,
    /// How often its call was sent, and how often a drain gave it back after that.
    pub sent: u32,
    pub given_back: u32,
    /// Whether its client was told that it is cancelled.
    pub cancelled: bool,
    /// Whether its work may still ask its caller something.
    pub may_ask: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    pub holder: Holder,
    pub token: Token,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The present id of the process in this place.
    Node(usize),
    /// An id that is declared dead and whose process is gone, or goes on under another.
    Gone,
}

/// A place for a process, and the row of its present id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    pub process: Process,
    pub heartbeat: Age,
    pub dead: bool,
    pub attempts: Vec<Attempt>,
}

/// What is known of a node's heartbeats. It knows of none that landed later than the last one in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Age {
    /// The last one that it knows to have landed is younger than 10 s: it may dispatch and judge.
    Fresh,
    /// Older than that; but the last one that landed is younger than 20 s.
    Stale,
    /// That is older, too: it may be declared dead.
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Process {
    Absent,
    Up,
    Draining,
    /// Ended without a word; its row is still there.
    Crashed,
}

/// What a runner has in hand.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    pub task: usize,
    pub token: Token,
    /// The number of the attempt.
    pub number: u32,
    pub phase: Phase,
    /// Whether it was claimed under an id that this node does not have any more.
    pub of_old_id: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Claimed,
    /// The check is passed, the call not sent yet: only where there is a window.
    Checked,
    Running,
    /// The work is over, and its write on the way.
    Settling,
}

/// A conditional write. That of a recovery is not waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Write {
    pub task: usize,
    pub token: Token,
    pub change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    Complete,
    Fail,
    Release { counted: bool },
}

impl State {
    pub fn new(policies: &[RestartPolicy], asks: bool, nodes: usize, up: usize, faults: u8) -> Self {
        let task = |&restart| Task {
            status: INITIAL,
            restart,
            lease: None,
            attempt: 0,
            writer: None,
            sent: 0,
            given_back: 0,
            cancelled: false,
            may_ask: asks,
        };
        let node = |place| Node { process: if place < up { Process::Up } else { Process::Absent }, ..Node::absent() };
        Self {
            tasks: policies.iter().map(task).collect(),
            nodes: (0..nodes).map(node).collect(),
            wire: Vec::new(),
            faults,
            seen: Seen::default(),
        }
    }

    pub fn has_ended(&self) -> bool {
        self.tasks.iter().all(|task| task.status.is_terminal())
    }

    /// A token that nothing has.
    pub fn new_token(&self) -> Token {
        self.tokens().max().map_or(0, |most| most + 1)
    }

    fn tokens(&self) -> impl Iterator<Item = Token> {
        let leases =
            self.tasks.iter().flat_map(|task| task.lease.map(|lease| lease.token).into_iter().chain(task.writer));
        let attempts = self.nodes.iter().flat_map(|node| node.attempts.iter().map(|attempt| attempt.token));
        leases.chain(attempts).chain(self.wire.iter().map(|write| write.token))
    }

    /// Gives nodes and tokens numbers in an order that follows from the rest, and forgets what nothing depends on, so that states
    /// which differ in nothing else are one.
    pub fn normalize(&mut self) {
        self.sort_nodes();
        for (at, task) in self.tasks.iter_mut().enumerate() {
            let speaks = |token| {
                self.wire.iter().any(|write| write.task == at && write.token == token)
                    || self.nodes.iter().flat_map(|node| &node.attempts).any(|attempt| attempt.token == token)
            };
            task.writer = task.writer.filter(|&token| speaks(token));
        }
        let mut order: Vec<Token> = Vec::new();
        for token in self.tokens() {
            if !order.contains(&token) {
                order.push(token);
            }
        }
        let renamed = |token: &mut Token| {
            let at = order.iter().position(|known| known == token).expect("all of them are listed");
            *token = Token::try_from(at).expect("there are few");
        };
        for task in &mut self.tasks {
            task.lease.iter_mut().for_each(|lease| renamed(&mut lease.token));
            task.writer.iter_mut().for_each(renamed);
        }
        self.nodes.iter_mut().flat_map(|node| &mut node.attempts).for_each(|attempt| renamed(&mut attempt.token));
        self.wire.iter_mut().for_each(|write| renamed(&mut write.token));
    }
}

impl State {
    fn sort_nodes(&mut self) {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|&at| {
            let node = &self.nodes[at];
            let leases: Vec<_> =
                self.tasks.iter().map(|task| task.lease.map(|lease| lease.holder) == Some(Holder::Node(at))).collect();
            let attempts: Vec<_> = node
                .attempts
                .iter()
                .map(|its| (its.task, its.phase, its.number, its.of_old_id, self.standing_of(its)))
                .collect();
            (node.process, node.heartbeat, node.dead, leases, attempts)
        });
        for lease in self.tasks.iter_mut().filter_map(|task| task.lease.as_mut()) {
            if let Holder::Node(at) = &mut lease.holder {
                *at = order.iter().position(|node| node == at).expect("each has a place");
            }
        }
        self.nodes = order.into_iter().map(|at| self.nodes[at].clone()).collect();
        let mut wire = std::mem::take(&mut self.wire);
        wire.sort_by_key(|write| (write.task, write.change, self.holds(write.task, write.token)));
        self.wire = wire;
    }

    pub fn holds(&self, task: usize, token: Token) -> bool {
        self.tasks[task].lease.is_some_and(|lease| lease.token == token)
    }

    fn standing_of(&self, attempt: &Attempt) -> (bool, bool) {
        let Attempt { task, token, .. } = *attempt;
        (self.holds(task, token), self.tasks[task].writer == Some(token))
    }
}

impl Node {
    pub const fn absent() -> Self {
        Self { process: Process::Absent, heartbeat: Age::Fresh, dead: false, attempts: Vec::new() }
    }

    pub fn runs(&self) -> bool {
        matches!(self.process, Process::Up | Process::Draining)
    }
}
