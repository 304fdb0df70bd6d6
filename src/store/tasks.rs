//! Tasks: making, looking up, listing and ending them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::batch::{Gathered, Job, Kind};
use super::dialect::{Dialect, Many, Row};
use super::link::{Own, Session};
use super::sql::{Args, Cells, Fault, args, statements, task_columns};
use super::sql_store::{SqlStore, Write};
use super::{End, Ended, Finish, Result, StoreError};
use crate::domain::clock::Timestamp;
use crate::domain::cursor::Position;
use crate::domain::ids::{ContextId, LeaseToken, SessionId, TaskId};
use crate::domain::outcome::Outcome;
use crate::domain::retention::Ttl;
use crate::domain::task::{QUEUED, RUNNING, Status, Task};
use crate::domain::text::storable;
use crate::domain::work::NewTask;

statements! {
    /// A page is a range of the index on (context, created, id), whatever its depth.
    LIST = concat!(
        "SELECT ", task_columns!(), "
         FROM tasks t LEFT JOIN task_outcomes o ON o.task = t.id
         WHERE t.context = $1 AND t.parked = 0 AND (t.created, t.id) < ($2, $3)
            AND (o.expires IS NULL OR o.expires > $4)
         ORDER BY t.created DESC, t.id DESC LIMIT $5"
    );
}

/// The largest batch of look-ups that carry outcomes, whose sizes are unknown before they are read.
const MOST_OUTCOMES: usize = 32;
/// How long a look-up that met a broken link tries again.
const PATIENCE: Duration = Duration::from_secs(2);

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn create_task(&self, context: ContextId, new: NewTask) -> Result<bool> {
        let item = Create { context, new };
        self.gather(|reply| Write::Create(Box::new(Job { item, reply }))).await
    }

    pub(super) async fn end_task(&self, item: EndTask) -> Result<Ended> {
        self.gather(|reply| Write::End(Box::new(Job { item, reply }))).await
    }

    pub(super) async fn look(&self, context: ContextId, id: TaskId, full: bool) -> Result<Option<Found>> {
        let (reply, answer) = oneshot::channel();
        self.looks.send(Look { context, id, full, reply })?;
        let found = answer.await.map_err(|_| StoreError::Unavailable("the look-up was interrupted".into()))??;
        Ok(found)
    }

    pub(super) async fn list_tasks(
        &self,
        context: ContextId,
        after: Option<Position>,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<Task>> {
        let (created, id) = start(after);
        let rows = self.read("store.list", LIST, args![context, created, id, now, limit]).await?;
        let tasks: Vec<Task> = rows.iter().map(read_task).collect::<std::result::Result<_, _>>()?;
        if tasks.iter().any(|task| task.context != context) {
            return Err(foreign().into());
        }
        Ok(tasks)
    }
}

/// Where a list begins: after `after`, or before everything.
pub(super) fn start(after: Option<Position>) -> (i64, Uuid) {
    after.map_or((i64::MAX, Uuid::max()), |position| (position.created.micros(), position.id.as_uuid()))
}

/// Reads the columns of [`task_columns`].
pub(super) fn read_task<R: Cells>(row: &R) -> std::result::Result<Task, Fault> {
    let code = row.int("status")?;
    let status = Status::from_code(code).ok_or_else(|| Fault::broken(format!("there is no status {code}")))?;
    let (mut message, mut updated) = (row.maybe_text("message")?, row.time("updated")?);
    if status == Status::Working && message.is_none() {
        let claimed = row.maybe_time("claimed")?;
        message = Some(if claimed.is_some() { RUNNING } else { QUEUED }.to_owned());
        updated = updated.max(claimed.unwrap_or(updated));
    }
    Ok(Task {
        id: TaskId::from_uuid(row.uuid("id")?),
        context: ContextId::from_uuid(row.uuid("context")?),
        tool: row.text("tool")?,
        status,
        message,
        created: row.time("created")?,
        updated,
        granted: Ttl::from_milliseconds(row.maybe_int("granted_ttl")?),
        poll_interval_ms: row.int("poll_interval")?,
        expires: row.maybe_time("expires")?,
        session: row.maybe_uuid("session")?.map(SessionId::from_uuid),
        progress_token: row.maybe_json("progress_token")?,
        progress: row.maybe_json("progress")?,
        progress_at: row.maybe_time("progress_at")?.unwrap_or(row.time("created")?),
    })
}

