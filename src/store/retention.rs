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
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn overdue_tasks(&self, now: Timestamp, limit: u32) -> Result<Vec<Overdue>> {
        let rows = self.read("store.overdue", OVERDUE, args![now, limit]).await?;
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
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
