//! Questions of running tasks: asked by the work, answered by its caller, taken by the work exactly once (INPUT).
//!
//! A question is open while its state says so and its task is live. What opens or closes one holds the lock of the task's
//! live row from before its first look, so that the count of open questions there is right, and with it the status.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use super::Result;
use super::batch::{Job, Kind};
use super::deliveries::{Held, Last, read_held, read_last};
use super::dialect::Dialect;
use super::link::{Link, Session, Transaction};
use super::sql::{Args, Cells, Fault, args, statements, task_columns};
use super::sql_store::{SqlStore, Write};
use super::tasks::{by_id, clean, ids, read_task};
use crate::domain::answer::summary;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, DeliveryId, InputId, LeaseToken, SessionId, TaskId};
use crate::domain::input::{Answer, InputKind, Question};
use crate::domain::json::RawJson;
use crate::domain::task::Task;

/// A question on its way to being stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInput {
    pub id: InputId,
    pub task: TaskId,
    /// The lease of the attempt that asks.
    pub token: LeaseToken,
    pub question: Question,
    /// How the work's server names it, where it does.
    pub name: Option<String>,
    /// When the work stops waiting.
    pub deadline: Option<Timestamp>,
    /// The most questions that the task may ask in its life.
    pub most: usize,
    /// What `statusMessage` says while it is open.
    pub message: String,
    pub now: Timestamp,
}

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Stored; the task is `input_required`.
    Stored(Task),
    /// An earlier attempt of this task left the same question (kind and params equal) open or answered, and it is now
    /// this attempt's, under its old id and with its old deadline. A call that is made anew gets no answer from where
    /// the earlier one had asked the same more than once and gone on from the first: nobody knows which one it asks.
    Adopted { id: InputId, task: Task, deadline: Option<Timestamp> },
    /// The task has asked as often as it may.
    Full,
    /// The lease is not held, or the task has ended.
    Refused,
}

/// An open question as a stream needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenInput {
    pub id: InputId,
    pub task: TaskId,
    pub context: ContextId,
    /// The session that made the task.
    pub session: Option<SessionId>,
    pub question: Question,
    pub created: Timestamp,
    /// The stream that has it now.
    pub held: Option<Held>,
    /// How it was sent last, unless that is over.
    pub last: Option<Last>,
    /// The client's own task for it, as the client sent it.
    pub client_task: Option<RawJson>,
}

/// What a task's `statusMessage` says once a question is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Afterwards {
    /// If it was the last one that was open.
    pub message: String,
    /// The most bytes of what is said of the newest of the others.
    pub limit: usize,
}

/// A question that a task waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub id: InputId,
    /// How the work's server names it, where it does.
    pub name: Option<String>,
    pub question: Question,
}

/// What the work gets of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// The work may have this, once.
    Answer(Answer),
    Open,
    /// Taken before, withdrawn, or of a lease that is not held.
    Gone,
}