/// Reads the outcome of a task: `Some` exactly for ended ones.
pub(super) fn read_outcome<R: Cells>(row: &R, status: Status) -> std::result::Result<Option<Outcome>, Fault> {
    let Status::Ended(ending) = status else { return Ok(None) };
    let outcome = Outcome::from_parts(ending, row.maybe_json("outcome")?);
    outcome.map(Some).ok_or_else(|| Fault::broken("an ended task's outcome does not fit its status"))
}

fn foreign() -> Fault {
    Fault::broken("a statement answered another context's row; this is a bug")
}

/// Text without U+0000, which PostgreSQL cannot keep. Whoever made it has cut it to its limit.
pub(super) fn clean(text: &str) -> String {
    storable(text, usize::MAX)
}

/// A new task of a context.
pub struct Create {
    context: ContextId,
    new: NewTask,
}

impl Create {
    pub fn weight(&self) -> usize {
        self.new.params.len() + self.new.capabilities.len()
    }

    /// Whether its key may be another row's. A batch has only one kind.
    pub fn is_keyed(&self) -> bool {
        self.new.keyed.is_some()
    }

    fn statement<D: Dialect>(items: &[Self]) -> Many {
        if items.iter().any(Self::is_keyed) { D::CREATE_KEYED } else { D::CREATE }
    }

    fn args(&self) -> Args {
        let new = &self.new;
        let (node, token) = new.claim.unzip();
        args![
            new.id,
            self.context,
            new.session,
            clean(&new.tool),
            clean(&new.upstream),
            clean(&new.upstream_tool),
            new.created,
            new.granted.milliseconds(),
            new.poll_interval_ms,
            new.restart.code(),
            new.attempts_allowed,
            i64::try_from(new.run_limit.as_micros()).unwrap_or(i64::MAX),
            &new.capabilities,
            new.progress_token.as_ref(),
            &new.params,
            node,
            token,
            new.hard_end,
            new.keyed.as_ref().and_then(|keyed| keyed.key.as_deref().map(clean)),
            new.keyed.as_ref().map(|keyed| keyed.digest.clone()),
            new.keyed.as_ref().is_some_and(|keyed| keyed.parked),
            clean(&new.counted.tenant),
            clean(&new.counted.tool),
        ]
    }
}

impl Kind for Create {
    /// False if its key is another row's.
    type Answer = bool;

    fn key(&self) -> Uuid {
        self.new.id.as_uuid()
    }

    async fn commit<D: Dialect>(session: &mut Session<D>, items: &[Self]) -> std::result::Result<Vec<bool>, Fault> {
        let made =
            ids(&session.write_many(Self::statement::<D>(items), items.iter().map(Self::args).collect()).await?)?;
        Ok(items.iter().map(|item| made.contains(&item.key())).collect())
    }

    /// Ids are made before the batch and are nobody else's, so a row that is there is this one.
    async fn commit_again<D: Dialect>(
        session: &mut Session<D>,
        items: &[Self],
    ) -> std::result::Result<Vec<bool>, Fault> {
        let wanted = items.iter().map(|item| args![item.new.id]).collect();
        let mut landed = ids(&session.read_many(D::TASKS, wanted).await?)?;
        let missing = items.iter().filter(|item| !landed.contains(&item.key())).map(Self::args).collect();
        landed.extend(ids(&session.write_many(Self::statement::<D>(items), missing).await?)?);
        Ok(items.iter().map(|item| landed.contains(&item.key())).collect())
    }
}

/// The column `id` of each row.
pub(super) fn ids<R: Cells>(rows: &[R]) -> std::result::Result<HashSet<Uuid>, Fault> {
    rows.iter().map(|row| row.uuid("id")).collect()
}

