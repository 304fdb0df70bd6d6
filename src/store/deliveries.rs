//! Which stream has put a question to its client, under which JSON-RPC id (INPUT-02, INPUT-14). A question is on one
//! stream at a time, and every id under which it was ever sent can answer it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use super::Result;
use super::batch::{Job, Kind};
use super::dialect::Dialect;
use super::inputs::{lock_live, read_question};
use super::link::{Link, Session};
use super::sql::{Args, Cells, Fault, args, statements};
use super::sql_store::{SqlStore, Write};
use super::tasks::{ids, with_sessions};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, DeliveryId, InputId, NodeId, SessionId, StreamId, TaskId};
use crate::domain::input::Question;
use crate::domain::json::RawJson;

/// The stream that has a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The JSON-RPC id under which it was sent last.
    pub delivery: DeliveryId,
    pub node: NodeId,
    /// The session of the stream.
    pub holder: SessionId,
}

/// How a question was sent last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    pub delivery: DeliveryId,
    /// The session of the stream.
    pub holder: SessionId,
    pub at: Timestamp,
}

/// A question on its way to a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub input: InputId,
    pub task: TaskId,
    /// The JSON-RPC id under which it will be sent. That of its last delivery, if that was on the same stream, goes on.
    pub delivery: DeliveryId,
    /// The session of the stream.
    pub session: SessionId,
    pub stream: StreamId,
    /// The number of its event on the stream.
    pub sequence: i64,
    pub node: NodeId,
    pub purpose: Purpose,
    pub now: Timestamp,
}

/// A process that goes on as another node.
#[derive(Debug, Clone, Copy)]
pub struct Renamed {
    pub old: NodeId,
    pub new: NodeId,
}

/// What is sent under a JSON-RPC id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    Question,
    /// `tasks/get` of the client's own task for the question.
    TaskGet,
    /// `tasks/result` of it.
    TaskResult,
}

impl Purpose {
    pub const ALL: [Self; 3] = [Self::Question, Self::TaskGet, Self::TaskResult];

    /// The number that stands for it in the database. Never renumbered.
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::Question => 0,
            Self::TaskGet => 1,
            Self::TaskResult => 2,
        }
    }

    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| purpose.code() == code)
    }
}

/// What was sent under one JSON-RPC id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    pub delivery: DeliveryId,
    pub input: InputId,
    pub task: TaskId,
    pub session: SessionId,
    pub stream: StreamId,
    pub sequence: i64,
    pub purpose: Purpose,
    pub question: Question,
    pub is_open: bool,
    /// Whether the question has not been sent under another id since, or its answer refused.
    pub is_last: bool,
    /// How many answers were refused.
    pub refused: u32,
    /// The client's own task for the question, as the client sent it.
    pub client_task: Option<RawJson>,
}

macro_rules! delivered_columns {
    () => {
        "d.id AS delivery, d.input, d.task, d.session, d.stream, d.sequence, d.purpose, i.kind, i.params, i.refused, \
         i.client_task, CAST(CASE WHEN i.state = 0 AND l.task IS NOT NULL THEN 1 ELSE 0 END AS BIGINT) AS is_open, \
         CAST(CASE WHEN i.delivery = d.id THEN 1 ELSE 0 END AS BIGINT) AS is_last"
    };
}

