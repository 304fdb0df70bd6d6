//! Claims: who runs a task, and what an attempt may say while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uuid::Uuid;

use super::batch::{Job, Kind};
use super::dialect::{Dialect, Row};
use super::inputs::lock_live;
use super::link::Session;
use super::queue::Round;
use super::sql::{Args, Cells, Fault, args, claim_columns, statements};
use super::sql_store::{SqlStore, Write};
use super::tasks::{EndTask, by_id, clean, with_sessions};
use super::{End, Finish, Result, upstream_tasks};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, LeaseToken, NodeId, SessionId, TaskId};
use crate::domain::json::RawJson;
use crate::domain::lease::{Lease, RestartPolicy};
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::queue::SlotLimits;
use crate::domain::retention::Ttl;
use crate::domain::task::Task;
use crate::domain::work::{Claim, Work};

/// A node's wish for work.
#[derive(Debug, Clone)]
pub struct Wish {
    pub node: NodeId,
    /// One for each task that it has a slot for.
    pub tokens: Vec<LeaseToken>,
    pub now: Timestamp,
}

/// What a node got.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    pub claims: Vec<Claim>,
    /// Whether limits hold tasks back: others may have their turn when any task ends.
    pub is_held_back: bool,
    /// Whether there may be more that were not looked at.
    pub is_short: bool,
}

statements! {
    HELD = "SELECT task, node, token, attempt, claimed FROM task_live WHERE node = $1 ORDER BY task";
    ORPHANS = concat!(
        "SELECT ", claim_columns!(), "
         FROM task_live l
         LEFT JOIN nodes n ON n.id = l.node
         LEFT JOIN tasks t ON t.id = l.task
         LEFT JOIN task_requests r ON r.task = l.task
         LEFT JOIN upstream_tasks u ON u.task = l.task
         WHERE l.node IS NOT NULL AND (n.id IS NULL OR n.dead = 1) AND l.task > $1
         ORDER BY l.task LIMIT $2"
    );
    /// What is left to say how long a broken row's end is kept.
    GRANT = "SELECT created, granted_ttl FROM tasks WHERE id = $1";
    /// A live row whose task is gone altogether.
    DROP_LIVE = "
        DELETE FROM task_live
        WHERE task = $1 AND token = $2 AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = task_live.task)";
}

