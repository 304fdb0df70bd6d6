//! Tasks as operators see them, across contexts. Never reached by request-facing code.

use super::Result;
use super::dialect::Dialect;
use super::sql::{Cells, Fault, args, statements, task_columns};
use super::sql_store::SqlStore;
use super::tasks::{read_outcome, read_task, start};
use crate::domain::cursor::Position;
use crate::domain::ids::{NodeId, TaskId};
use crate::domain::outcome::Outcome;
use crate::domain::task::Task;

/// A task as operators see it, across contexts; or, `parked`, a stored call that is no task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDetails {
    pub task: Task,
    pub parked: bool,
    pub tenant: String,
    pub upstream: String,
    pub upstream_tool: String,
    /// The last attempt, 0 before the first.
    pub attempt: u32,
    pub node: Option<NodeId>,
    pub outcome: Option<Outcome>,
}

macro_rules! details_columns {
    () => {
        concat!(
            task_columns!(),
            ", t.parked, t.upstream, t.upstream_tool, c.tenant, l.node, COALESCE(l.attempt, o.attempt) AS attempt"
        )
    };
}

macro_rules! details_joins {
    () => {
        " t
          LEFT JOIN task_outcomes o ON o.task = t.id
          LEFT JOIN task_live l ON l.task = t.id
          LEFT JOIN auth_contexts c ON c.id = t.context"
    };
}

statements! {
    /// Without calls that are no tasks, as lists of callers. Has no index of its own, which every creation would pay for: the
    /// whole table is read, but only a page is joined.
    ALL = concat!(
        "SELECT ", details_columns!(), "
         FROM (SELECT * FROM tasks WHERE parked = 0 AND (created, id) < ($1, $2) ORDER BY created DESC, id DESC LIMIT $3)",
        details_joins!(),
        " ORDER BY t.created DESC, t.id DESC"
    );
    ONE = concat!("SELECT ", details_columns!(), ", o.outcome FROM tasks", details_joins!(), " WHERE t.id = $1");
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn every_task(&self, after: Option<Position>, limit: u32) -> Result<Vec<TaskDetails>> {
        let (created, id) = start(after);
        let rows = self.read("store.all_tasks", ALL, args![created, id, limit]).await?;
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn one_task(&self, id: TaskId) -> Result<Option<TaskDetails>> {
        let rows = self.read("store.details", ONE, args![id]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let details = read(row)?;
        let outcome = read_outcome(row, details.task.status)?;
        Ok(Some(TaskDetails { outcome, ..details }))
    }
}

fn read<R: Cells>(row: &R) -> std::result::Result<TaskDetails, Fault> {
    Ok(TaskDetails {
        task: read_task(row)?,
        parked: row.int("parked")? == 1,
        tenant: row.maybe_text("tenant")?.unwrap_or_default(),
        upstream: row.text("upstream")?,
        upstream_tool: row.text("upstream_tool")?,
        attempt: row.count("attempt")?,
        node: row.maybe_uuid("node")?.map(NodeId::from_uuid),
        outcome: None,
    })
}
