//! What waits for a slot, and in which order it gets one: the rules are `domain/queue`'s, what they need is read here.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use uuid::Uuid;

use super::Result;
use super::dialect::{Dialect, Many};
use super::link::Reads;
use super::sql::{Args, Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, TaskId};
use crate::domain::queue::{Counted, Held, Lane, SlotLimit, SlotLimits, turns};

/// Lanes that are looked at in one round. Of more, a round looks at some of them, another round at others.
const MOST_LANES: u32 = 100;
/// Looks into lanes in one round: more only if lane after lane turns out to be shorter than its share.
const MOST_LOOKS: u32 = 5;

statements! {
    /// Whether anybody waits whose time has come.
    ANYBODY = "
        SELECT task AS id FROM task_live
        WHERE node IS NULL AND not_before <= $1
        ORDER BY not_before, task LIMIT 1";
    /// The first of each lane from a context (`$1`) on, at most `$2`, by a step over the index for each: a backlog of any length
    /// costs one. For SQLite's sake a text that is no column is compared, without which it takes the context alone from the index,
    /// and a time after all others, without which it goes through all rows that are equal to the last.
    LANES = "
        WITH RECURSIVE lane (task, number) AS (
            SELECT (
                SELECT task FROM task_live WHERE node IS NULL AND context >= $1
                ORDER BY context, tool, not_before, task LIMIT 1
            ), 1
            UNION ALL
            SELECT (
                SELECT x.task FROM task_live x
                WHERE x.node IS NULL AND (x.context, x.tool, x.not_before) > (p.context, p.tool || '', 9223372036854775807)
                ORDER BY x.context, x.tool, x.not_before, x.task LIMIT 1
            ), l.number + 1
            FROM lane l JOIN task_live p ON p.task = l.task
            WHERE l.number < $2
        )
        SELECT p.task, p.context, p.tenant, p.tool, p.not_before FROM lane l JOIN task_live p ON p.task = l.task";
    /// Tasks of a context that wait, counted up to `$2`. The order is that of the index, so that no other way is taken.
    WAITING_OF = "
        SELECT COUNT(*) AS waiting FROM (
            SELECT 1 FROM task_live WHERE context = $1 AND node IS NULL ORDER BY tool, not_before, task LIMIT $2
        ) w";
    WAITING_OF_TENANT = "
        SELECT COUNT(*) AS waiting FROM (
            SELECT 1 FROM task_live WHERE tenant = $1 AND tenant <> '' AND node IS NULL LIMIT $2
        ) w";
}

/// What waits, as far as it was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// In the order in which they will be claimed, if nothing changes.
    pub next: Vec<TaskId>,
    /// Those whose time has come and whose turn does not come before others have ended.
    pub held_back: Vec<(TaskId, SlotLimit)>,
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn is_anybody_waiting(&self, now: Timestamp) -> Result<bool> {
        Ok(!self.read("store.anybody_waits", ANYBODY, args![now]).await?.is_empty())
    }

    pub(super) async fn count_waiting(&self, context: ContextId, most: u64) -> Result<u64> {
        let rows = self.read("store.waiting_of", WAITING_OF, args![context, whole(most)]).await?;
        count(&rows)
    }

    pub(super) async fn count_waiting_of_tenant(&self, tenant: &str, most: u64) -> Result<u64> {
        let rows = self.read("store.waiting_of_tenant", WAITING_OF_TENANT, args![tenant, whole(most)]).await?;
        count(&rows)
    }

    pub(super) async fn look_at_queue(&self, limit: u32, limits: &SlotLimits, now: Timestamp) -> Result<Queue> {
        let limits = limits.clone();
        self.again("store.queue", move |link| {
            let limits = limits.clone();
            async move {
                let mut session = link.reader().await?;
                let round = Round::begin(&mut session, &limits, (TaskId::new().as_uuid(), now), None).await?;
                let next = round.look(&mut session, D::WAITING_IN, &limits, limit as usize).await?.in_turn;
                let held_back = round.held_back(&mut session, &limits, limit as usize).await?;
                Ok(Queue { next, held_back })
            }
        })
        .await
    }
}

fn count<R: Cells>(rows: &[R]) -> Result<u64> {
    let row = rows.first().ok_or_else(|| Fault::broken("a count has no row"))?;
    Ok(row.int("waiting")?.try_into().unwrap_or(0))
}