/// The same of tasks, each with the legacy session that made it, if there is one.
pub(super) fn with_sessions<R: Cells>(rows: &[R]) -> std::result::Result<HashMap<Uuid, Option<SessionId>>, Fault> {
    rows.iter().map(|row| Ok((row.uuid("id")?, row.maybe_uuid("session")?.map(SessionId::from_uuid)))).collect()
}

/// The end of a task, by whoever may end it.
pub struct EndTask {
    id: TaskId,
    /// Its owner, if it is ended on the owner's behalf.
    context: Option<ContextId>,
    /// The lease, if it is ended by the work itself.
    lease: Option<LeaseToken>,
    /// By this the write finds itself again.
    writer: LeaseToken,
    end: End,
}

impl EndTask {
    pub fn by_owner(context: ContextId, id: TaskId, end: End) -> Self {
        Self { id, context: Some(context), lease: None, writer: LeaseToken::new(), end }
    }

    pub fn by_lease(finish: Finish) -> Self {
        let Finish { task, token, end } = finish;
        Self { id: task, context: None, lease: Some(token), writer: token, end }
    }

    pub fn by_system(id: TaskId, end: End) -> Self {
        Self { id, context: None, lease: None, writer: LeaseToken::new(), end }
    }

    pub fn weight(&self) -> usize {
        self.end.outcome.json().map_or(0, crate::domain::json::RawJson::len)
    }

    fn args(&self) -> Args {
        let end = &self.end;
        args![
            self.id,
            self.context,
            self.lease,
            Status::Ended(end.outcome.ending()).code(),
            end.message.as_deref().map(clean),
            end.now,
            end.expires,
            end.outcome.json(),
            self.writer,
        ]
    }
}

impl Kind for EndTask {
    type Answer = Ended;

    fn key(&self) -> Uuid {
        self.id.as_uuid()
    }

    /// Needs no other way after a doubtful try: a write that has landed finds itself by its writer's token.
    async fn commit<D: Dialect>(session: &mut Session<D>, items: &[Self]) -> std::result::Result<Vec<Ended>, Fault> {
        let rows = session.write_many(D::END, items.iter().map(Self::args).collect()).await?;
        let mut done = by_id(&rows)?;
        for item in items {
            // Not every database can answer what is not in the row that was written.
            if let Some(task) = done.get_mut(&item.id) {
                task.expires = item.end.expires;
            }
        }
        let rest = items.iter().filter(|item| !done.contains_key(&item.id));
        let rest: Vec<Args> = rest.map(|item| args![item.id, item.writer]).collect();
        if !rest.is_empty() {
            done.extend(by_id(&session.read_many(D::WRITTEN, rest).await?)?);
        }
        Ok(items.iter().map(|item| done.remove(&item.id).map_or(Ended::Refused, Ended::Done)).collect())
    }
}

pub(super) fn by_id<R: Cells>(rows: &[R]) -> std::result::Result<HashMap<TaskId, Task>, Fault> {
    rows.iter().map(|row| read_task(row).map(|task| (task.id, task))).collect()
}

/// A task as its owner finds it.
type Found = (Task, Option<Outcome>);

/// A look-up of one task by its owner.
pub struct Look {
    context: ContextId,
    id: TaskId,
    /// Whether the outcome is wanted, too.
    full: bool,
    reply: oneshot::Sender<std::result::Result<Option<Found>, Fault>>,
}

impl Gathered for Look {
    fn weight(&self) -> usize {
        0
    }
}

/// Answers a batch of look-ups.
pub async fn look_up<D: Dialect>(own: &Own<D>, batch: Vec<Look>) {
    let (mut full, slim): (Vec<_>, Vec<_>) = batch.into_iter().partition(|look| look.full);
    answer(own, D::FIND, slim).await;
    while !full.is_empty() {
        let rest = full.split_off(full.len().min(MOST_OUTCOMES));
        answer(own, D::FIND_OUTCOME, full).await;
        full = rest;
    }
}