/// How long the end of a broken row is kept at least.
const BROKEN_KEPT: Duration = Duration::from_secs(600);

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn claim_tasks(&self, wish: Wish, limits: &SlotLimits) -> Result<Claimed> {
        if wish.tokens.is_empty() {
            return Ok(Claimed::default());
        }
        let now = wish.now;
        let wish = Arc::new((wish, limits.clone()));
        let is_doubtful = Arc::new(AtomicBool::new(false));
        let taken = self
            .again("store.claim", move |link| {
                let (wish, is_doubtful) = (Arc::clone(&wish), Arc::clone(&is_doubtful));
                async move {
                    let (wish, limits) = &*wish;
                    let mut session = link.claimer().await?;
                    if !is_doubtful.load(Ordering::Relaxed) {
                        return take(&mut session, wish, limits, &is_doubtful).await.map(Some);
                    }
                    let rows = taken_by(&mut session, wish).await?;
                    // How much is left was lost with the answer.
                    let taken = Taken { rows, is_held_back: limits.hold_anything_back(), is_short: true };
                    Ok(Some(taken).filter(|taken| !taken.rows.is_empty()))
                }
            })
            .await?;
        // What is not there may still come. Whatever else were taken with these tokens could not be told from it.
        let taken = taken.ok_or_else(|| Fault::link("whether the claim was committed is not known yet"))?;
        let mut claims = self.readable(&taken.rows, now).await;
        claims.sort_by_key(|claim| (claim.work.created, claim.lease.task));
        Ok(Claimed { claims, is_held_back: taken.is_held_back, is_short: taken.is_short })
    }

    pub(super) async fn note_task(&self, note: super::Note) -> Result<Option<Task>> {
        self.gather(|reply| Write::Note(Job { item: Note(note), reply })).await
    }

    pub(super) async fn release_task(&self, release: super::Release) -> Result<Option<Released>> {
        self.gather(|reply| Write::Release(Job { item: Release(release), reply })).await
    }

    pub(super) async fn note_waiting_tasks(&self, mut messages: Vec<(TaskId, String)>, now: Timestamp) -> Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        messages.sort_by_key(|(id, _)| *id);
        messages.dedup_by_key(|(id, _)| *id);
        let rows: Vec<Args> = messages.into_iter().map(|(id, message)| args![id, clean(&message), now]).collect();
        self.write_many("store.note_waiting", D::NOTE_WAITING, rows).await.map(|_| ())
    }

    pub(super) async fn held_by(&self, node: NodeId) -> Result<Vec<Lease>> {
        let rows = self.read("store.held", HELD, args![node]).await?;
        Ok(rows.iter().map(read_lease).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn orphaned(&self, after: Option<TaskId>, limit: u32) -> Result<Vec<Claim>> {
        let mut after = after.map_or(Uuid::nil(), TaskId::as_uuid);
        loop {
            let rows = self.read("store.orphans", ORPHANS, args![after, limit]).await?;
            let Some(last) = rows.last() else { return Ok(Vec::new()) };
            after = last.uuid("task")?;
            let now = self.database_now().await?;
            let claims = self.readable(&rows, now).await;
            // Broken rows hide none of those behind them.
            if !claims.is_empty() {
                return Ok(claims);
            }
        }
    }

    pub(super) async fn one_claim(&self, task: TaskId, token: LeaseToken) -> Result<Option<Claim>> {
        let rows = self.read_many("store.claim_of", D::CLAIMS, vec![args![task, token]]).await?;
        Ok(rows.first().map(read_claim).transpose()?)
    }

    async fn database_now(&self) -> Result<Timestamp> {
        let rows = self.read("store.clock", D::CLOCK, Vec::new()).await?;
        let row = rows.first().ok_or_else(|| Fault::broken("the database's clock answers nothing"))?;
        Ok(row.time("now")?)
    }

    /// The claims that can be read. The others are ended here, so that they stop nobody.
    async fn readable<R: Cells + Sync>(&self, rows: &[R], now: Timestamp) -> Vec<Claim> {
        let mut claims = Vec::with_capacity(rows.len());
        for row in rows {
            match read_claim(row) {
                Ok(claim) => claims.push(claim),
                Err(fault) => {
                    let Ok(lease) = read_lease(row) else {
                        tracing::error!(store.fault = ?fault, "a live row cannot be read, not even its lease");
                        continue;
                    };
                    tracing::error!(task.id = %lease.task, store.fault = ?fault, "a task's row is broken: ending it");
                    if let Err(error) = self.end_broken(lease, now).await {
                        tracing::error!(task.id = %lease.task, %error, "the broken task could not be ended");
                    }
                }
            }
        }
        claims
    }

    async fn end_broken(&self, lease: Lease, now: Timestamp) -> Result<()> {
        let grant = self.read("store.grant", GRANT, args![lease.task]).await?;
        let Some(grant) = grant.first() else {
            return self.write("store.drop_live", DROP_LIVE, args![lease.task, lease.token]).await.map(|_| ());
        };
        let kept = now + BROKEN_KEPT;
        let expires = match (grant.int("created"), grant.maybe_int("granted_ttl")) {
            (Ok(created), Ok(Some(ttl))) => {
                let ttl = Duration::from_millis(ttl.try_into().unwrap_or(0));
                Some(kept.max(Timestamp::from_micros(created) + ttl))
            }
            (Ok(_), Ok(None)) => None,
            _ => Some(kept),
        };
        let outcome = Outcome::failure(&Failure::Internal { detail: "the stored call cannot be read".to_owned() });
        let end = End { message: outcome.diagnosis(512), outcome, now, expires };
        self.end_task(EndTask::by_lease(Finish { task: lease.task, token: lease.token, end })).await.map(|_| ())
    }
}

struct Taken<D: Dialect> {
    rows: Vec<Row<D>>,
    is_held_back: bool,
    is_short: bool,
}

/// One transaction: the small table of live rows says which, then each is taken with a token of its own. Should the
/// link break at its very end, what it took may stay with tokens of which the node knows only that they were sent, and
/// `is_doubtful` says so: it looks for those among the leases that it holds, and gives them back.
async fn take<D: Dialect>(
    session: &mut Session<D>,
    wish: &Wish,
    limits: &SlotLimits,
    is_doubtful: &AtomicBool,
) -> std::result::Result<Taken<D>, Fault> {
    let &Wish { node, ref tokens, now } = wish;
    let place = tokens.first().map_or(Uuid::nil(), |token| token.as_uuid());
    let mut transaction = session.begin().await?;
    let round = Round::begin(&mut transaction, limits, (place, now), Some(D::COUNT_ALONE)).await?;
    let picked = round.look(&mut transaction, D::PICK_WAITING, limits, tokens.len()).await?;
    let (is_held_back, is_short) = (round.is_held_back(limits, picked.in_turn.len()), picked.is_short);
    let mut picked = picked.in_turn;
    if picked.is_empty() {
        transaction.commit().await?;
        return Ok(Taken { rows: Vec::new(), is_held_back, is_short });
    }
    picked.sort_unstable();
    let pairs: Vec<(TaskId, LeaseToken)> = picked.into_iter().zip(tokens.iter().copied()).collect();
    let wanted = pairs.iter().map(|&(task, token)| args![task, node, token, now]).collect();
    let mut rows = transaction.many(D::TAKE, wanted).await?;
    if !D::TAKE_ANSWERS_CLAIMS {
        rows = transaction.many(D::CLAIMS, pairs.iter().map(|&(task, token)| args![task, token]).collect()).await?;
    }
    let committed = transaction.commit().await;
    is_doubtful.store(matches!(committed, Err(Fault::Link(_))), Ordering::Relaxed);
    committed?;
    Ok(Taken { rows, is_held_back, is_short })
}

fn read_lease<R: Cells>(row: &R) -> std::result::Result<Lease, Fault> {
    Ok(Lease {
        task: TaskId::from_uuid(row.uuid("task")?),
        node: NodeId::from_uuid(row.uuid("node")?),
        token: LeaseToken::from_uuid(row.uuid("token")?),
        // A lease is readable whatever stands in its row, so that a broken one can be ended.
        attempt: u32::try_from(row.int("attempt")?).unwrap_or(u32::MAX),
        claimed: row.time("claimed")?,
    })
}

/// What an earlier try with these tokens claimed, if its commit landed and only the answer was lost. Without this look,
/// calls that nobody has sent would be taken for lost ones, and others be claimed in their stead.
async fn taken_by<D: Dialect>(session: &mut Session<D>, wish: &Wish) -> std::result::Result<Vec<Row<D>>, Fault> {
    let held = session.fetch(HELD, args![wish.node]).await?;
    let held = held.iter().map(read_lease).collect::<std::result::Result<Vec<_>, _>>()?;
    let ours = held.iter().filter(|lease| wish.tokens.contains(&lease.token));
    session.read_many(D::CLAIMS, ours.map(|lease| args![lease.task, lease.token]).collect()).await
}

/// Reads the columns of [`claim_columns`].
fn read_claim<R: Cells>(row: &R) -> std::result::Result<Claim, Fault> {
    let restart = row.int("restart")?;
    let limit = row.int("run_limit")?;
    Ok(Claim {
        lease: read_lease(row)?,
        work: Work {
            context: ContextId::from_uuid(row.uuid("context")?),
            tool: row.text("tool")?,
            upstream: row.text("upstream")?,
            upstream_tool: row.text("upstream_tool")?,
            params: whole(row.text("params")?)?,
            created: row.time("created")?,
            granted: Ttl::from_milliseconds(row.maybe_int("granted_ttl")?),
            hard_end: row.time("hard_end")?,
            restart: RestartPolicy::from_code(restart)
                .ok_or_else(|| Fault::broken(format!("there is no restart policy {restart}")))?,
            attempts_allowed: row.count("attempts_allowed")?,
            run_limit: Duration::from_micros(
                limit.try_into().map_err(|_| Fault::broken(format!("a run limit of {limit} us")))?,
            ),
            session: row.maybe_uuid("session")?.map(SessionId::from_uuid),
            capabilities: row.json("capabilities")?,
        },
        handed_over: upstream_tasks::read(row)?,
    })
}

/// A call that is about to be sent must be JSON through and through.
fn whole(params: String) -> std::result::Result<RawJson, Fault> {
    let valid = !params.contains(['\n', '\r']) && serde_json::from_str::<serde::de::IgnoredAny>(&params).is_ok();
    if valid { Ok(RawJson::trusted(params)) } else { Err(Fault::broken("the params are no JSON value")) }
}

/// See [`super::Note`].
pub struct Note(pub super::Note);

impl Note {
    pub fn weight(&self) -> usize {
        self.0.progress.as_ref().map_or(0, RawJson::len)
    }
}

impl Kind for Note {
    type Answer = Option<Task>;

    fn key(&self) -> Uuid {
        self.0.task.as_uuid()
    }

    async fn commit<D: Dialect>(
        session: &mut Session<D>,
        items: &[Self],
    ) -> std::result::Result<Vec<Option<Task>>, Fault> {
        let rows = items.iter().map(|Self(note)| {
            args![note.task, note.token, note.message.as_deref().map(clean), note.progress.as_ref(), note.now]
        });
        let mut noted = by_id(&session.write_many(D::NOTE, rows.collect()).await?)?;
        Ok(items.iter().map(|item| noted.remove(&item.0.task)).collect())
    }
}

/// See [`super::Release`].
pub struct Release(pub super::Release);

/// A task that waits again.
#[derive(Debug, Clone, Copy)]
pub struct Released {
    /// The legacy session that made it.
    pub session: Option<SessionId>,
}

impl Kind for Release {
    type Answer = Option<Released>;

    fn key(&self) -> Uuid {
        self.0.task.as_uuid()
    }

    /// A try whose end was lost and which had landed answers nothing when repeated: the lease is not held any more, which
    /// is what the caller wanted.
    async fn commit<D: Dialect>(
        session: &mut Session<D>,
        items: &[Self],
    ) -> std::result::Result<Vec<Option<Released>>, Fault> {
        let rows = items.iter().map(|Self(release)| {
            args![
                release.task,
                release.token,
                release.not_before,
                !release.counted,
                release.keep_inputs,
                clean(&release.message),
                release.now,
            ]
        });
        let rows = rows.collect();
        let mut transaction = session.begin().await?;
        // In a statement of its own, so that questions which were asked meanwhile are seen and withdrawn, too.
        lock_live(&mut transaction, items.iter().map(Kind::key)).await?;
        let held = with_sessions(&transaction.many(D::RELEASE, rows).await?)?;
        transaction.commit().await?;
        Ok(items.iter().map(|item| held.get(&item.key()).map(|&session| Released { session })).collect())
    }
}
