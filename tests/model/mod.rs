//! Sequences of steps, made up at random, against the real store and a model of it: after each step both must agree on
//! everything that can be seen. Steps include what goes wrong: zombies that write, nodes that die, clocks that differ,
//! restarts.

mod protocol;
mod race;
mod reference;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use proptest::test_runner::Config;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::cursor::Position;
use taskhold::domain::ids::{ContextId, DeliveryId, InputId, LeaseToken, NodeId, SessionId, StreamId, TaskId};
use taskhold::domain::input::{InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::Lease;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::queue::Counted;
use taskhold::domain::task::Task;
use taskhold::domain::work::{Claim, NewTask};
use taskhold::store::{
    Asked, End, Ended, Finish, Hold, NewInput, Note, Purpose, Release, StoreError, SystemStore, Taken, Watch,
};
use tokio::runtime::Runtime;

use crate::store::questions::then;
use crate::support::database::{Backend, TestDatabase};
use reference::{
    ANSWERED, Answer, Attempted, CONTEXTS, How, LeaseModel, Model, Recovered, Step, TaskModel, WITHDRAWN, asking,
    is_live,
};

/// Sequences on each database.
const SEQUENCES: u32 = 1000;
const STEPS: std::ops::Range<usize> = 1..24;
/// How long a busy machine may take to give a connection.
const PATIENCE: Duration = Duration::from_secs(60);
const FOR_EVER: Timestamp = Timestamp::from_micros(i64::MAX / 2);

// req: LIFE-02, LIFE-04, LIFE-07, LIFE-08, TASK-19, KEEP-02, KEEP-04, KEEP-05, KEEP-09
#[test]
fn the_sqlite_store_does_what_the_model_does() {
    check::<false>();
}

// req: LIFE-02, LIFE-04, LIFE-07, LIFE-08, TASK-19, KEEP-02, KEEP-04, KEEP-05, KEEP-09
#[test]
fn the_postgres_store_does_what_the_model_does() {
    check::<true>();
}

fn check<const POSTGRES: bool>() {
    let config = Config { cases: SEQUENCES, max_shrink_iters: 2000, failure_persistence: None, ..Config::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config.clone());
    let strategy = Model::sequential_strategy(STEPS);
    let run = |(model, steps, seen)| {
        Machine::<POSTGRES>::test_sequential(config.clone(), model, steps, seen);
        Ok(())
    };
    if let Err(failure) = runner.run(&strategy, run) {
        panic!("{failure}\n{runner}");
    }
    DATABASE.with_borrow_mut(Option::take);
}

/// A store, and the real names of what the model numbers.
struct Machine<const POSTGRES: bool> {
    contexts: Vec<ContextId>,
    nodes: Vec<NodeId>,
    tokens: HashMap<usize, LeaseToken>,
}

/// Made once for all sequences of a test: each begins by removing what the last one left.
struct Shared {
    runtime: Runtime,
    database: TestDatabase,
}

thread_local! {
    static DATABASE: RefCell<Option<Shared>> = const { RefCell::new(None) };
    /// The tasks of the sequence in progress.
    static MADE: RefCell<Vec<TaskId>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` with the database of this test's thread.
fn with_store<T>(postgres: bool, work: impl AsyncFnOnce(&SystemStore) -> T) -> T {
    DATABASE.with_borrow_mut(|shared| {
        let shared = shared.get_or_insert_with(|| {
            let runtime = Runtime::new().unwrap();
            let backend = if postgres { Backend::Postgres } else { Backend::Sqlite };
            let mut database = runtime.block_on(TestDatabase::new(backend));
            if postgres {
                // No machine stops here; waiting for its disk is most of the time.
                let name = database.url.rsplit_once('/').expect("a URL ends with its database").1.to_owned();
                runtime.block_on(database.sql(&format!("ALTER DATABASE {name} SET synchronous_commit = off")));
                runtime.block_on(database.reopen());
            }
            Shared { runtime, database }
        });
        shared.runtime.block_on(work(&shared.database.store.system()))
    })
}

fn reopen() {
    DATABASE.with_borrow_mut(|shared| {
        let shared = shared.as_mut().expect("a sequence has begun");
        shared.runtime.block_on(shared.database.reopen());
    });
}

impl<const POSTGRES: bool> StateMachineTest for Machine<POSTGRES> {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(model: &Model) -> Self {
        with_store(POSTGRES, async |store| {
            clear(store).await;
            let mut contexts = Vec::new();
            for number in 0..CONTEXTS {
                let subject = format!("caller {number} of {}", NodeId::new());
                let key = ContextKey { subject, ..ContextKey::default() };
                contexts.push(store.ensure_context(key, model.now).await.unwrap());
            }
            let nodes: Vec<_> = model.nodes.iter().map(|_| NodeId::new()).collect();
            for &node in &nodes {
                store.register_node(node).await.unwrap();
            }
            Self { contexts, nodes, tokens: HashMap::new() }
        })
    }

    fn apply(mut machine: Self, model: &Model, step: Step) -> Self {
        if matches!(step, Step::Restart) {
            reopen();
        } else {
            with_store(POSTGRES, async |store| machine.make(store, model, step).await);
        }
        machine
    }

    fn check_invariants(machine: &Self, model: &Model) {
        with_store(POSTGRES, async |store| machine.compare(store, model).await);
    }

    fn teardown(machine: Self, model: Model) {
        with_store(POSTGRES, async |store| machine.compare_all(store, &model).await);
    }
}

impl<const POSTGRES: bool> Machine<POSTGRES> {
    /// Makes one step and compares the answer.
    #[expect(clippy::too_many_lines, reason = "one arm a step, as in the model")]
    async fn make(&mut self, store: &SystemStore, model: &Model, step: Step) {
        match (step, &model.answer) {
            (Step::Pass { .. } | Step::PassTo { .. } | Step::Restart, _) => {}
            (Step::Create { .. }, Answer::Created(task)) => {
                let claim = model.lease(*task).map(|lease| (self.nodes[lease.node], self.token(Some(lease.token))));
                let context = self.contexts[model.tasks[*task].context];
                MADE.with_borrow_mut(|made| made.push(model.tasks[*task].task.id));
                store.create(context, new_task(model, *task, claim)).await.unwrap();
            }
            (Step::Claim { node, most, skew }, Answer::Claimed(tasks)) => {
                let tokens: Vec<_> = (0..most).map(|_| LeaseToken::new()).collect();
                let claims = store.claim(self.nodes[node], tokens.clone(), model.at(skew)).await.unwrap();
                let mut used: Vec<_> = claims.iter().map(|claim| claim.lease.token).collect();
                assert!(used.iter().all(|token| tokens.contains(token)), "claims have the tokens that were given");
                used.sort_by_key(|token| token.as_uuid());
                used.dedup();
                assert_eq!((used.len(), claims.len()), (tasks.len(), tasks.len()), "each has a token of its own");
                for &task in tasks {
                    let id = model.tasks[task].task.id;
                    let claim = claims.iter().find(|claim| claim.lease.task == id);
                    let claim = claim.unwrap_or_else(|| panic!("{id} is the oldest, but others were claimed"));
                    let lease = model.lease(task).unwrap();
                    self.tokens.insert(lease.token, claim.lease.token);
                    self.compare_claim(model, task, lease, claim);
                }
            }
            (Step::Finish { .. }, Answer::Ended(attempts)) => {
                for attempt in attempts {
                    let answer = store.finish(self.finish(model, attempt)).await.unwrap();
                    self.compare_end(model, attempt, &answer);
                }
            }
            (Step::Cancel { foreign, .. }, Answer::Ended(attempts)) => {
                for attempt in attempts {
                    let task = &model.tasks[attempt.task];
                    let context = if foreign { (task.context + 1) % CONTEXTS } else { task.context };
                    let answer = store.cancel(self.contexts[context], task.task.id, end(attempt)).await.unwrap();
                    self.compare_end(model, attempt, &answer);
                }
            }
            (Step::EndByOperator { .. }, Answer::Ended(attempts)) => {
                for attempt in attempts {
                    let answer = store.end(model.tasks[attempt.task].task.id, end(attempt)).await.unwrap();
                    self.compare_end(model, attempt, &answer);
                }
            }
            (Step::EndOverdue { skew }, Answer::Ended(attempts)) => {
                let found = store.overdue(model.at(skew), 1000).await.unwrap();
                let mut found: Vec<_> = found.into_iter().map(|over| (over.task.id.as_uuid(), over.hard_end)).collect();
                found.sort_unstable();
                let wanted = attempts.iter().map(|attempt| &model.tasks[attempt.task]);
                let mut wanted: Vec<_> = wanted.map(|task| (task.task.id.as_uuid(), task.hard_end)).collect();
                wanted.sort_unstable();
                assert_eq!(found, wanted, "overdue tasks");
                for attempt in attempts {
                    let answer = store.end(model.tasks[attempt.task].task.id, end(attempt)).await.unwrap();
                    self.compare_end(model, attempt, &answer);
                }
            }
            (Step::Note { task, skew, .. }, Answer::Spoken { token, message, held }) => {
                let (id, token, message) = (model.tasks[task].task.id, self.token(*token), message.clone());
                let note = Note { task: id, token, message: Some(message), progress: None, now: model.at(skew) };
                assert_eq!(store.note(note).await.unwrap().is_some(), *held, "whether the lease holds");
            }
            (Step::NoteWaiting { skew, .. }, Answer::Noted(noted)) => {
                let id = |(task, message): &(usize, String)| (model.tasks[*task].task.id, message.clone());
                store.note_waiting(noted.iter().map(id).collect(), model.at(skew)).await.unwrap();
            }
            (Step::Ask { task, what, skew, .. }, Answer::Asked { token, stored }) => {
                let token = self.token(*token);
                self.ask(store, model, (task, what), token, *stored, model.at(skew)).await;
            }
            (Step::Reply { task, question, foreign, skew }, &Answer::Replied { text, done }) => {
                let task = &model.tasks[task];
                let context = if foreign { (task.context + 1) % CONTEXTS } else { task.context };
                let (context, delivery) = (self.contexts[context], DeliveryId::from_uuid(task.questions[question].id));
                let given =
                    store.answer_input(context, delivery, reply(text), &then(ANSWERED), model.at(skew)).await.unwrap();
                assert_eq!(given, done.then(|| self.owned(task.context, &task.task)), "whether the answer is first");
            }
            (Step::Take { task, question, .. }, Answer::Taken { token, taken }) => {
                let input = InputId::from_uuid(model.tasks[task].questions[question].id);
                let wanted = match *taken {
                    reference::Taken::Answer(text) => Taken::Answer(reply(text)),
                    reference::Taken::Open => Taken::Open,
                    reference::Taken::Gone => Taken::Gone,
                };
                assert_eq!(store.take_answer(input, self.token(*token)).await.unwrap(), wanted, "what the work gets");
            }
            (Step::Withdraw { task, question, skew, .. }, Answer::Withdrawn { token, done }) => {
                let (task, token) = (&model.tasks[task], self.token(*token));
                let input = InputId::from_uuid(task.questions[question].id);
                let gone = store.withdraw_input(input, token, &then(WITHDRAWN), model.at(skew)).await.unwrap();
                assert_eq!(gone, done.then(|| self.owned(task.context, &task.task)), "whether it was open");
            }
            (Step::Release { task, delay, counted, keeps, skew, .. }, Answer::Spoken { token, message, held }) => {
                let now = model.at(skew);
                let release = Release {
                    task: model.tasks[task].task.id,
                    token: self.token(*token),
                    not_before: now + delay,
                    counted,
                    keep_inputs: keeps,
                    message: message.clone(),
                    now,
                };
                assert_eq!(store.release(release).await.unwrap(), *held, "whether the lease holds");
            }
            (Step::Reap { batch, skew }, &Answer::Count(wanted)) => {
                let mut reaped = 0;
                loop {
                    let count = store.reap(model.at(skew), batch).await.unwrap();
                    assert!(count <= u64::from(batch), "batches are bounded");
                    reaped += count;
                    if count < u64::from(batch) {
                        break;
                    }
                }
                assert_eq!(reaped, wanted, "expired rows");
            }
            (Step::Join, _) => {
                self.nodes.push(NodeId::new());
                store.register_node(self.nodes[self.nodes.len() - 1]).await.unwrap();
            }
            (Step::Retire { node }, _) => store.retire_node(self.nodes[node]).await.unwrap(),
            (Step::Judge { judge }, &Answer::Count(dead)) => {
                // Older than now at any age: SQLite's clock counts milliseconds.
                let before = store.heartbeat(self.nodes[judge]).await.unwrap().database_now;
                while store.heartbeat(self.nodes[judge]).await.unwrap().database_now <= before {}
                let found = store.declare_dead(self.nodes[judge], Duration::ZERO).await.unwrap();
                assert_eq!(found.len() as u64, dead, "nodes declared dead");
            }
            (Step::Beat { node }, &Answer::Flag(alive)) => {
                assert_eq!(store.heartbeat(self.nodes[node]).await.unwrap().alive, alive);
            }
            (Step::Recover { page }, Answer::Orphans(orphans)) => self.recover(store, model, orphans, page).await,
            (Step::Forget, &Answer::Count(wanted)) => {
                assert_eq!(store.forget_nodes(FOR_EVER).await.unwrap(), wanted, "dead nodes without leases");
            }
            (Step::Walk { context, page }, _) => {
                let mut walked: Vec<TaskId> = Vec::new();
                let mut after = None;
                loop {
                    let tasks = store.list(self.contexts[context], after, page, model.now).await.unwrap();
                    walked.extend(tasks.iter().map(|task| task.id));
                    match tasks.last() {
                        Some(last) => after = Some(Position { created: last.created, id: last.id }),
                        None => break,
                    }
                }
                assert_eq!(walked, model.list(context).iter().map(|task| task.id).collect::<Vec<_>>());
            }
            (step, answer) => unreachable!("{step:?} is never answered by {answer:?}"),
        }
    }

    /// Asks, and has a new question sent.
    async fn ask(
        &self,
        store: &SystemStore,
        model: &Model,
        (number, what): (usize, u8),
        token: LeaseToken,
        stored: Option<reference::Asked>,
        now: Timestamp,
    ) {
        let task = &model.tasks[number];
        let fresh = match stored {
            Some(reference::Asked::New(at)) => InputId::from_uuid(task.questions[at].id),
            _ => InputId::new(),
        };
        let new = NewInput {
            id: fresh,
            task: task.task.id,
            token,
            question: asked(what),
            name: None,
            deadline: None,
            most: 1000,
            message: asking(what),
            now,
        };
        let asked = store.ask(new).await.unwrap();
        let owned = self.owned(task.context, &task.task);
        let wanted = match stored {
            None => Asked::Refused,
            Some(reference::Asked::New(_)) => Asked::Stored(owned),
            Some(reference::Asked::Adopted(at)) => {
                Asked::Adopted { id: InputId::from_uuid(task.questions[at].id), task: owned, deadline: None }
            }
        };
        assert_eq!(asked, wanted, "what becomes of a question");
        if matches!(stored, Some(reference::Asked::New(_))) {
            let hold = Hold {
                input: fresh,
                task: task.task.id,
                delivery: DeliveryId::from_uuid(fresh.as_uuid()),
                session: SessionId::new(),
                stream: StreamId::new(),
                sequence: 1,
                node: self.nodes[0],
                purpose: Purpose::Question,
                now,
            };
            assert!(store.hold_input(hold).await.unwrap(), "nobody has a new question");
        }
    }

    async fn recover(&self, store: &SystemStore, model: &Model, orphans: &[Recovered], page: u32) {
        let mut found: Vec<Claim> = Vec::new();
        loop {
            let after = found.last().map(|claim| claim.lease.task);
            let claims = store.orphans(after, page).await.unwrap();
            let count = claims.len();
            found.extend(claims);
            if count < page as usize {
                break;
            }
        }
        let wanted: Vec<_> = orphans.iter().map(|orphan| model.tasks[orphan.task].task.id).collect();
        assert_eq!(found.iter().map(|claim| claim.lease.task).collect::<Vec<_>>(), wanted, "claims of the dead");
        for (orphan, claim) in orphans.iter().zip(&found) {
            self.compare_claim(model, orphan.task, orphan.lease, claim);
            match &orphan.how {
                How::Again { not_before, message, now } => {
                    let release = Release {
                        task: claim.lease.task,
                        token: claim.lease.token,
                        not_before: *not_before,
                        counted: true,
                        keep_inputs: false,
                        message: message.clone(),
                        now: *now,
                    };
                    assert!(store.release(release).await.unwrap(), "the lease of a dead node can be taken");
                }
                How::End(attempt) => {
                    let answer = store.finish(self.finish(model, attempt)).await.unwrap();
                    self.compare_end(model, attempt, &answer);
                }
            }
        }
    }

    /// What can be seen of the store is as in the model: every task, and in turn one list, one node's leases, one task
    /// as others see it.
    async fn compare(&self, store: &SystemStore, model: &Model) {
        let turn = model.steps;
        tokio::join!(
            self.compare_list(store, model, turn % CONTEXTS),
            self.compare_node(store, model, turn % self.nodes.len()),
            self.compare_details(store, model, turn % model.tasks.len().max(1)),
            self.compare_owned(store, model),
            self.compare_live(store, model),
        );
    }

    /// The same for all lists, nodes and tasks.
    async fn compare_all(&self, store: &SystemStore, model: &Model) {
        for context in 0..CONTEXTS {
            self.compare_list(store, model, context).await;
        }
        for node in 0..self.nodes.len() {
            self.compare_node(store, model, node).await;
        }
        for task in 0..model.tasks.len() {
            self.compare_details(store, model, task).await;
        }
    }

    async fn compare_list(&self, store: &SystemStore, model: &Model, context: usize) {
        let listed = patiently(|| store.list(self.contexts[context], None, 1000, model.now)).await;
        let wanted: Vec<_> = model.list(context).into_iter().map(|task| self.owned(context, task)).collect();
        assert_eq!(listed, wanted, "the list of context {context}");
    }

    async fn compare_node(&self, store: &SystemStore, model: &Model, node: usize) {
        let mut held = patiently(|| store.held(self.nodes[node])).await;
        held.sort_by_key(|lease| lease.task);
        let wanted = model.held(node).into_iter().map(|(task, lease)| self.lease(model, task, lease));
        let mut wanted: Vec<_> = wanted.collect();
        wanted.sort_by_key(|lease| lease.task);
        assert_eq!(held, wanted, "the leases of node {node}");
    }

    async fn compare_owned(&self, store: &SystemStore, model: &Model) {
        let look = |task: &TaskModel| (self.contexts[task.context], task.task.id);
        let looks = model.tasks.iter().map(look);
        let found = join_all(looks.map(|(context, id)| patiently(move || store.outcome(context, id))));
        for (task, found) in model.tasks.iter().zip(found.await) {
            let wanted = (!task.reaped).then(|| (self.owned(task.context, &task.task), task.outcome.clone()));
            assert_eq!(found, wanted, "what its owner sees of {}", task.task.id);
        }
    }

    async fn compare_live(&self, store: &SystemStore, model: &Model) {
        let waiting: Vec<_> = model.queue(model.now).into_iter().map(|task| model.tasks[task].task.id).collect();
        assert_eq!(patiently(|| store.queue(1000, model.now)).await, waiting, "the queue");
        let ids: Vec<_> = model.tasks.iter().map(|task| task.task.id).collect();
        let watch = Watch { tasks: ids, ..Watch::nothing(model.now) };
        let ended: HashSet<_> = patiently(|| store.watch(watch.clone())).await.ended.into_iter().collect();
        let dead = model.tasks.iter().filter(|task| task.reaped || !is_live(task));
        assert_eq!(ended, dead.map(|task| task.task.id).collect(), "which tasks are not live any more");
    }

    async fn compare_details(&self, store: &SystemStore, model: &Model, number: usize) {
        let Some(task) = model.tasks.get(number) else { return };
        let foreign = self.contexts[(task.context + 1) % CONTEXTS];
        assert_eq!(patiently(|| store.get(foreign, task.task.id)).await, None, "nobody sees another's task");
        let (owner, id) = (self.contexts[task.context], task.task.id);
        let open = patiently(|| store.open_inputs(owner, id)).await;
        let open: Vec<_> = open.into_iter().map(|open| (open.id.as_uuid(), open.created)).collect();
        let wanted: Vec<_> = task.open().into_iter().map(|question| (question.id, question.created)).collect();
        assert_eq!(open, wanted, "the open questions of {id}");
        let details = patiently(|| store.details(id)).await;
        let seen = details.map(|details| (details.attempt, details.node));
        let node = model.lease(number).map(|lease| self.nodes[lease.node]);
        let wanted = (!task.reaped).then_some((task.attempt, node));
        assert_eq!(seen, wanted, "the last attempt of {} and its node", task.task.id);
    }

    fn compare_end(&self, model: &Model, attempt: &Attempted, answer: &Ended) {
        let task = &model.tasks[attempt.task];
        let wanted = if attempt.done { Ended::Done(self.owned(task.context, &task.task)) } else { Ended::Refused };
        assert_eq!(*answer, wanted, "the answer to an end");
    }

    fn compare_claim(&self, model: &Model, task: usize, lease: LeaseModel, claim: &Claim) {
        assert_eq!(claim.lease, self.lease(model, task, lease));
        let (wanted, work) = (new_task(model, task, None), &claim.work);
        assert_eq!(work.context, self.contexts[model.tasks[task].context]);
        assert_eq!(
            (&work.tool, &work.upstream, &work.upstream_tool),
            (&wanted.tool, &wanted.upstream, &wanted.upstream_tool)
        );
        assert_eq!((&work.params, work.created, work.granted), (&wanted.params, wanted.created, wanted.granted));
        assert_eq!((work.hard_end, work.restart), (wanted.hard_end, wanted.restart));
        assert_eq!((work.attempts_allowed, work.run_limit), (wanted.attempts_allowed, wanted.run_limit));
    }

    fn lease(&self, model: &Model, task: usize, lease: LeaseModel) -> Lease {
        Lease {
            task: model.tasks[task].task.id,
            node: self.nodes[lease.node],
            token: self.tokens[&lease.token],
            attempt: lease.attempt,
            claimed: lease.claimed,
        }
    }

    /// A model's task as its owner sees it.
    fn owned(&self, context: usize, task: &Task) -> Task {
        Task { context: self.contexts[context], ..task.clone() }
    }

    fn finish(&self, model: &Model, attempt: &Attempted) -> Finish {
        let token = attempt.token.map_or_else(LeaseToken::new, |number| self.tokens[&number]);
        Finish { task: model.tasks[attempt.task].task.id, token, end: end(attempt) }
    }

    /// The real token of a number; a new one for a number not seen before, or for a stranger.
    fn token(&mut self, number: Option<usize>) -> LeaseToken {
        number.map_or_else(LeaseToken::new, |number| *self.tokens.entry(number).or_insert_with(LeaseToken::new))
    }
}

fn reply(text: u32) -> taskhold::domain::input::Answer {
    taskhold::domain::input::Answer::Result(RawJson::trusted(format!(r#"{{"write":{text}}}"#)))
}

fn end(attempt: &Attempted) -> End {
    End {
        outcome: attempt.outcome.clone(),
        message: attempt.message.clone(),
        now: attempt.now,
        expires: attempt.expires,
    }
}

fn new_task(model: &Model, number: usize, claim: Option<(NodeId, LeaseToken)>) -> NewTask {
    let task = &model.tasks[number];
    NewTask {
        id: task.task.id,
        session: None,
        tool: task.task.tool.clone(),
        upstream: "upstream".to_owned(),
        upstream_tool: "its name there".to_owned(),
        params: RawJson::trusted(format!(r#"{{"name":"model","arguments":{{"number":{number}}}}}"#)),
        created: task.task.created,
        granted: task.task.granted,
        hard_end: task.hard_end,
        poll_interval_ms: task.task.poll_interval_ms,
        restart: task.restart,
        attempts_allowed: task.attempts_allowed,
        run_limit: Duration::from_secs(60),
        capabilities: RawJson::trusted("{}"),
        progress_token: None,
        keyed: None,
        counted: Counted::default(),
        claim,
    }
}

/// Asks until the store can answer: on a busy machine a connection may not be had in time.
async fn patiently<T, F>(ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(StoreError::Unavailable(_)) if Instant::now() < deadline => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Removes what an earlier sequence left, also one that failed in its middle.
async fn clear(store: &SystemStore) {
    let now = Timestamp::from_micros(0);
    for id in MADE.take() {
        let end = End { outcome: Outcome::Cancelled, message: None, now, expires: Some(now) };
        store.end(id, end).await.unwrap();
    }
    while store.reap(FOR_EVER, 1000).await.unwrap() > 0 {}
    store.declare_dead(NodeId::new(), Duration::ZERO).await.unwrap();
    store.forget_nodes(FOR_EVER).await.unwrap();
}

/// Such that the task says what it asks.
fn asked(what: u8) -> Question {
    let params = RawJson::trusted(format!(r#"{{"message":"{what}"}}"#));
    Question { kind: InputKind::Elicitation, params: Some(params) }
}