/// What a stream had last, and no other has had since; `whose` says of which nodes.
macro_rules! lost_by_stream {
    ($whose:literal) => {
        concat!(
            "SELECT d.id, d.task FROM input_deliveries d
             JOIN task_inputs i ON i.id = d.input AND i.delivery = d.id
             WHERE d.stream = $1 AND d.context = $4 AND i.state = 0 AND (",
            $whose,
            ")"
        )
    };
}

/// It moves to this node.
macro_rules! take_back {
    ($whose:literal) => {
        concat!(
            "UPDATE task_inputs SET node = $2
             WHERE state = 0 AND context = $4 AND (",
            $whose,
            ") AND delivery IN (SELECT d.id FROM input_deliveries d WHERE d.stream = $1 AND d.input = task_inputs.id)
                AND id IN (SELECT d.input FROM input_deliveries d WHERE d.stream = $1)
                AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = task_inputs.task)
             RETURNING delivery AS id"
        )
    };
}

statements! {
    DELIVERED = concat!(
        "SELECT ", delivered_columns!(), "
         FROM input_deliveries d
         JOIN task_inputs i ON i.id = d.input
         LEFT JOIN task_live l ON l.task = d.task
         WHERE d.context = $1 AND d.id = $2"
    );
    ASKED_BY = "SELECT input, task FROM input_deliveries WHERE context = $1 AND id = $2";
    /// Only the last delivery's: whoever answers an earlier one badly changes nothing. Without its delivery the question
    /// is not taken back by the stream that had it, but asked anew.
    REFUSE = "
        UPDATE task_inputs SET refused = refused + 1, delivery = NULL, node = NULL, holder = NULL, client_task = NULL
        WHERE id = (SELECT d.input FROM input_deliveries d WHERE d.context = $1 AND d.id = $2)
            AND context = $1 AND delivery = $2 AND state = 0";
    /// Of the last delivery alone: an earlier one was another task of a client's, or is old news of this one.
    SET_CLIENT_TASK = "
        UPDATE task_inputs SET client_task = $3
        WHERE id = (SELECT d.input FROM input_deliveries d WHERE d.context = $1 AND d.id = $2)
            AND context = $1 AND delivery = $2 AND state = 0
            AND EXISTS (SELECT 1 FROM task_live l WHERE l.task = task_inputs.task)";
    FORGET_CLIENT_TASK = "
        UPDATE task_inputs SET client_task = NULL, delivery = NULL, holder = NULL
        WHERE id = $1 AND delivery = $2 AND node IS NULL AND state = 0";
    /// Of a stream that was resumed: also from a node that has not noticed yet. What this node holds is left out, unless `$3`
    /// is 1: it may be on its way to a line that is gone.
    LOST_BY_STREAM = lost_by_stream!("node IS NULL OR node <> $2 OR $3 = 1");
    TAKE_BACK = take_back!("node IS NULL OR node <> $2 OR $3 = 1");
    /// Of a stream that goes on where it was: nothing from another node than the one that this was, `$3`. The stream may have
    /// been resumed there.
    KEPT_BY_STREAM = lost_by_stream!("node IS NULL OR node = $2 OR node = $3");
    KEEP = take_back!("node IS NULL OR node = $2 OR node = $3");
    OF_STREAM = concat!(
        "SELECT ", delivered_columns!(), "
         FROM input_deliveries d
         JOIN task_inputs i ON i.id = d.input AND i.delivery = d.id
         JOIN task_live l ON l.task = d.task
         WHERE d.stream = $1 AND d.context = $3 AND i.node = $2 AND i.state = 0
         ORDER BY d.sequence, d.id"
    );
    AT_NODE = "SELECT context, task, delivery FROM task_inputs WHERE node = $1 AND state = 0";
    /// Questions, and sessions' streams, of nodes that are dead or unknown.
    DEAD_HOLDERS = "
        SELECT i.task AS id FROM task_inputs i
        WHERE i.node IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = i.node AND n.dead = 0)
        UNION
        SELECT s.id FROM sessions s
        WHERE s.stream_node IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = s.stream_node AND n.dead = 0)";
    CLOSE_DEAD_STREAMS = "
        UPDATE sessions SET stream_node = NULL, stream = NULL
        WHERE stream_node IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = sessions.stream_node AND n.dead = 0)";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn find_delivered(&self, context: ContextId, id: DeliveryId) -> Result<Option<Delivered>> {
        let rows = self.read("store.delivered", DELIVERED, args![context, id]).await?;
        Ok(rows.first().map(read).transpose()?)
    }

    /// The question that was put to this caller under an id, and its task.
    pub(super) async fn asked_by(&self, context: ContextId, id: DeliveryId) -> Result<Option<(InputId, TaskId)>> {
        let rows = self.read("store.asked_by", ASKED_BY, args![context, id]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some((InputId::from_uuid(row.uuid("input")?), TaskId::from_uuid(row.uuid("task")?))))
    }

    pub(super) async fn refuse(&self, context: ContextId, id: DeliveryId) -> Result<()> {
        self.write("store.refuse_answer", REFUSE, args![context, id]).await.map(|_| ())
    }

    pub(super) async fn keep_client_task(&self, context: ContextId, id: DeliveryId, task: RawJson) -> Result<bool> {
        Ok(self.write("store.set_client_task", SET_CLIENT_TASK, args![context, id, &task]).await? > 0)
    }

    pub(super) async fn drop_client_task(&self, input: InputId, last: DeliveryId) -> Result<bool> {
        Ok(self.write("store.forget_client_task", FORGET_CLIENT_TASK, args![input, last]).await? > 0)
    }

    pub(super) async fn hold(&self, hold: Hold) -> Result<bool> {
        self.gather(|reply| Write::Hold(Box::new(Job { item: Take(hold), reply }))).await
    }

    /// Takes what a stream had last, from the node `kept_from` alone if that is given.
    pub(super) async fn take_back(
        &self,
        context: ContextId,
        stream: StreamId,
        node: NodeId,
        kept_from: Option<NodeId>,
    ) -> Result<Vec<Delivered>> {
        // After a try whose end was lost, what is this node's may be so by that try.
        let doubtful = AtomicBool::new(false);
        self.again("store.rehold_stream", move |link: Arc<Link<D>>| {
            let doubtful = doubtful.swap(true, Ordering::Relaxed);
            let [look, take] = kept_from.map_or([LOST_BY_STREAM, TAKE_BACK], |_| [KEPT_BY_STREAM, KEEP]);
            let wanted = move || match kept_from {
                None => args![stream, node, doubtful, context],
                Some(old) => args![stream, node, old, context],
            };
            async move {
                let mut session = link.writer().await?;
                let mut transaction = session.begin().await?;
                let lost = transaction.fetch(look, wanted()).await?;
                let tasks = lost.iter().map(|row| row.uuid("task")).collect::<std::result::Result<Vec<_>, _>>()?;
                let mut delivered = Vec::new();
                if !tasks.is_empty() {
                    lock_live(&mut transaction, tasks).await?;
                    let taken = ids(&transaction.fetch(take, wanted()).await?)?;
                    let rows = transaction.fetch(OF_STREAM, args![stream, node, context]).await?;
                    delivered = rows.iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
                    delivered.retain(|sent| taken.contains(&sent.delivery.as_uuid()));
                }
                transaction.commit().await?;
                Ok(delivered)
            }
        })
        .await
    }

    pub(super) async fn find_holds(&self, node: NodeId) -> Result<Vec<(ContextId, TaskId, DeliveryId)>> {
        let rows = self.read("store.holds_at", AT_NODE, args![node]).await?;
        let read = |row: &_| read_hold(row);
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    /// Answers of which tasks they are, and of which legacy sessions those.
    pub(super) async fn drop_holds(
        &self,
        node: NodeId,
        deliveries: &[DeliveryId],
    ) -> Result<Vec<(TaskId, Option<SessionId>)>> {
        if deliveries.is_empty() {
            return Ok(Vec::new());
        }
        let deliveries: Arc<[DeliveryId]> = deliveries.into();
        self.again("store.let_go", move |link: Arc<Link<D>>| {
            let deliveries = Arc::clone(&deliveries);
            async move {
                let mut session = link.writer().await?;
                let mut transaction = session.begin().await?;
                let wanted = deliveries.iter().map(|&id| args![id]).collect();
                let tasks = with_sessions(&transaction.many(D::TASKS_OF_DELIVERIES, wanted).await?)?;
                lock_live(&mut transaction, tasks.keys().copied()).await?;
                let holds = deliveries.iter().map(|&id| args![id, node]).collect();
                transaction.many(D::LET_GO, holds).await?;
                transaction.commit().await?;
                Ok(tasks.into_iter().map(|(task, session)| (TaskId::from_uuid(task), session)).collect())
            }
        })
        .await
    }

    pub(super) async fn drop_dead_holds(&self) -> Result<u64> {
        self.again("store.let_go_dead_nodes", move |link: Arc<Link<D>>| async move {
            // Looked for first, so that a round in which nobody died writes nothing.
            let held = ids(&link.reader().await?.fetch(DEAD_HOLDERS, Vec::new()).await?)?;
            if held.is_empty() {
                return Ok(0);
            }
            let mut session = link.writer().await?;
            session.execute(CLOSE_DEAD_STREAMS, Vec::new()).await?;
            let mut transaction = session.begin().await?;
            lock_live(&mut transaction, held.iter().copied()).await?;
            let tasks = held.into_iter().map(|id| args![id]).collect();
            let freed = transaction.many(D::LET_GO_DEAD, tasks).await?.len();
            transaction.commit().await?;
            Ok(freed as u64)
        })
        .await
    }
}

