//! One gathered question for everything that a node waits for (KEEP-18): ended tasks, news of its sessions' tasks, questions
//! to deliver, answers to take, and signals.

use uuid::Uuid;

use super::Result;
use super::dialect::Dialect;
use super::inputs::{OpenInput, read_open};
use super::signals::{self, Signal};
use super::sql::{Cells, Fault, args};
use super::sql_store::SqlStore;
use super::tasks::read_task;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, DeliveryId, InputId, NodeId, SessionId, TaskId};
use crate::domain::task::Task;

/// The most signals of one answer, and about the bytes of their payloads: those given first.
const MOST_SIGNALS: u32 = 1_000;
const MOST_SIGNAL_BYTES: u32 = 8 << 20;

/// The most short tasks of one answer: of each session as many as of the others, those made first.
const MOST_OVER: u32 = 500;

/// What is asked for. What is empty costs nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// Tasks whose end is waited for.
    pub tasks: Vec<TaskId>,
    /// Sessions whose GET streams are here.
    pub sessions: Vec<SessionId>,
    /// The contexts of `sessions`, each once.
    pub contexts: Vec<ContextId>,
    /// Tasks with result streams here, whose open questions are wanted.
    pub asking: Vec<TaskId>,
    /// Tasks that are listened to here.
    pub listened: Vec<TaskId>,
    /// Deliveries that streams here hold.
    pub held: Vec<DeliveryId>,
    /// The node of these streams: what another one has by now is told; `None`: it is not.
    pub node: Option<NodeId>,
    /// Questions whose answers are awaited by attempts here.
    pub inputs: Vec<InputId>,
    /// Live tasks of `sessions`, `asking` and `listened` that changed at or after this are wanted.
    pub changed_since: Timestamp,
    /// Signals that were given at or after this are wanted; `None`: none are.
    pub signals_since: Option<Timestamp>,
    /// Signals that were read before.
    pub heard: Vec<Uuid>,
    /// Tasks of `sessions` and `contexts` that were made at or after this and have ended since are wanted; `None`: none are.
    pub over_since: Option<Timestamp>,
    /// Those of them that are known already.
    pub said: Vec<TaskId>,
    /// Of the live tasks that changed, how many: those that changed last.
    pub newest: u32,
    /// Whether a task waits to be run whose time has come by then is wanted; `None`: it is not.
    pub waiting_by: Option<Timestamp>,
}

impl Watch {
    /// The question that asks for nothing; parts of it are put in.
    #[must_use]
    pub const fn nothing(now: Timestamp) -> Self {
        Self {
            tasks: Vec::new(),
            sessions: Vec::new(),
            contexts: Vec::new(),
            asking: Vec::new(),
            listened: Vec::new(),
            held: Vec::new(),
            node: None,
            inputs: Vec::new(),
            changed_since: now,
            signals_since: None,
            heard: Vec::new(),
            over_since: None,
            said: Vec::new(),
            newest: u32::MAX,
            waiting_by: None,
        }
    }
}

/// A delivery that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    pub delivery: DeliveryId,
    pub how: Closing,
}