statements! {
    TASK_OF = "SELECT task FROM task_inputs WHERE id = $1";
    TAKE = "
        UPDATE task_inputs SET state = 2 WHERE id = $1 AND token = $2 AND state = 1
        RETURNING answer, answer_is_error";
    /// An open one, and one that a write whose end was lost has taken before.
    STANDING = "
        SELECT state, answer, answer_is_error FROM task_inputs WHERE id = $1 AND token = $2 AND state IN (0, 2)";
    WITHDRAW = "
        UPDATE task_inputs SET state = 3, node = NULL, writer = $3 WHERE id = $1 AND token = $2 AND state = 0
        RETURNING task AS id";
    WITHDRAWN = "SELECT task AS id FROM task_inputs WHERE id = $1 AND writer = $2 AND state = 3";
    /// A task with its open questions, one a row; one row if it has none.
    ASKING = concat!(
        "SELECT ", task_columns!(), ", i.id AS input, i.kind, i.params, i.name
         FROM tasks t
         LEFT JOIN task_outcomes o ON o.task = t.id
         LEFT JOIN task_inputs i ON i.task = t.id AND i.context = t.context AND i.state = 0 AND t.status = 1
         WHERE t.context = $1 AND t.id = $2 AND t.parked = 0
         ORDER BY i.created, i.id"
    );
    OPEN_OF_TASK = "
        SELECT i.id, i.task, i.context, i.session, i.kind, i.params, i.created, i.delivery, i.node, i.holder, i.client_task,
            d.created AS updated
        FROM task_inputs i JOIN task_live l ON l.task = i.task
        LEFT JOIN input_deliveries d ON d.id = i.delivery
        WHERE i.context = $1 AND i.task = $2 AND i.state = 0
        ORDER BY i.created, i.id";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn ask_question(&self, new: NewInput) -> Result<Asked> {
        self.gather(|reply| Write::Ask(Box::new(Job { item: Ask(new), reply }))).await
    }

    pub(super) async fn answer_question(
        &self,
        context: ContextId,
        delivery: DeliveryId,
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<(InputId, Option<Task>)>> {
        let Some((input, task)) = self.asked_by(context, delivery).await? else { return Ok(None) };
        let (delivery, writer) = (Some(delivery), LeaseToken::new());
        let item = Give { context, input, task, delivery, answer, then: then.clone(), now, writer };
        let task = self.gather(|reply| Write::Answer(Box::new(Job { item, reply }))).await?;
        Ok(Some((input, task)))
    }

    pub(super) async fn answer_by_id(
        &self,
        context: ContextId,
        input: (TaskId, InputId),
        answer: Answer,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        let ((task, input), writer) = (input, LeaseToken::new());
        let item = Give { context, input, task, delivery: None, answer, then: then.clone(), now, writer };
        self.gather(|reply| Write::Answer(Box::new(Job { item, reply }))).await
    }

    pub(super) async fn take(&self, input: InputId, token: LeaseToken) -> Result<Taken> {
        let doubtful = AtomicBool::new(false);
        self.again("store.take_answer", move |link: Arc<Link<D>>| {
            let doubtful = doubtful.swap(true, Ordering::Relaxed);
            async move {
                let mut session = link.writer().await?;
                let mut transaction = session.begin().await?;
                let held = lock_task_of(&mut transaction, input, token).await?;
                let mut taken = Taken::Gone;
                if held {
                    let answered = transaction.fetch(TAKE, args![input, token]).await?;
                    taken = match answered.first() {
                        Some(row) => Taken::Answer(read_answer(row)?),
                        None => standing(&mut transaction, input, token, doubtful).await?,
                    };
                }
                transaction.commit().await?;
                Ok(taken)
            }
        })
        .await
    }

    pub(super) async fn withdraw(
        &self,
        input: InputId,
        token: LeaseToken,
        then: &Afterwards,
        now: Timestamp,
    ) -> Result<Option<Task>> {
        let (then, writer) = (then.clone(), LeaseToken::new());
        self.again("store.withdraw_input", move |link: Arc<Link<D>>| {
            let then = then.clone();
            async move {
                let mut session = link.writer().await?;
                let mut transaction = session.begin().await?;
                let held = lock_task_of(&mut transaction, input, token).await?;
                let mut gone = Vec::new();
                if held {
                    gone = transaction.fetch(WITHDRAW, args![input, token, writer]).await?;
                }
                if let Some(row) = gone.first() {
                    one_less(&mut transaction, vec![(row.uuid("id")?, &then, now)]).await?;
                } else {
                    // By a try whose end was lost; the lease may be gone since.
                    gone = transaction.fetch(WITHDRAWN, args![input, writer]).await?;
                }
                let tasks = ids(&gone)?.into_iter().map(|task| args![task]).collect();
                let tasks = by_id(&transaction.many(D::TASKS, tasks).await?)?;
                transaction.commit().await?;
                Ok(tasks.into_values().next())
            }
        })
        .await
    }

    /// The task as it stands, and what it waits for, at one moment.
    pub(super) async fn find_asking(&self, context: ContextId, task: TaskId) -> Result<Option<(Task, Vec<Waiting>)>> {
        let rows = self.read("store.asking", ASKING, args![context, task]).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let task = read_task(first)?;
        let mut waiting = Vec::new();
        for row in &rows {
            if let Some(id) = row.maybe_uuid("input")? {
                let (id, name) = (InputId::from_uuid(id), row.maybe_text("name")?);
                waiting.push(Waiting { id, name, question: read_question(row)? });
            }
        }
        Ok(Some((task, waiting)))
    }

    pub(super) async fn open_of(&self, context: ContextId, task: TaskId) -> Result<Vec<OpenInput>> {
        let rows = self.read("store.open_inputs", OPEN_OF_TASK, args![context, task]).await?;
        Ok(rows.iter().map(read_shown).collect::<std::result::Result<_, _>>()?)
    }
}

/// Locks the live row of a question's task; false if `token` does not hold it.
async fn lock_task_of<D: Dialect>(
    transaction: &mut Transaction<'_, D>,
    input: InputId,
    token: LeaseToken,
) -> std::result::Result<bool, Fault> {
    let rows = transaction.fetch(TASK_OF, args![input]).await?;
    let Some(row) = rows.first() else { return Ok(false) };
    let task = row.uuid("task")?;
    let live = lock_live(transaction, [task]).await?;
    Ok(live.get(&task) == Some(&Some(token.as_uuid())))
}