/// Reads the columns of [`delivered_columns`].
fn read<R: Cells>(row: &R) -> std::result::Result<Delivered, Fault> {
    let code = row.int("purpose")?;
    let purpose = Purpose::from_code(code).ok_or_else(|| Fault::broken(format!("there is no purpose {code}")))?;
    Ok(Delivered {
        delivery: DeliveryId::from_uuid(row.uuid("delivery")?),
        input: InputId::from_uuid(row.uuid("input")?),
        task: TaskId::from_uuid(row.uuid("task")?),
        session: SessionId::from_uuid(row.uuid("session")?),
        stream: StreamId::from_uuid(row.uuid("stream")?),
        sequence: row.int("sequence")?,
        purpose,
        question: read_question(row)?,
        is_open: row.int("is_open")? == 1,
        is_last: row.int("is_last")? == 1,
        refused: row.count("refused")?,
        client_task: row.maybe_json("client_task")?,
    })
}

/// Reads the columns `delivery`, `holder` and `updated`.
pub(super) fn read_last<R: Cells>(row: &R) -> std::result::Result<Option<Last>, Fault> {
    let (Some(delivery), Some(holder)) = (row.maybe_uuid("delivery")?, row.maybe_uuid("holder")?) else {
        return Ok(None);
    };
    let (delivery, holder) = (DeliveryId::from_uuid(delivery), SessionId::from_uuid(holder));
    Ok(row.maybe_time("updated")?.map(|at| Last { delivery, holder, at }))
}