/// How a delivery came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// The question is not open any more.
    Withdrawn,
    /// Its own answer closed the question, or was refused; or it was sent under another id since.
    Answered,
    /// Another living node has it under this id: its stream goes on there.
    Moved,
}

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct News {
    /// Of `tasks`: not live any more.
    pub ended: Vec<TaskId>,
    /// Live tasks of `sessions`, `asking` and `listened`, each with its session, whose status, message, open questions or
    /// progress changed.
    pub changed: Vec<Task>,
    /// Open questions of `sessions` and `asking` that no stream holds.
    pub open: Vec<OpenInput>,
    /// Of `held`: their questions are not open any more, were put to a client under another id since, or are another node's.
    pub closed: Vec<Closed>,
    /// Of `inputs`: not open any more.
    pub settled: Vec<InputId>,
    /// Tasks that lived so shortly that no look may have found them alive, each with its context.
    pub over: Vec<(ContextId, TaskId)>,
    /// The first ones given, in that order.
    pub signals: Vec<Signal>,
    /// Whether a task waits to be run.
    pub is_waiting: bool,
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn news(&self, watch: Watch) -> Result<News> {
        let Watch { tasks, sessions, asking, listened, held, inputs, changed_since, signals_since, .. } = watch;
        let wanted = args![
            uuids(tasks, TaskId::as_uuid),
            uuids(sessions, SessionId::as_uuid),
            uuids(asking, TaskId::as_uuid),
            uuids(held, DeliveryId::as_uuid),
            uuids(inputs, InputId::as_uuid),
            changed_since,
            signals_since,
            MOST_SIGNALS,
            watch.over_since,
            MOST_OVER,
            watch.heard,
            watch.newest,
            uuids(watch.said, TaskId::as_uuid),
            MOST_SIGNAL_BYTES,
            uuids(listened, TaskId::as_uuid),
            uuids(watch.contexts, ContextId::as_uuid),
            watch.waiting_by,
            watch.node,
        ];
        let mut news = News::default();
        for row in self.read("store.news", D::NEWS, wanted).await? {
            add(&mut news, &row)?;
        }
        news.open.sort_by_key(|open| (open.created, open.id));
        news.signals.sort_by_key(|signal| (signal.created, signal.id));
        Ok(news)
    }
}

fn uuids<I>(ids: Vec<I>, uuid: impl Fn(I) -> Uuid) -> Vec<Uuid> {
    ids.into_iter().map(uuid).collect()
}

fn add<R: Cells>(news: &mut News, row: &R) -> std::result::Result<(), Fault> {
    let id = row.uuid("id")?;
    match row.int("what")? {
        0 => news.ended.push(TaskId::from_uuid(id)),
        1 => news.changed.push(read_task(row)?),
        2 => news.open.push(read_open(row)?),
        3 => {
            let how = match row.int("status")? {
                1 => Closing::Answered,
                2 => Closing::Moved,
                _ => Closing::Withdrawn,
            };
            news.closed.push(Closed { delivery: DeliveryId::from_uuid(id), how });
        }
        4 => news.settled.push(InputId::from_uuid(id)),
        6 => news.over.push((ContextId::from_uuid(row.uuid("context")?), TaskId::from_uuid(id))),
        5 => news.signals.extend(signals::read(row)?),
        7 => news.is_waiting = true,
        what => return Err(Fault::broken(format!("there is no news of sort {what}"))),
    }
    Ok(())
}