/// Locks live rows; answers those that are there, with the token of their lease.
pub(super) async fn lock_live<D: Dialect>(
    transaction: &mut Transaction<'_, D>,
    tasks: impl IntoIterator<Item = Uuid> + Send,
) -> std::result::Result<HashMap<Uuid, Option<Uuid>>, Fault> {
    let tasks = tasks.into_iter().map(|task| args![task]).collect();
    let rows = transaction.many(D::LOCK_LIVE, tasks).await?;
    rows.iter().map(|row| Ok((row.uuid("id")?, row.maybe_uuid("token")?))).collect()
}

/// Takes a closed question off the count of its task, whose message then names none that is closed.
async fn one_less<D: Dialect>(
    transaction: &mut Transaction<'_, D>,
    closed: Vec<(Uuid, &Afterwards, Timestamp)>,
) -> std::result::Result<(), Fault> {
    let rows = transaction.many(D::NEWEST_OPEN, closed.iter().map(|(task, ..)| args![*task]).collect()).await?;
    let open = rows.iter().map(|row| Ok((row.uuid("id")?, read_question(row)?)));
    let open: HashMap<Uuid, Question> = open.collect::<std::result::Result<_, Fault>>()?;
    let row = |(task, then, now): (Uuid, &Afterwards, Timestamp)| {
        let asking = open.get(&task).map(|question| summary(question, then.limit));
        args![task, clean(&then.message), now, asking.as_deref().map(clean)]
    };
    transaction.many(D::ONE_LESS, closed.into_iter().map(row).collect()).await?;
    Ok(())
}

async fn standing<D: Dialect>(
    transaction: &mut Transaction<'_, D>,
    input: InputId,
    token: LeaseToken,
    doubtful: bool,
) -> std::result::Result<Taken, Fault> {
    let rows = transaction.fetch(STANDING, args![input, token]).await?;
    let Some(row) = rows.first() else { return Ok(Taken::Gone) };
    Ok(match row.int("state")? {
        0 => Taken::Open,
        _ if doubtful => Taken::Answer(read_answer(row)?),
        _ => Taken::Gone,
    })
}

fn read_answer<R: Cells>(row: &R) -> std::result::Result<Answer, Fault> {
    let answer = row.json("answer")?;
    Ok(if row.int("answer_is_error")? == 0 { Answer::Result(answer) } else { Answer::Error(answer) })
}

pub(super) fn read_question<R: Cells>(row: &R) -> std::result::Result<Question, Fault> {
    let code = row.int("kind")?;
    let kind =
        InputKind::from_code(code).ok_or_else(|| Fault::broken(format!("there is no kind of question {code}")))?;
    Ok(Question { kind, params: row.maybe_json("params")? })
}

fn read_shown<R: Cells>(row: &R) -> std::result::Result<OpenInput, Fault> {
    Ok(OpenInput { held: read_held(row)?, ..read_open(row)? })
}

/// Reads an open question that no stream holds.
pub(super) fn read_open<R: Cells>(row: &R) -> std::result::Result<OpenInput, Fault> {
    Ok(OpenInput {
        id: InputId::from_uuid(row.uuid("id")?),
        task: TaskId::from_uuid(row.uuid("task")?),
        context: ContextId::from_uuid(row.uuid("context")?),
        session: row.maybe_uuid("session")?.map(SessionId::from_uuid),
        question: read_question(row)?,
        created: row.time("created")?,
        held: None,
        last: read_last(row)?,
        client_task: row.maybe_json("client_task")?,
    })
}

/// A question that need not be asked anew, and its deadline.
type Prior = (InputId, Option<Timestamp>);

/// A question of an attempt.
pub struct Ask(NewInput);

impl Ask {
    pub fn weight(&self) -> usize {
        self.0.question.params.as_ref().map_or(0, RawJson::len)
    }

    fn args(&self) -> Args {
        let new = &self.0;
        let Question { kind, params } = &new.question;
        let most = i64::try_from(new.most).unwrap_or(i64::MAX);
        let (message, name) = (clean(&new.message), new.name.as_deref().map(clean));
        args![new.task, new.id, new.token, kind.code(), params.as_ref(), new.deadline, message, new.now, most, name]
    }

