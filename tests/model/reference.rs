//! What a store should do, in a few plain vectors: the model that the real ones are compared with.
//!
//! It decides by `domain/transition` and `domain/retention`, as the product does, and knows no SQL. Time is a number
//! that the steps move; each step may be made by a node whose clock is some seconds off.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;
use taskhold::domain::clock::Timestamp;
use taskhold::domain::ids::{ContextId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::outcome::{Ending, Outcome};
use taskhold::domain::retention::{Ttl, TtlRules};
use taskhold::domain::task::{Status, Task};
use taskhold::domain::transition::{self, Event};
use uuid::Uuid;

pub const CONTEXTS: usize = 2;
const MOST_TASKS: usize = 12;
const MOST_NODES: usize = 6;
pub const RUNNING: &str = "running";
pub const QUEUED: &str = "queued";
pub const ANSWERED: &str = "answered";
pub const WITHDRAWN: &str = "withdrawn";

/// One step. Numbers choose among what there is when it is made.
#[derive(Debug, Clone)]
pub enum Step {
    Pass {
        time: Duration,
    },
    /// To the moment at which something is due for a task, or to just before it.
    PassTo {
        task: usize,
        just_before: bool,
    },
    Create {
        context: usize,
        order: u64,
        ttl: Ttl,
        claimer: Option<usize>,
        restart: RestartPolicy,
        attempts: u32,
        skew: i64,
    },
    Claim {
        node: usize,
        most: usize,
        skew: i64,
    },
    Finish {
        task: usize,
        token: Token,
        ending: Ending,
        skew: i64,
    },
    Cancel {
        task: usize,
        foreign: bool,
        skew: i64,
    },
    EndByOperator {
        task: usize,
        skew: i64,
    },
    Note {
        task: usize,
        token: Token,
        message: Message,
        skew: i64,
    },
    NoteWaiting {
        message: Message,
        skew: i64,
    },
    Ask {
        task: usize,
        token: Token,
        /// Which question; equal ones are the same.
        what: u8,
        skew: i64,
    },
    /// An answer by the caller, or by another one.
    Reply {
        task: usize,
        question: usize,
        foreign: bool,
        skew: i64,
    },
    Take {
        task: usize,
        question: usize,
        token: Token,
    },
    Withdraw {
        task: usize,
        question: usize,
        token: Token,
        skew: i64,
    },
    Release {
        task: usize,
        token: Token,
        delay: Duration,
        counted: bool,
        keeps: bool,
        message: Message,
        skew: i64,
    },
    EndOverdue {
        skew: i64,
    },
    Reap {
        batch: u32,
        skew: i64,
    },
    Join,
    Retire {
        node: usize,
    },
    Judge {
        judge: usize,
    },
    Beat {
        node: usize,
    },
    Recover {
        page: u32,
    },
    Forget,
    Walk {
        context: usize,
        page: u32,
    },
    Restart,
}

/// Which attempt speaks.
#[derive(Debug, Clone, Copy)]
pub enum Token {
    /// The one that holds the lease, if any does.
    Holder,
    /// One that once held it: perhaps the holder, perhaps the one that wrote the outcome, mostly a zombie.
    Past(usize),
    Stranger,
}

#[derive(Debug, Clone, Copy)]
pub enum Message {
    Same,
    Number(u8),
}

/// What the store should answer to the last step.
#[derive(Debug, Clone, Default)]
pub enum Answer {
    #[default]
    Nothing,
    Created(usize),
    /// The tasks claimed, in order.
    Claimed(Vec<usize>),
    /// How each of these attempts to end a task went: by which token, with what, and whether it stands as written.
    Ended(Vec<Attempted>),
    /// What an attempt said, by which token, and whether its lease held.
    Spoken {
        token: Option<usize>,
        message: String,
        held: bool,
    },
    /// What became of a question, by which token it was asked, and which of the task's it is.
    Asked {
        token: Option<usize>,
        stored: Option<Asked>,
    },
    /// What became of an answer that says which write it is.
    Replied {
        text: u32,
        done: bool,
    },
    Taken {
        token: Option<usize>,
        taken: Taken,
    },
    /// Whether a question was withdrawn by a token.
    Withdrawn {
        token: Option<usize>,
        done: bool,
    },
    Flag(bool),
    Count(u64),
    /// Claims of dead nodes in the order of their ids, each with what recovery does about it.
    Orphans(Vec<Recovered>),
    Noted(Vec<(usize, String)>),
}

#[derive(Debug, Clone, Copy)]
pub enum Asked {
    New(usize),
    Adopted(usize),
}

#[derive(Debug, Clone, Copy)]
pub enum Taken {
    Answer(u32),
    Open,
    Gone,
}

#[derive(Debug, Clone)]
pub struct Attempted {
    pub task: usize,
    pub token: Option<usize>,
    pub outcome: Outcome,
    pub message: Option<String>,
    pub now: Timestamp,
    pub expires: Option<Timestamp>,
    pub done: bool,
}

#[derive(Debug, Clone)]
pub struct Recovered {
    pub lease: LeaseModel,
    pub task: usize,
    pub how: How,
}

#[derive(Debug, Clone)]
pub enum How {
    Again { not_before: Timestamp, message: String, now: Timestamp },
    End(Attempted),
}

#[derive(Debug, Clone)]
pub struct Model {
    pub now: Timestamp,
    pub rules: TtlRules,
    pub tasks: Vec<TaskModel>,
    pub nodes: Vec<NodeModel>,
    /// Lease tokens given out so far; each is known by its number.
    pub tokens: usize,
    pub answer: Answer,
    pub steps: usize,
    writes: u32,
}

#[derive(Debug, Clone)]
pub struct NodeModel {
    pub alive: bool,
    pub forgotten: bool,
}

#[derive(Debug, Clone)]
pub struct TaskModel {
    /// As its owner should see it; the context's id is not known here.
    pub task: Task,
    pub context: usize,
    pub restart: RestartPolicy,
    pub attempts_allowed: u32,
    pub hard_end: Timestamp,
    pub live: Option<LiveModel>,
    pub outcome: Option<Outcome>,
    /// The token under which the outcome was written, if an attempt wrote it.
    pub writer: Option<usize>,
    pub reaped: bool,
    /// Whether anything was said of it since it was made or claimed.
    pub said: bool,
    pub attempt: u32,
    /// Every token that ever held its lease.
    pub past: Vec<usize>,
    pub questions: Vec<QuestionModel>,
}

#[derive(Debug, Clone)]
pub struct QuestionModel {
    /// The number of its row, and of the JSON-RPC id under which it is sent.
    pub id: Uuid,
    pub what: u8,
    pub created: Timestamp,
    /// Of the attempt that asks.
    token: usize,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
    Answered(u32),
    Taken,
    Closed,
}

impl TaskModel {
    /// Its open questions, the oldest first.
    pub fn open(&self) -> Vec<&QuestionModel> {
        let mut open: Vec<_> = self.questions.iter().filter(|question| question.state == State::Open).collect();
        open.sort_by_key(|question| (question.created, question.id));
        open
    }

    /// Closes what is open.
    fn close_questions(&mut self) {
        for question in self.questions.iter_mut().filter(|question| question.state == State::Open) {
            question.state = State::Closed;
        }
    }

    /// A question less: with the last one the task goes on.
    fn one_less(&mut self, message: &str, now: Timestamp) {
        match self.open().last().map(|question| question.what) {
            None => self.go_on(message),
            Some(what) => self.task.message = Some(asking(what)),
        }
        self.task.updated = self.task.updated.moved_to(now);
    }

    fn go_on(&mut self, message: &str) {
        self.task.status = transition::next(self.task.status, Event::Answered).expect("it waits for input");
        self.task.message = Some(message.to_owned());
        self.said = true;
    }

    /// When time changes something about it: its retry, its hard end, its expiry.
    fn due(&self) -> Timestamp {
        match &self.live {
            Some(LiveModel { lease: None, not_before }) => *not_before,
            Some(_) => self.hard_end,
            None => self.task.expires.unwrap_or(self.task.updated),
        }
    }
}

#[derive(Debug, Clone)]
pub struct LiveModel {
    pub lease: Option<LeaseModel>,
    pub not_before: Timestamp,
}

#[derive(Debug, Clone, Copy)]
pub struct LeaseModel {
    pub node: usize,
    pub token: usize,
    pub attempt: u32,
    pub claimed: Timestamp,
}

impl Model {
    fn new() -> Self {
        let hour = Duration::from_secs(3600);
        Self {
            now: Timestamp::from_micros(1_800_000_000_000_000),
            rules: TtlRules {
                default: Some(hour),
                min: Duration::from_secs(10),
                max: None,
                min_retention: Duration::from_secs(600),
                hard_lifetime: 26 * hour,
            },
            tasks: Vec::new(),
            nodes: vec![NodeModel { alive: true, forgotten: false }, NodeModel { alive: true, forgotten: false }],
            tokens: 0,
            answer: Answer::Nothing,
            steps: 0,
            writes: 0,
        }
    }

    /// Visible tasks of a context as the list shows them.
    pub fn list(&self, context: usize) -> Vec<&Task> {
        let of_context = self.tasks.iter().filter(|task| task.context == context && !task.reaped);
        let mut tasks: Vec<_> = of_context.map(|task| &task.task).filter(|task| task.is_visible(self.now)).collect();
        tasks.sort_by_key(|task| std::cmp::Reverse((task.created, task.id.as_uuid())));
        tasks
    }

    /// Waiting tasks whose time has come, in the order of claims.
    /// Each time the context with the fewest slots comes next, and of several the one whose first task waits the longest.
    pub fn queue(&self, now: Timestamp) -> Vec<usize> {
        let mut due: Vec<_> = (0..self.tasks.len())
            .filter_map(|at| {
                let live = self.tasks[at].live.as_ref()?;
                let waits = live.lease.is_none() && live.not_before <= now;
                waits.then_some((live.not_before, self.tasks[at].task.id.as_uuid(), at))
            })
            .collect();
        due.sort_unstable();
        let slots = |context| {
            let held = |task: &&TaskModel| {
                let has_slot = task.live.as_ref().is_some_and(|live| live.lease.is_some()) && task.open().is_empty();
                task.context == context && has_slot
            };
            self.tasks.iter().filter(held).count()
        };
        // By its place in its context's queue, each task comes when its context would have so many slots.
        let mut contexts: HashMap<usize, (usize, (Timestamp, Uuid))> = HashMap::new();
        let mut turns: Vec<_> = due
            .into_iter()
            .map(|(since, id, at)| {
                let context = self.tasks[at].context;
                let (has, first) = contexts.entry(context).or_insert_with(|| (slots(context), (since, id)));
                *has += 1;
                (*has, *first, since, id, at)
            })
            .collect();
        turns.sort_unstable();
        turns.into_iter().map(|(.., at)| at).collect()
    }

    pub fn held(&self, node: usize) -> Vec<(usize, LeaseModel)> {
        let leases = (0..self.tasks.len()).filter_map(|at| Some((at, self.lease(at)?)));
        leases.filter(|(_, lease)| lease.node == node).collect()
    }

    pub fn lease(&self, task: usize) -> Option<LeaseModel> {
        self.tasks[task].live.as_ref()?.lease
    }

    pub fn at(&self, skew: i64) -> Timestamp {
        Timestamp::from_micros(self.now.micros() + skew * 1_000_000)
    }

    /// The number of the token that speaks; `None` is one that never held a lease.
    fn token(&self, task: usize, token: Token) -> Option<usize> {
        let past = &self.tasks[task].past;
        match token {
            Token::Holder => self.lease(task).map(|lease| lease.token),
            Token::Past(number) if !past.is_empty() => Some(past[number % past.len()]),
            Token::Past(_) | Token::Stranger => None,
        }
    }

    fn message(&self, task: usize, message: Message) -> String {
        match message {
            Message::Same => self.tasks[task].task.message.clone().unwrap_or_default(),
            Message::Number(number) => format!("message {number}"),
        }
    }

    fn holds(&self, task: usize, token: Option<usize>) -> bool {
        token.is_some() && self.lease(task).map(|lease| lease.token) == token
    }

    /// A task that waits for input goes on saying what for.
    fn say(&mut self, task: usize, message: &str, now: Timestamp) {
        let model = &mut self.tasks[task];
        let task = &mut model.task;
        if task.status == Status::Working && task.message.as_deref() != Some(message) {
            task.message = Some(message.to_owned());
            task.updated = task.updated.moved_to(now);
            model.said = true;
        }
    }

    /// Who claims a task takes back what was said of it; that it runs is seen.
    fn runs(&mut self, task: usize, now: Timestamp) {
        let model = &mut self.tasks[task];
        let task = &mut model.task;
        if task.status == Status::Working && task.message.as_deref() != Some(RUNNING) {
            task.message = Some(RUNNING.to_owned());
            task.updated = if model.said { task.updated.moved_to(now) } else { task.updated.max(now) };
            model.said = false;
        }
    }

    fn grant_lease(&mut self, task: usize, node: usize, now: Timestamp) {
        let token = self.tokens;
        self.tokens += 1;
        let model = &mut self.tasks[task];
        model.attempt += 1;
        model.past.push(token);
        let lease = LeaseModel { node, token, attempt: model.attempt, claimed: now };
        model.live.as_mut().expect("only the living are claimed").lease = Some(lease);
    }

    /// Tries to end a task. `by` is a lease's token, or `None` for an end that needs no lease.
    fn end(&mut self, task: usize, by: Option<Option<usize>>, ending: Ending, now: Timestamp) -> Attempted {
        self.writes += 1;
        let outcome = outcome(ending, self.writes);
        let message = (ending != Ending::Completed).then(|| format!("ended by write {}", self.writes));
        let expires = self.rules.expires(self.tasks[task].task.created, self.tasks[task].task.granted, now);
        let allowed = by.is_none_or(|token| self.holds(task, token));
        let next = transition::next(self.tasks[task].task.status, Event::End(ending));
        let repeated = by.flatten().is_some() && self.tasks[task].writer == by.flatten() && !self.tasks[task].reaped;
        let token = by.flatten();
        let done = match next {
            Some(status) if allowed && !self.tasks[task].reaped => {
                let model = &mut self.tasks[task];
                model.task.status = status;
                let runs = model.live.as_ref().is_some_and(|live| live.lease.is_some());
                let unconfirmed =
                    if runs && by.is_none() { "; that its work has stopped is not confirmed" } else { "" };
                model.task.message = message.as_ref().map(|message| format!("{message}{unconfirmed}"));
                model.task.updated = model.task.updated.moved_to(now);
                model.task.expires = expires;
                model.outcome = Some(outcome.clone());
                model.writer = token;
                model.live = None;
                model.close_questions();
                true
            }
            _ => repeated,
        };
        Attempted { task, token, outcome, message, now, expires, done }
    }

    fn ask(&mut self, task: usize, token: usize, what: u8, now: Timestamp) -> Asked {
        let model = &mut self.tasks[task];
        let theirs = |question: &&QuestionModel| question.what == what && question.token != token;
        // Of a later asking of the same: no call of these is handed over.
        let went_on = model.questions.iter().filter(theirs).any(|question| question.state == State::Taken);
        let is_left = |question: &&QuestionModel| match question.state {
            State::Open => true,
            State::Answered(_) => !went_on,
            State::Taken | State::Closed => false,
        };
        let oldest = model
            .questions
            .iter()
            .filter(theirs)
            .filter(is_left)
            .min_by_key(|question| (question.created, question.id));
        if let Some(id) = oldest.map(|question| question.id) {
            let at = model.questions.iter().position(|question| question.id == id).expect("it was just found");
            model.questions[at].token = token;
            return Asked::Adopted(at);
        }
        let at = model.questions.len();
        let id = Uuid::from_u128(model.task.id.as_uuid().as_u128() + ((at as u128 + 1) << 32));
        model.questions.push(QuestionModel { id, what, created: now, token, state: State::Open });
        model.task.status = transition::next(model.task.status, Event::Ask).expect("it runs");
        model.task.message = Some(asking(what));
        model.task.updated = model.task.updated.moved_to(now);
        Asked::New(at)
    }

    /// The state of a question, if the token that speaks is that of its attempt.
    fn asked_by(&self, task: usize, question: usize, token: Option<usize>) -> Option<State> {
        let found = &self.tasks[task].questions[question];
        (self.holds(task, token) && token == Some(found.token)).then_some(found.state)
    }

    fn release(
        &mut self,
        task: usize,
        counted: bool,
        keeps: bool,
        not_before: Timestamp,
        message: &str,
        now: Timestamp,
    ) {
        let model = &mut self.tasks[task];
        if !keeps && model.task.status == Status::InputRequired {
            model.close_questions();
            model.one_less(message, now);
        }
        self.say(task, message, now);
        let model = &mut self.tasks[task];
        if !counted {
            model.attempt -= 1;
        }
        model.live = Some(LiveModel { lease: None, not_before });
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::new()).boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Step> {
        let skew = || prop_oneof![4 => Just(0_i64), 1 => -3_i64..=3];
        let task = 0..model.tasks.len().max(1);
        let node = 0..model.nodes.len();
        let context = 0..CONTEXTS;
        let token = || prop_oneof![5 => Just(Token::Holder), 3 => (0_usize..4).prop_map(Token::Past), 1 => Just(Token::Stranger)];
        let message = || prop_oneof![1 => Just(Message::Same), 2 => (0_u8..3).prop_map(Message::Number)];
        let time = prop_oneof![
            3 => (1_u64..3_000_000).prop_map(Duration::from_micros),
            2 => (1_u64..1_000).prop_map(Duration::from_secs),
            1 => (1_u64..30).prop_map(|hours| Duration::from_secs(hours * 3600)),
        ];
        let ttl = prop_oneof![
            3 => (10_000_i64..100_000).prop_map(Ttl::Milliseconds),
            2 => Just(Ttl::Milliseconds(3_600_000)),
            1 => Just(Ttl::Unlimited),
        ];
        let restart = prop_oneof![Just(RestartPolicy::Retry), Just(RestartPolicy::Fail)];
        let ending = prop_oneof![Just(Ending::Completed), Just(Ending::ToolError), Just(Ending::Failed)];
        let create = (context.clone(), any::<u64>(), ttl, prop::option::of(node.clone()), restart, 1_u32..4, skew())
            .prop_map(|(context, order, ttl, claimer, restart, attempts, skew)| Step::Create {
                context,
                order,
                ttl,
                claimer,
                restart,
                attempts,
                skew,
            });
        let passing = prop_oneof![
            3 => time.prop_map(|time| Step::Pass { time }),
            3 => (task.clone(), any::<bool>()).prop_map(|(task, just_before)| Step::PassTo { task, just_before }),
            5 => create,
        ];
        let working = prop_oneof![
            4 => (node.clone(), 1_usize..4, skew()).prop_map(|(node, most, skew)| Step::Claim { node, most, skew }),
            5 => (task.clone(), token(), ending, skew())
                .prop_map(|(task, token, ending, skew)| Step::Finish { task, token, ending, skew }),
            3 => (task.clone(), token(), message(), skew())
                .prop_map(|(task, token, message, skew)| Step::Note { task, token, message, skew }),
            1 => (message(), skew()).prop_map(|(message, skew)| Step::NoteWaiting { message, skew }),
            3 => (task.clone(), token(), 0_u64..90, any::<bool>(), any::<bool>(), message(), skew()).prop_map(
                |(task, token, delay, counted, keeps, message, skew)| Step::Release {
                    task,
                    token,
                    delay: Duration::from_secs(delay),
                    counted,
                    keeps,
                    message,
                    skew,
                }
            ),
        ];
        let question = 0_usize..4;
        let asking = prop_oneof![
            4 => (task.clone(), token(), 0_u8..2, skew())
                .prop_map(|(task, token, what, skew)| Step::Ask { task, token, what, skew }),
            4 => (task.clone(), question.clone(), prop::bool::weighted(0.2), skew())
                .prop_map(|(task, question, foreign, skew)| Step::Reply { task, question, foreign, skew }),
            2 => (task.clone(), question.clone(), token())
                .prop_map(|(task, question, token)| Step::Take { task, question, token }),
            2 => (task.clone(), question, token(), skew())
                .prop_map(|(task, question, token, skew)| Step::Withdraw { task, question, token, skew }),
        ];
        let ending = prop_oneof![
            3 => (task.clone(), prop::bool::weighted(0.2), skew())
                .prop_map(|(task, foreign, skew)| Step::Cancel { task, foreign, skew }),
            1 => (task, skew()).prop_map(|(task, skew)| Step::EndByOperator { task, skew }),
            2 => skew().prop_map(|skew| Step::EndOverdue { skew }),
            3 => (1_u32..4, skew()).prop_map(|(batch, skew)| Step::Reap { batch, skew }),
        ];
        let nodes = prop_oneof![
            2 => Just(Step::Join),
            2 => node.clone().prop_map(|node| Step::Retire { node }),
            2 => node.clone().prop_map(|judge| Step::Judge { judge }),
            1 => node.prop_map(|node| Step::Beat { node }),
            4 => (1_u32..4).prop_map(|page| Step::Recover { page }),
            1 => Just(Step::Forget),
        ];
        let others = prop_oneof![
            3 => (context, 1_u32..4).prop_map(|(context, page)| Step::Walk { context, page }),
            1 => Just(Step::Restart),
        ];
        prop_oneof![8 => passing, 14 => working, 10 => asking, 6 => ending, 6 => nodes, 2 => others].boxed()
    }

    fn preconditions(model: &Self, step: &Step) -> bool {
        match *step {
            Step::Create { claimer, .. } => {
                model.tasks.len() < MOST_TASKS && claimer.is_none_or(|node| node < model.nodes.len())
            }
            Step::Finish { task, .. }
            | Step::Cancel { task, .. }
            | Step::EndByOperator { task, .. }
            | Step::Note { task, .. }
            | Step::PassTo { task, .. }
            | Step::Ask { task, .. }
            | Step::Release { task, .. } => task < model.tasks.len(),
            Step::Reply { task, question, .. }
            | Step::Take { task, question, .. }
            | Step::Withdraw { task, question, .. } => {
                model.tasks.get(task).is_some_and(|task| question < task.questions.len())
            }
            Step::Claim { node, .. } | Step::Retire { node } | Step::Judge { judge: node } | Step::Beat { node } => {
                node < model.nodes.len()
            }
            Step::Join => model.nodes.len() < MOST_NODES,
            _ => true,
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm a step; together they are the specification")]
    fn apply(mut model: Self, step: &Step) -> Self {
        model.steps += 1;
        model.answer = match *step {
            Step::Pass { time } => {
                model.now = model.now + time;
                Answer::Nothing
            }
            Step::PassTo { task, just_before } => {
                let moment = model.tasks[task].due();
                let moment = if just_before { moment - Duration::from_micros(1) } else { moment };
                model.now = model.now.max(moment);
                Answer::Nothing
            }
            Step::Create { context, order, ttl, claimer, restart, attempts, skew } => {
                let created = model.at(skew);
                let at = model.tasks.len();
                let id = TaskId::from_uuid(Uuid::from_u128(u128::from(order) << 64 | at as u128));
                let message = if claimer.is_some() { RUNNING } else { QUEUED };
                model.tasks.push(TaskModel {
                    task: Task {
                        id,
                        context: ContextId::from_uuid(Uuid::nil()),
                        tool: "model".to_owned(),
                        status: transition::INITIAL,
                        message: Some(message.to_owned()),
                        created,
                        updated: created,
                        granted: ttl,
                        poll_interval_ms: 1000,
                        expires: None,
                        session: None,
                        progress_token: None,
                        progress: None,
                        progress_at: created,
                    },
                    context,
                    restart,
                    attempts_allowed: attempts,
                    hard_end: model.rules.hard_end(created),
                    live: Some(LiveModel { lease: None, not_before: created }),
                    outcome: None,
                    writer: None,
                    reaped: false,
                    said: false,
                    attempt: 0,
                    past: Vec::new(),
                    questions: Vec::new(),
                });
                if let Some(node) = claimer {
                    model.grant_lease(at, node, created);
                }
                Answer::Created(at)
            }
            Step::Claim { node, most, skew } => {
                let now = model.at(skew);
                let due: Vec<_> = model.queue(now).into_iter().take(most).collect();
                for &task in &due {
                    model.grant_lease(task, node, now);
                    model.runs(task, now);
                }
                Answer::Claimed(due)
            }
            Step::Finish { task, token, ending, skew } => {
                let token = model.token(task, token);
                let now = model.at(skew);
                Answer::Ended(vec![model.end(task, Some(token), ending, now)])
            }
            Step::Cancel { task, foreign, skew } => {
                let now = model.at(skew);
                if foreign {
                    let mut untouched = model.clone().end(task, None, Ending::Cancelled, now);
                    untouched.done = false;
                    Answer::Ended(vec![untouched])
                } else {
                    Answer::Ended(vec![model.end(task, None, Ending::Cancelled, now)])
                }
            }
            Step::EndByOperator { task, skew } => {
                let now = model.at(skew);
                Answer::Ended(vec![model.end(task, None, Ending::Cancelled, now)])
            }
            Step::Note { task, token, message, skew } => {
                let (token, message, now) = (model.token(task, token), model.message(task, message), model.at(skew));
                let held = model.holds(task, token);
                if held {
                    model.say(task, &message, now);
                }
                Answer::Spoken { token, message, held }
            }
            Step::NoteWaiting { message, skew } => {
                let now = model.at(skew);
                let noted: Vec<_> = (0..model.tasks.len()).map(|task| (task, model.message(task, message))).collect();
                for (task, message) in &noted {
                    if model.tasks[*task].live.as_ref().is_some_and(|live| live.lease.is_none()) {
                        model.say(*task, message, now);
                    }
                }
                Answer::Noted(noted)
            }
            Step::Ask { task, token, what, skew } => {
                let (token, now) = (model.token(task, token), model.at(skew));
                let holder = token.filter(|_| model.holds(task, token));
                Answer::Asked { token, stored: holder.map(|token| model.ask(task, token, what, now)) }
            }
            Step::Reply { task, question, foreign, skew } => {
                let now = model.at(skew);
                model.writes += 1;
                let text = model.writes;
                let task = &mut model.tasks[task];
                let done = !foreign && task.questions[question].state == State::Open;
                if done {
                    task.questions[question].state = State::Answered(text);
                    task.one_less(ANSWERED, now);
                }
                Answer::Replied { text, done }
            }
            Step::Take { task, question, token } => {
                let token = model.token(task, token);
                let taken = match model.asked_by(task, question, token) {
                    Some(State::Answered(text)) => {
                        model.tasks[task].questions[question].state = State::Taken;
                        Taken::Answer(text)
                    }
                    Some(State::Open) => Taken::Open,
                    Some(State::Taken | State::Closed) | None => Taken::Gone,
                };
                Answer::Taken { token, taken }
            }
            Step::Withdraw { task, question, token, skew } => {
                let (token, now) = (model.token(task, token), model.at(skew));
                let done = model.asked_by(task, question, token) == Some(State::Open);
                if done {
                    model.tasks[task].questions[question].state = State::Closed;
                    model.tasks[task].one_less(WITHDRAWN, now);
                }
                Answer::Withdrawn { token, done }
            }
            Step::Release { task, token, delay, counted, keeps, message, skew } => {
                let (token, message, now) = (model.token(task, token), model.message(task, message), model.at(skew));
                let held = model.holds(task, token);
                if held {
                    model.release(task, counted, keeps, now + delay, &message, now);
                }
                Answer::Spoken { token, message, held }
            }
            Step::EndOverdue { skew } => {
                let now = model.at(skew);
                let overdue: Vec<_> = (0..model.tasks.len())
                    .filter(|&task| model.tasks[task].live.is_some() && model.tasks[task].hard_end <= now)
                    .collect();
                Answer::Ended(overdue.into_iter().map(|task| model.end(task, None, Ending::Failed, now)).collect())
            }
            Step::Reap { skew, .. } => {
                let now = model.at(skew);
                let mut reaped = 0;
                for task in &mut model.tasks {
                    if !task.reaped && task.live.is_none() && task.task.expires.is_some_and(|expires| expires <= now) {
                        task.reaped = true;
                        reaped += 1;
                    }
                }
                Answer::Count(reaped)
            }
            Step::Join => {
                model.nodes.push(NodeModel { alive: true, forgotten: false });
                Answer::Nothing
            }
            Step::Retire { node } => {
                model.nodes[node].alive = false;
                Answer::Nothing
            }
            Step::Judge { judge } => {
                let mut dead = 0;
                for (at, node) in model.nodes.iter_mut().enumerate() {
                    if at != judge && node.alive {
                        node.alive = false;
                        dead += 1;
                    }
                }
                Answer::Count(dead)
            }
            Step::Beat { node } => Answer::Flag(model.nodes[node].alive),
            Step::Recover { .. } => Answer::Orphans(model.recover()),
            Step::Forget => {
                let mut forgotten = 0;
                for at in 0..model.nodes.len() {
                    let lone = model.held(at).is_empty();
                    let node = &mut model.nodes[at];
                    if !node.alive && !node.forgotten && lone {
                        node.forgotten = true;
                        forgotten += 1;
                    }
                }
                Answer::Count(forgotten)
            }
            Step::Walk { .. } | Step::Restart => Answer::Nothing,
        };
        model
    }
}

impl Model {
    fn recover(&mut self) -> Vec<Recovered> {
        let now = self.now;
        let mut orphans: Vec<_> = (0..self.tasks.len())
            .filter_map(|task| Some((task, self.lease(task)?)))
            .filter(|(_, lease)| !self.nodes[lease.node].alive)
            .collect();
        orphans.sort_by_key(|&(task, _)| self.tasks[task].task.id.as_uuid());
        let settle = |(task, lease): (usize, LeaseModel)| {
            let again =
                self.tasks[task].restart == RestartPolicy::Retry && lease.attempt < self.tasks[task].attempts_allowed;
            let how = if again {
                let (not_before, message) = (now + Duration::from_secs(1), format!("lost attempt {}", lease.attempt));
                self.release(task, true, false, not_before, &message, now);
                How::Again { not_before, message, now }
            } else {
                How::End(self.end(task, Some(Some(lease.token)), Ending::Failed, now))
            };
            Recovered { lease, task, how }
        };
        orphans.into_iter().map(settle).collect()
    }
}

/// The message of a task that asks this.
pub fn asking(what: u8) -> String {
    format!("waiting for input: {what}")
}

/// An outcome that tells which write it was.
fn outcome(ending: Ending, write: u32) -> Outcome {
    let json = RawJson::trusted(match ending {
        Ending::Failed => format!(r#"{{"code":-32000,"message":"write {write}"}}"#),
        _ => format!(r#"{{"content":[],"write":{write}}}"#),
    });
    let json = (ending != Ending::Cancelled).then_some(json);
    Outcome::from_parts(ending, json).expect("each ending has its parts")
}

/// Whether a model task is live, for the question which of them are not.
pub fn is_live(task: &TaskModel) -> bool {
    matches!(task.task.status, Status::Working | Status::InputRequired)
}