/// The statement of a database, whose parts have their columns in common: `ended` is the first part, which names them; the
/// others are what databases spell in their own ways: each says why. A list of ids is a table `w`, sizes are those of the payload of `f`, `s`.
macro_rules! news {
    (
        ended: $ended:literal,
        session_ids: $session_ids:literal,
        context_ids: $context_ids:literal,
        is_of_sessions: $is_of_sessions:literal,
        asking_ids: $asking_ids:literal,
        listened_ids: $listened_ids:literal,
        held_ids: $held_ids:literal,
        input_ids: $input_ids:literal,
        last_change: $last_change:literal,
        is_not: $is_not:literal,
        f_size: $f_size:literal,
        s_size: $s_size:literal,
        not_heard: $not_heard:literal,
        not_said: $not_said:literal,
        as_int: $as_int:literal,
    ) => {
        concat!(
            $ended, "
            UNION ALL
            SELECT 1, t.id, NULL, t.context, t.session,
                NULL, t.status, t.created, t.updated, t.granted_ttl, t.poll_interval, NULL,
                t.tool, t.message, t.progress_token, t.progress, NULL, NULL, NULL, NULL, NULL, NULL, t.progress_at, t.claimed
            FROM (
                SELECT t.*, c.claimed FROM (
                    SELECT l.task, l.claimed FROM ", $session_ids, " JOIN task_live l ON l.session = w.id
                    UNION
                    SELECT l.task, l.claimed FROM ", $asking_ids, " JOIN task_live l ON l.task = w.id
                    UNION
                    SELECT l.task, l.claimed FROM ", $listened_ids, " JOIN task_live l ON l.task = w.id
                ) c
                JOIN tasks t ON t.id = c.task
                WHERE ", $last_change, " >= $6", $as_int, "
                ORDER BY ", $last_change, " DESC, t.id DESC LIMIT $12", $as_int, "
            ) t
            UNION ALL
            SELECT 2, i.id, i.task, i.context, i.session,
                i.kind, NULL, i.created, d.created, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, i.params, i.client_task, NULL, NULL, i.delivery, i.holder, NULL, NULL
            FROM (
                SELECT i.id FROM ", $session_ids, " JOIN task_inputs i ON i.session = w.id AND i.state = 0
                UNION
                SELECT i.id FROM ", $asking_ids, " JOIN task_inputs i ON i.task = w.id AND i.state = 0
            ) o
            JOIN task_inputs i ON i.id = o.id
            JOIN task_live l ON l.task = i.task
            LEFT JOIN input_deliveries d ON d.id = i.delivery
            WHERE i.node IS NULL
            UNION ALL
            SELECT 3, w.id, NULL, NULL, NULL,
                NULL, CASE WHEN EXISTS (
                    SELECT 1 FROM input_deliveries d JOIN task_inputs i ON i.id = d.input
                    WHERE d.id = w.id AND (i.answered_as = d.id OR i.delivery ", $is_not, " d.id)
                ) THEN 1 WHEN EXISTS (
                    SELECT 1 FROM input_deliveries d
                    JOIN task_inputs i ON i.id = d.input AND i.state = 0
                    JOIN task_live l ON l.task = i.task
                    WHERE d.id = w.id
                ) THEN 2 ELSE 0 END, NULL, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
            FROM ", $held_ids, "
            WHERE NOT EXISTS (
                SELECT 1 FROM input_deliveries d
                JOIN task_inputs i ON i.id = d.input AND i.state = 0
                JOIN task_live l ON l.task = i.task
                WHERE d.id = w.id AND i.delivery = d.id AND NOT EXISTS (
                    SELECT 1 FROM nodes n WHERE n.id = i.node AND n.id <> $18 AND n.dead = 0))
            UNION ALL
            SELECT 4, w.id, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
            FROM ", $input_ids, "
            WHERE NOT EXISTS (
                SELECT 1 FROM task_inputs i JOIN task_live l ON l.task = i.task WHERE i.id = w.id AND i.state = 0)
            UNION ALL
            SELECT 5, s.id, NULL, s.context, s.session,
                s.kind, NULL, s.created, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL, s.subject, s.payload, NULL, NULL, NULL, NULL
            FROM (
                SELECT f.*, SUM(", $f_size, ") OVER (ORDER BY f.created, f.id) AS total
                FROM (
                    SELECT * FROM signals g
                    WHERE g.created >= $7", $as_int, " AND ", $not_heard, "
                    ORDER BY g.created, g.id LIMIT $8", $as_int, "
                ) f
            ) s
            WHERE COALESCE(s.total, 0) - COALESCE(", $s_size, ", 0) <= $14", $as_int, "
            UNION ALL
            SELECT 6, c.id, NULL, c.context, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
            FROM (
                SELECT r.id, r.context FROM (
                    SELECT t.id, t.context, ROW_NUMBER() OVER (PARTITION BY t.session ORDER BY t.created, t.id) AS place
                    FROM ", $context_ids, "
                    JOIN tasks t ON t.context = w.id AND t.created >= $9", $as_int, "
                    WHERE ", $is_of_sessions, "
                        AND NOT EXISTS (SELECT 1 FROM task_live l WHERE l.task = t.id)
                        AND ", $not_said, "
                ) r
                ORDER BY r.place LIMIT $10", $as_int, "
            ) c
            UNION ALL
            SELECT 7, q.task, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
            FROM (
                SELECT l.task FROM task_live l
                WHERE l.node IS NULL AND l.not_before <= $17", $as_int, "
                ORDER BY l.not_before, l.task LIMIT 1
            ) q"
        )
    };
}
pub(super) use news;
