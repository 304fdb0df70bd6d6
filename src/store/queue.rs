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

/// Lanes that are read at once. Of more, a round looks at as many that may have a slot, another round at others.
const MOST_LANES: u32 = 100;
/// How often a round reads lanes while too few of them may have a slot.
const MOST_WINDOWS: usize = 50;
/// Looks into lanes in one round: more only if lane after lane turns out to be shorter than its share.
const MOST_LOOKS: u32 = 5;

statements! {
    /// Whether anybody waits whose time has come.
    ANYBODY = "
        SELECT task AS id FROM task_live
        WHERE node IS NULL AND not_before <= $1
        ORDER BY not_before, task LIMIT 1";
    /// The first of each lane behind a place (context, tool and time), at most `$4`, by a step over the index for each: a backlog
    /// of any length costs one. For SQLite's sake a text that is no column is compared, without which it takes the context alone
    /// from the index, and a time after all others, without which it goes through all rows that are equal to the last.
    LANES = "
        WITH RECURSIVE lane (task, number) AS (
            SELECT (
                SELECT task FROM task_live WHERE node IS NULL AND (context, tool, not_before) > ($1, $2, $3)
                ORDER BY context, tool, not_before, task LIMIT 1
            ), 1
            UNION ALL
            SELECT (
                SELECT x.task FROM task_live x
                WHERE x.node IS NULL AND (x.context, x.tool, x.not_before) > (p.context, p.tool || '', 9223372036854775807)
                ORDER BY x.context, x.tool, x.not_before, x.task LIMIT 1
            ), l.number + 1
            FROM lane l JOIN task_live p ON p.task = l.task
            WHERE l.number < $4
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
    /// Whether there are more callers than were looked at: then the order is not that of all.
    pub is_partial: bool,
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
                Ok(Queue { next, held_back, is_partial: round.is_partial })
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
    /// How many of them no limit holds back.
    open: usize,
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
        let mut round = Self { lanes: Vec::new(), open: 0, held: Held::default(), now, is_partial: false };
        let mut alone = alone;
        let all = read_lanes(session, &from(Uuid::nil())).await?;
        if all.len() < MOST_LANES as usize {
            round.add(session, limits, all, &mut alone).await?;
            return Ok(round);
        }
        // Those from the place on, and then those before it.
        round.is_partial = true;
        let (mut after, mut is_before) = (from(place), false);
        for _ in 0..MOST_WINDOWS {
            let mut lanes = read_lanes(session, &after).await?;
            let is_last = lanes.len() < MOST_LANES as usize;
            after = lanes.last().map_or(after, behind);
            let is_round = is_before && (is_last || lanes.last().is_some_and(|lane| lane.context.as_uuid() >= place));
            if is_before {
                lanes.retain(|lane| lane.context.as_uuid() < place);
            } else if is_last {
                (after, is_before) = (from(Uuid::nil()), true);
            }
            round.add(session, limits, lanes, &mut alone).await?;
            round.is_partial = !is_round;
            if is_round || round.open >= MOST_LANES as usize {
                break;
            }
        }
        Ok(round)
    }

    /// Adds lanes that are due; of those that limits hold back only some, which say so.
    async fn add<D: Dialect>(
        &mut self,
        session: &mut impl Reads<D>,
        limits: &SlotLimits,
        mut lanes: Vec<Lane>,
        alone: &mut Option<&'static str>,
    ) -> std::result::Result<(), Fault> {
        // The first of a lane is its oldest: where it may not run yet, as after a failed attempt, none may.
        lanes.retain(|lane| lane.since <= self.now);
        // What is full by what is known already is not counted again.
        let unknown: Vec<_> = lanes.iter().filter(|lane| limits.reached(lane, &self.held).is_none()).cloned().collect();
        let needs_counts = self.is_partial || !limits.are_plain(&unknown);
        if needs_counts && !unknown.is_empty() {
            if unknown.iter().any(|lane| limits.apply_to(&lane.counted))
                && let Some(sql) = alone.take()
            {
                session.rows(sql, Vec::new()).await?;
            }
            read_held(session, &unknown, limits, &mut self.held).await?;
        }
        for lane in lanes {
            let is_open = limits.reached(&lane, &self.held).is_none();
            self.open += usize::from(is_open);
            if is_open || self.lanes.len() - self.open < MOST_LANES as usize {
                self.lanes.push(lane);
            }
        }
        Ok(())
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
            let Lane { context, counted, since, .. } = &self.lanes[*at];
            args![*context, counted.tool.as_str(), self.now, limit, *since]
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

/// A place between lanes: those behind it are greater.
type Place = (Uuid, String, i64);

/// The place before all lanes of a context.
fn from(context: Uuid) -> Place {
    (context, String::new(), i64::MIN)
}

/// The place behind all of a lane.
fn behind(lane: &Lane) -> Place {
    (lane.context.as_uuid(), lane.counted.tool.clone(), i64::MAX)
}

/// In their order, which is that of bytes here and in the index.
async fn read_lanes<D: Dialect>(
    session: &mut impl Reads<D>,
    (context, tool, time): &Place,
) -> std::result::Result<Vec<Lane>, Fault> {
    let rows = session.rows(LANES, args![*context, tool.as_str(), *time, MOST_LANES]).await?;
    let lanes = rows
        .iter()
        .map(|row| {
            Ok(Lane {
                context: ContextId::from_uuid(row.uuid("context")?),
                counted: Counted { tenant: row.text("tenant")?, tool: row.text("tool")? },
                since: row.time("not_before")?,
                first: TaskId::from_uuid(row.uuid("task")?),
            })
        })
        .collect::<std::result::Result<Vec<_>, Fault>>();
    let mut lanes = lanes?;
    lanes.sort_by(|a, b| (a.context, &a.counted.tool).cmp(&(b.context, &b.counted.tool)));
    Ok(lanes)
}

async fn read_held<D: Dialect>(
    session: &mut impl Reads<D>,
    lanes: &[Lane],
    limits: &SlotLimits,
    held: &mut Held,
) -> std::result::Result<(), Fault> {
    let contexts: BTreeSet<ContextId> = lanes.iter().map(|lane| lane.context).collect();
    let limited = |names: &BTreeMap<String, u64>, name: fn(&Counted) -> &String| -> BTreeSet<String> {
        lanes.iter().map(|lane| name(&lane.counted)).filter(|&name| names.contains_key(name)).cloned().collect()
    };
    let tenants = limited(&limits.tenants, |counted| &counted.tenant);
    let tools = limited(&limits.tools, |counted| &counted.tool);
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
    Ok(())
}

fn held_of<R: Cells>(row: &R) -> std::result::Result<u64, Fault> {
    Ok(row.int("held")?.try_into().unwrap_or(0))
}