    fn asked(&self, held: bool, prior: Option<Prior>, task: Option<Task>) -> Asked {
        match (task, prior) {
            // Whoever holds the lease of a live task, under its lock, is refused for one reason alone.
            (None, _) if held => Asked::Full,
            (None, _) => Asked::Refused,
            (Some(task), Some((id, deadline))) if id != self.0.id => Asked::Adopted { id, task, deadline },
            (Some(task), _) => Asked::Stored(task),
        }
    }
}

impl Kind for Ask {
    type Answer = Asked;

    fn key(&self) -> Uuid {
        self.0.task.as_uuid()
    }

    /// Needs no other way after a doubtful try: what has landed is found by the id that was made before, also where an
    /// earlier attempt's question was adopted.
    async fn commit<D: Dialect>(session: &mut Session<D>, items: &[Self]) -> std::result::Result<Vec<Asked>, Fault> {
        let mut transaction = session.begin().await?;
        let live = lock_live(&mut transaction, items.iter().map(Kind::key)).await?;
        let may = |item: &&Self| live.get(&item.key()) == Some(&Some(item.0.token.as_uuid()));
        let before = items.iter().filter(may).map(|Self(new)| {
            let Question { kind, params } = &new.question;
            args![new.task, new.id, new.token, kind.code(), params.as_ref()]
        });
        let rows = transaction.many(D::ASKED_BEFORE, before.collect()).await?;
        let prior = rows
            .iter()
            .map(|row| Ok((row.uuid("id")?, (InputId::from_uuid(row.uuid("input")?), row.maybe_time("deadline")?))));
        let prior: HashMap<Uuid, Prior> = prior.collect::<std::result::Result<_, Fault>>()?;
        let adopt = items.iter().filter_map(|item| {
            let (id, _) = prior.get(&item.key()).filter(|(id, _)| *id != item.0.id)?;
            Some(args![item.0.task, *id, item.0.token, item.0.id])
        });
        transaction.many(D::ADOPT, adopt.collect()).await?;
        let new = items.iter().filter(may).filter(|item| !prior.contains_key(&item.key())).map(Self::args);
        let mut spoken = ids(&transaction.many(D::ASK, new.collect()).await?)?;
        spoken.extend(prior.keys());
        let wanted = spoken.iter().map(|task| args![*task]).collect();
        let mut tasks = by_id(&transaction.many(D::TASKS, wanted).await?)?;
        transaction.commit().await?;
        let answers = items
            .iter()
            .map(|item| item.asked(may(&item), prior.get(&item.key()).copied(), tasks.remove(&item.0.task)));
        Ok(answers.collect())
    }
}

/// An answer of a caller.
pub struct Give {
    context: ContextId,
    input: InputId,
    task: TaskId,
    /// Under which it was asked, if it was sent at all.
    delivery: Option<DeliveryId>,
    answer: Answer,
    then: Afterwards,
    now: Timestamp,
    /// By this the write finds itself again.
    writer: LeaseToken,
}

impl Give {
    pub fn weight(&self) -> usize {
        let (Answer::Result(json) | Answer::Error(json)) = &self.answer;
        json.len()
    }

    fn args(&self) -> Args {
        let (json, is_error) = match &self.answer {
            Answer::Result(json) => (json, false),
            Answer::Error(json) => (json, true),
        };
        args![self.task, self.input, self.context, json, is_error, self.writer, self.delivery]
    }
}

impl Kind for Give {
    type Answer = Option<Task>;

    fn key(&self) -> Uuid {
        self.task.as_uuid()
    }

    /// Needs no other way after a doubtful try: an answer that has landed finds itself by its writer.
    async fn commit<D: Dialect>(
        session: &mut Session<D>,
        items: &[Self],
    ) -> std::result::Result<Vec<Option<Task>>, Fault> {
        let mut transaction = session.begin().await?;
        lock_live(&mut transaction, items.iter().map(Kind::key)).await?;
        let mut given: HashSet<Uuid> =
            ids(&transaction.many(D::ANSWER, items.iter().map(Self::args).collect()).await?)?;
        let (counted, late): (Vec<_>, Vec<_>) = items.iter().partition(|item| given.contains(&item.key()));
        let counted = counted.into_iter().map(|item| (item.task.as_uuid(), &item.then, item.now)).collect();
        one_less(&mut transaction, counted).await?;
        let late = late.into_iter().map(|item| args![item.input, item.writer]).collect();
        given.extend(ids(&transaction.many(D::ANSWERED, late).await?)?);
        let wanted = given.iter().map(|task| args![*task]).collect();
        let mut tasks = by_id(&transaction.many(D::TASKS, wanted).await?)?;
        transaction.commit().await?;
        Ok(items.iter().map(|item| tasks.remove(&item.task)).collect())
    }
}