fn whole(count: u64) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// The lanes and who holds how many slots, at one moment. Where a limit may hold any of them back, a claim counts alone until
/// it is committed: no other can take what this one has counted on.
pub struct Round {
    lanes: Vec<Lane>,
    held: Held,
    now: Timestamp,
    /// Whether there are lanes that were not looked at.
    is_partial: bool,
}

/// What was found in the lanes.
pub struct Found {
    /// The tasks, in the order of their turns.
    pub in_turn: Vec<TaskId>,
    /// Whether there may be others whose turn it is.
    pub is_short: bool,
}

impl Round {
    /// `place` is any random number: where to begin if there are more lanes than can be looked at. `alone` is the statement by
    /// which a claim keeps others from counting.
    pub async fn begin<D: Dialect>(
        session: &mut impl Reads<D>,
        limits: &SlotLimits,
        (place, now): (Uuid, Timestamp),
        alone: Option<&'static str>,
    ) -> std::result::Result<Self, Fault> {
        let mut lanes = read_lanes(session, Uuid::nil()).await?;
        let is_partial = lanes.len() >= MOST_LANES as usize;
        if is_partial {
            let others = read_lanes(session, place).await?;
            let missing = (MOST_LANES as usize).saturating_sub(others.len());
            let known: BTreeSet<_> = others.iter().map(|lane| lane.first).collect();
            lanes.retain(|lane| !known.contains(&lane.first));
            lanes.truncate(missing);
            lanes.extend(others);
        }
        // The first of a lane is its oldest: where it may not run yet, as after a failed attempt, none may.
        lanes.retain(|lane| lane.since <= now);
        let alone = alone.filter(|_| lanes.iter().any(|lane| limits.apply_to(&lane.counted)));
        if let Some(sql) = alone {
            session.rows(sql, Vec::new()).await?;
        }
        let held = if limits.are_plain(&lanes) { Held::default() } else { read_held(session, &lanes, limits).await? };
        Ok(Self { lanes, held, now, is_partial })
    }

    /// Whether a limit holds any of the lanes back.
    pub fn is_held_back(&self, limits: &SlotLimits, taken: usize) -> bool {
        // Those that were taken count, too.
        let has_limits = self.lanes.iter().any(|lane| limits.apply_to(&lane.counted));
        has_limits && (taken > 0 || self.lanes.iter().any(|lane| limits.reached(lane, &self.held).is_some()))
    }

    /// Reads so many tasks, those whose turn it is, by a statement that reads lanes.
    pub async fn look<D: Dialect>(
        &self,
        session: &mut impl Reads<D>,
        statement: Many,
        limits: &SlotLimits,
        wanted: usize,
    ) -> std::result::Result<Found, Fault> {
        let mut lanes: Vec<Looked> = self.lanes.iter().map(|_| Looked::default()).collect();
        let mut turns = self.turns(&lanes, limits, wanted);
        for _ in 0..MOST_LOOKS {
            let mut asked: Vec<usize> = vec![0; lanes.len()];
            turns.iter().for_each(|&at| asked[at] += 1);
            let mut by_depth: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (at, &depth) in asked.iter().enumerate().filter(|&(at, &depth)| depth > lanes[at].tasks.len()) {
                by_depth.entry(depth).or_default().push(at);
            }
            if by_depth.is_empty() {
                return Ok(Found {
                    in_turn: in_turn(&turns, &lanes),
                    is_short: self.is_partial && turns.len() < wanted,
                });
            }
            for (depth, places) in by_depth {
                self.read(session, statement, (depth, &places), &mut lanes).await?;
            }
            turns = self.turns(&lanes, limits, wanted);
        }
        Ok(Found { in_turn: in_turn(&turns, &lanes), is_short: true })
    }

    fn turns(&self, lanes: &[Looked], limits: &SlotLimits, wanted: usize) -> Vec<usize> {
        let has = |at: usize| lanes[at].is_whole.then_some(lanes[at].tasks.len());
        turns(&self.lanes, self.held.clone(), limits, has, wanted)
    }