async fn answer<D: Dialect>(own: &Own<D>, statement: Many, looks: Vec<Look>) {
    if looks.is_empty() {
        return;
    }
    let wanted: HashSet<(ContextId, TaskId)> = looks.iter().map(|look| (look.context, look.id)).collect();
    let rows = find(own, statement, &wanted).await;
    let found = rows.as_ref().map_err(Clone::clone).and_then(|rows| index(rows, &wanted));
    for look in looks {
        let result = match &found {
            Ok(rows) => match rows.get(&(look.context, look.id)) {
                Some(row) => read_found(*row, look.full).map(Some),
                None => Ok(None),
            },
            Err(fault) => Err(fault.clone()),
        };
        // A caller that went away needs no answer.
        let _ = look.reply.send(result);
    }
}

async fn find<D: Dialect>(
    own: &Own<D>,
    statement: Many,
    wanted: &HashSet<(ContextId, TaskId)>,
) -> std::result::Result<Vec<Row<D>>, Fault> {
    let patient = !own.is_down().await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let rows: Vec<Args> = wanted.iter().map(|&(context, id)| args![context, id]).collect();
        let result = async { own.session().await?.read_many(statement, rows).await }.await;
        match result {
            Err(Fault::Link(_)) if patient && Instant::now() < deadline => sleep(Duration::from_millis(50)).await,
            other => return other,
        }
    }
}

/// The rows by owner and id. The statement joins on both; should it ever answer a row that nobody asked for by its own
/// context, nobody gets anything.
fn index<'r, R: Cells>(
    rows: &'r [R],
    wanted: &HashSet<(ContextId, TaskId)>,
) -> std::result::Result<HashMap<(ContextId, TaskId), &'r R>, Fault> {
    rows.iter()
        .map(|row| {
            let key = (ContextId::from_uuid(row.uuid("context")?), TaskId::from_uuid(row.uuid("id")?));
            if wanted.contains(&key) { Ok((key, row)) } else { Err(foreign()) }
        })
        .collect()
}

fn read_found<R: Cells>(row: &R, full: bool) -> std::result::Result<Found, Fault> {
    let task = read_task(row)?;
    let outcome = if full { read_outcome(row, task.status)? } else { None };
    Ok((task, outcome))
}

#[cfg(test)]
mod tests {
    use crate::domain::outcome::Ending;
    use crate::domain::task::Status;
    use crate::domain::transition::{Event, sources};
    use crate::store::dialect::statements;
    use crate::store::postgres::PostgresDialect;
    use crate::store::sqlite::SqliteDialect;

    // req: LIFE-04
    #[test]
    fn the_guards_in_the_statements_are_the_transition_table() {
        let codes = |event| -> Vec<String> { sources(event).map(|status| status.code().to_string()).collect() };
        let one_of = |event| format!("status IN ({})", codes(event).join(", "));
        let live = one_of(Event::End(Ending::Cancelled));
        let working = format!("status = {}", Status::Working.code());
        // What sets a status, the event that allows it, and how its guard is written; other changes are for the
        // living, or of those for the ones that wait for nothing.
        let rules = [
            (format!("SET status = {}", Status::InputRequired.code()), one_of(Event::Ask)),
            (
                format!("SET status = {}", Status::Working.code()),
                format!("status = {}", codes(Event::Answered).join(", ")),
            ),
        ];
        let all = statements::<PostgresDialect>().into_iter().chain(statements::<SqliteDialect>());
        let updates: Vec<&str> =
            all.flat_map(|sql| sql.split("UPDATE ")).filter(|sql| sql.starts_with("tasks")).collect();
        assert!(updates.len() >= 18, "{}", updates.len());
        for update in updates {
            let (set, condition) = update.split_once("WHERE").expect("it has a condition");
            let rule = rules.iter().find(|(change, _)| set.contains(change));
            let guard = rule.map_or(&live, |(_, guard)| guard);
            assert!(rule.is_some() || !set.contains("status = 0") && !set.contains("status = 1"), "{update}");
            let narrower = rule.is_none() && condition.contains(&working);
            assert!(narrower || condition.contains(guard), "{guard} is missing: UPDATE {update}");
        }
    }
}
