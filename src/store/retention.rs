//! What goes, and when: overdue tasks and expired rows.

use super::dialect::{Dialect, Many};
use super::sql::{Cells, Fault, args, statements, task_columns};
use super::sql_store::SqlStore;
use super::tasks::read_task;
use super::{Overdue, Result};
use crate::domain::clock::Timestamp;

statements! {
    OVERDUE = concat!(
        "SELECT ", task_columns!(), ", l.hard_end
         FROM task_live l JOIN tasks t ON t.id = l.task LEFT JOIN task_outcomes o ON o.task = t.id
         WHERE l.hard_end <= $1 ORDER BY l.hard_end, l.task LIMIT $2"
    );
    /// The first row of an index each, but for the few nodes.
    FIRSTS = "
        SELECT (SELECT MIN(hard_end) FROM task_live) AS hard_end,
            (SELECT MIN(expires) FROM task_outcomes WHERE expires IS NOT NULL) AS expires,
            (SELECT MIN(last_used) FROM sessions) AS last_used,
            (SELECT MIN(created) FROM signals) AS created,
            (SELECT MIN(expires) FROM parked_calls) AS round,
            (SELECT MIN(heartbeat) FROM nodes WHERE dead = 1) AS heartbeat";
}

/// What goes first of each kind that ends by its age; `None` where there is nothing of the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Firsts {
    /// The earliest hard end of a live task.
    pub hard_end: Option<Timestamp>,
    /// The earliest expiry of an ended task.
    pub expiry: Option<Timestamp>,
    /// Until when the caller of a parked call may come back that has the least time.
    pub round: Option<Timestamp>,
    /// When the session that is idle for the longest was last used.
    pub session: Option<Timestamp>,
    /// When the oldest signal was given.
    pub signal: Option<Timestamp>,
    /// The last heartbeat of the node that is dead for the longest.
    pub node: Option<Timestamp>,
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn overdue_tasks(&self, now: Timestamp, limit: u32) -> Result<Vec<Overdue>> {
        let rows = self.read("store.overdue", OVERDUE, args![now, limit]).await?;
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn first_to_go(&self) -> Result<Firsts> {
        let rows = self.read("store.firsts", FIRSTS, Vec::new()).await?;
        let row = rows.first().ok_or_else(|| Fault::broken("what goes first was not answered"))?;
        Ok(Firsts {
            hard_end: row.maybe_time("hard_end")?,
            expiry: row.maybe_time("expires")?,
            round: row.maybe_time("round")?,
            session: row.maybe_time("last_used")?,
            signal: row.maybe_time("created")?,
            node: row.maybe_time("heartbeat")?,
        })
    }

    /// Deletes rows due by `time`, at most `limit`; answers how many.
    pub(super) async fn reap_many(
        &self,
        name: &'static str,
        statement: Many,
        time: Timestamp,
        limit: u32,
    ) -> Result<u64> {
        Ok(self.write_many(name, statement, vec![args![time, limit]]).await?.len() as u64)
    }
}

fn read<R: Cells>(row: &R) -> std::result::Result<Overdue, Fault> {
    Ok(Overdue { task: read_task(row)?, hard_end: row.time("hard_end")? })
}