fn read_hold<R: Cells>(row: &R) -> std::result::Result<(ContextId, TaskId, DeliveryId), Fault> {
    let (context, task) = (ContextId::from_uuid(row.uuid("context")?), TaskId::from_uuid(row.uuid("task")?));
    Ok((context, task, DeliveryId::from_uuid(row.uuid("delivery")?)))
}

pub(super) fn read_held<R: Cells>(row: &R) -> std::result::Result<Option<Held>, Fault> {
    let Some(node) = row.maybe_uuid("node")? else { return Ok(None) };
    Ok(Some(Held {
        delivery: DeliveryId::from_uuid(row.uuid("delivery")?),
        node: NodeId::from_uuid(node),
        holder: SessionId::from_uuid(row.uuid("holder")?),
    }))
}

/// A question that a stream wants.
pub struct Take(Hold);

impl Take {
    fn args(&self) -> Args {
        let hold = &self.0;
        args![
            hold.task,
            hold.delivery,
            hold.input,
            hold.session,
            hold.stream,
            hold.sequence,
            hold.node,
            hold.purpose.code(),
            hold.now,
        ]
    }
}

impl Kind for Take {
    type Answer = bool;

    fn key(&self) -> Uuid {
        self.0.task.as_uuid()
    }

    /// Needs no other way after a doubtful try: ids are made before, and an id that goes on has a number of this very try; so a
    /// question whose last delivery has these, and which this node holds, is this one's.
    async fn commit<D: Dialect>(session: &mut Session<D>, items: &[Self]) -> std::result::Result<Vec<bool>, Fault> {
        let mut transaction = session.begin().await?;
        lock_live(&mut transaction, items.iter().map(Kind::key)).await?;
        let mut held = ids(&transaction.many(D::HOLD, items.iter().map(Self::args).collect()).await?)?;
        let rest = items.iter().map(|item| &item.0).filter(|hold| !held.contains(&hold.delivery.as_uuid()));
        let rest = rest.map(|hold| args![hold.delivery, hold.node, hold.sequence]).collect();
        held.extend(ids(&transaction.many(D::LAST_DELIVERIES, rest).await?)?);
        transaction.commit().await?;
        Ok(items.iter().map(|item| held.contains(&item.0.delivery.as_uuid())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_stable_codes() {
        assert_eq!(Purpose::ALL.map(Purpose::code), [0, 1, 2]);
        assert!(Purpose::ALL.into_iter().all(|purpose| Purpose::from_code(purpose.code()) == Some(purpose)));
        assert_eq!(Purpose::from_code(3), None);
    }
}