    /// Reads some of the lanes to the same depth.
    async fn read<D: Dialect>(
        &self,
        session: &mut impl Reads<D>,
        statement: Many,
        (depth, places): (usize, &[usize]),
        lanes: &mut [Looked],
    ) -> std::result::Result<(), Fault> {
        let limit = i64::try_from(depth).unwrap_or(i64::MAX);
        let of = |at: &usize| {
            let Lane { context, counted, .. } = &self.lanes[*at];
            args![*context, counted.tool.as_str(), self.now, limit]
        };
        let rows = session.rows_of_many(statement, places.iter().map(of).collect()).await?;
        let mut found: HashMap<(Uuid, String), Vec<(i64, Uuid)>> = HashMap::new();
        for row in &rows {
            let lane = (row.uuid("context")?, row.text("tool")?);
            found.entry(lane).or_default().push((row.int("not_before")?, row.uuid("task")?));
        }
        for &at in places {
            let Lane { context, counted, .. } = &self.lanes[at];
            let mut tasks = found.remove(&(context.as_uuid(), counted.tool.clone())).unwrap_or_default();
            tasks.sort_unstable();
            let tasks: Vec<TaskId> = tasks.into_iter().map(|(_, task)| TaskId::from_uuid(task)).collect();
            lanes[at] = Looked { is_whole: tasks.len() < depth, tasks };
        }
        Ok(())
    }

    /// The first ones of the lanes that limits hold back.
    async fn held_back<D: Dialect>(
        &self,
        session: &mut impl Reads<D>,
        limits: &SlotLimits,
        most: usize,
    ) -> std::result::Result<Vec<(TaskId, SlotLimit)>, Fault> {
        let reached = |at: usize| limits.reached(&self.lanes[at], &self.held);
        let places: Vec<usize> = (0..self.lanes.len()).filter(|&at| reached(at).is_some()).collect();
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let mut lanes: Vec<Looked> = self.lanes.iter().map(|_| Looked::default()).collect();
        self.read(session, D::WAITING_IN, (most.div_ceil(places.len()), &places), &mut lanes).await?;
        let of = |at: usize| {
            let limit = reached(at);
            lanes[at].tasks.iter().filter_map(move |&task| Some((task, limit?)))
        };
        Ok(places.into_iter().flat_map(of).take(most).collect())
    }
}

/// What was read of a lane.
#[derive(Default)]
struct Looked {
    tasks: Vec<TaskId>,
    /// Whether it has no more.
    is_whole: bool,
}

/// The tasks of the turns; a turn of which nothing was read is left out.
fn in_turn(turns: &[usize], lanes: &[Looked]) -> Vec<TaskId> {
    let mut tasks: Vec<_> = lanes.iter().map(|lane| lane.tasks.iter()).collect();
    turns.iter().filter_map(|&at| tasks[at].next().copied()).collect()
}

async fn read_lanes<D: Dialect>(session: &mut impl Reads<D>, from: Uuid) -> std::result::Result<Vec<Lane>, Fault> {
    let rows = session.rows(LANES, args![from, MOST_LANES]).await?;
    rows.iter()
        .map(|row| {
            Ok(Lane {
                context: ContextId::from_uuid(row.uuid("context")?),
                counted: Counted { tenant: row.text("tenant")?, tool: row.text("tool")? },
                since: row.time("not_before")?,
                first: TaskId::from_uuid(row.uuid("task")?),
            })
        })
        .collect()
}

async fn read_held<D: Dialect>(
    session: &mut impl Reads<D>,
    lanes: &[Lane],
    limits: &SlotLimits,
) -> std::result::Result<Held, Fault> {
    let contexts: BTreeSet<ContextId> = lanes.iter().map(|lane| lane.context).collect();
    let limited = |names: &BTreeMap<String, u64>, name: fn(&Counted) -> &String| -> BTreeSet<String> {
        lanes.iter().map(|lane| name(&lane.counted)).filter(|&name| names.contains_key(name)).cloned().collect()
    };
    let tenants = limited(&limits.tenants, |counted| &counted.tenant);
    let tools = limited(&limits.tools, |counted| &counted.tool);
    let mut held = Held::default();
    for row in session.rows_of_many(D::SLOTS_OF_CONTEXTS, contexts.into_iter().map(|id| args![id]).collect()).await? {
        held.contexts.insert(ContextId::from_uuid(row.uuid("context")?), held_of(&row)?);
    }
    let named = |names: BTreeSet<String>| -> Vec<Args> { names.into_iter().map(|name| args![name]).collect() };
    for row in session.rows_of_many(D::SLOTS_OF_TENANTS, named(tenants)).await? {
        held.tenants.insert(row.text("name")?, held_of(&row)?);
    }
    for row in session.rows_of_many(D::SLOTS_OF_TOOLS, named(tools)).await? {
        held.tools.insert(row.text("name")?, held_of(&row)?);
    }
    Ok(held)
}

fn held_of<R: Cells>(row: &R) -> std::result::Result<u64, Fault> {
    Ok(row.int("held")?.try_into().unwrap_or(0))
}
