//! Stored calls whose callers are asked by rounds: which state may be given back, once and until when (MOD-12).

use std::time::Duration;

use super::Result;
use super::dialect::Dialect;
use super::inputs::{Waiting, read_question};
use super::sql::{Cells, args, statements, task_columns};
use super::sql_store::SqlStore;
use super::tasks::{read_outcome, read_task};
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, InputId, LeaseToken, TaskId};
use crate::domain::outcome::Outcome;
use crate::domain::round::RoundState;
use crate::domain::task::Task;

/// How long whoever gives a call up may take to end it.
const GIVEN_UP_AGAIN: Duration = Duration::from_secs(60);

/// A stored call at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// What is stored of it.
    pub task: Task,
    /// Whether it is no task.
    pub parked: bool,
    /// `Some` exactly if it has ended.
    pub outcome: Option<Outcome>,
    /// What it waits for, the oldest first.
    pub waiting: Vec<Waiting>,
    /// The round that its caller may come back from, and until when.
    pub round: Option<(u32, Timestamp)>,
    /// The key of its caller's by which it is found again, if it has one.
    pub key: Option<String>,
}

/// What comes of asking for a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// Its number, from 1.
    Round(u32),
    /// It would be the first one of its call, and as many running calls of the context as may have one do.
    Full,
    /// The call has none any more: it is a task, or was given up; or there is none.
    Closed,
}

/// A state that is given back.
#[derive(Debug, Clone)]
pub struct Spend {
    pub state: RoundState,
    pub now: Timestamp,
    /// How long its retry may take to say that it is still there.
    pub until: Timestamp,
}

statements! {
    /// A call with its open questions, one a row; one row if it has none. A name stands for the first question that had it.
    PARKED = concat!(
        "SELECT ", task_columns!(), ", o.outcome, t.parked, t.idempotency_key, p.round, p.open AS is_open,
            p.expires AS round_expires, i.id AS input, i.kind, i.params,
            CASE WHEN EXISTS (
                SELECT 1 FROM task_inputs e WHERE e.task = i.task AND e.name = i.name
                    AND (e.created < i.created OR (e.created = i.created AND (e.state > 0 OR e.id < i.id)))
            ) THEN NULL ELSE i.name END AS name
         FROM tasks t
         LEFT JOIN task_outcomes o ON o.task = t.id
         LEFT JOIN parked_calls p ON p.task = t.id AND p.context = t.context
         LEFT JOIN task_inputs i ON i.task = t.id AND i.context = t.context AND i.state = 0 AND t.status = 1
         WHERE t.context = $1 AND t.id = $2
         ORDER BY i.created, i.id"
    );
    /// One that is open is given out again under its number: who asks is another retry of the same call.
    GIVE = "
        INSERT INTO parked_calls (task, context, round, open, expires)
        SELECT t.id, t.context, 1, 1, $3 FROM tasks t
        WHERE t.context = $1 AND t.id = $2 AND t.parked = 1 AND (
            EXISTS (SELECT 1 FROM parked_calls p WHERE p.task = $2)
            OR (
                SELECT COUNT(*) FROM parked_calls p JOIN task_live l ON l.task = p.task
                WHERE p.context = $1 AND p.round > 0
            ) < $4
        )
        ON CONFLICT (task) DO UPDATE
            SET round = parked_calls.round + 1 - parked_calls.open, open = 1, spender = NULL, expires = excluded.expires
            WHERE parked_calls.open < 2
        RETURNING round";
    /// Calls that could have a first round.
    ROUNDLESS = "
        SELECT t.id FROM tasks t
        WHERE t.context = $1 AND t.id = $2 AND t.parked = 1
            AND NOT EXISTS (SELECT 1 FROM parked_calls p WHERE p.task = $2)";
    SPEND = "
        UPDATE parked_calls SET open = 0, spender = $5, expires = $6
        WHERE context = $1 AND task = $2 AND round = $3
            AND ((open = 1 AND expires > $4) OR (open = 0 AND spender = $5))";
    /// A round that nothing else is stored of: its row says that it was spent, to as long as its state would be taken.
    SPEND_PASSED = "
        INSERT INTO parked_calls (task, context, round, open, spender, expires) VALUES ($2, $1, 0, 0, $3, $4)
        ON CONFLICT (task) DO UPDATE SET expires = excluded.expires
            WHERE parked_calls.context = $1 AND parked_calls.spender = $3";
    KEEP = "UPDATE parked_calls SET expires = $4 WHERE context = $1 AND task = $2 AND round = $3 AND open = 0";
    CLOSE = "DELETE FROM parked_calls WHERE context = $1 AND task = $2";
    /// What is past its time, and holds nothing up: the call has ended or is a task, or its round was its upstream's. One that
    /// was prolonged meanwhile is not past it.
    FORGET = "
        DELETE FROM parked_calls
        WHERE expires <= $1 AND task IN (
            SELECT p.task FROM parked_calls p
            WHERE p.expires <= $1 AND NOT EXISTS (
                SELECT 1 FROM tasks t JOIN task_live l ON l.task = t.id WHERE t.id = p.task AND t.parked = 1
            )
            ORDER BY p.expires, p.task LIMIT $2
        )";
    /// The row stays until the call has ended: whoever was to end it may die before.
    GIVE_UP = "
        UPDATE parked_calls SET open = 2, expires = $3
        WHERE expires <= $1 AND task IN (
            SELECT p.task FROM parked_calls p JOIN tasks t ON t.id = p.task JOIN task_live l ON l.task = p.task
            WHERE p.expires <= $1 AND t.parked = 1 ORDER BY p.expires, p.task LIMIT $2
        )
        RETURNING task AS id";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn find_parked(&self, context: ContextId, id: TaskId) -> Result<Option<Parked>> {
        let rows = self.read("store.parked", PARKED, args![context, id]).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let task = read_task(first)?;
        let outcome = read_outcome(first, task.status)?;
        let mut round = None;
        if first.maybe_int("is_open")? == Some(1) {
            round = Some((first.count("round")?, first.time("round_expires")?));
        }
        let mut waiting = Vec::new();
        for row in &rows {
            if let Some(id) = row.maybe_uuid("input")? {
                let (id, name) = (InputId::from_uuid(id), row.maybe_text("name")?);
                waiting.push(Waiting { id, name, question: read_question(row)? });
            }
        }
        let (parked, key) = (first.int("parked")? == 1, first.maybe_text("idempotency_key")?);
        Ok(Some(Parked { parked, key, task, outcome, waiting, round }))
    }

    pub(super) async fn open_round(
        &self,
        context: ContextId,
        id: TaskId,
        expires: Timestamp,
        most: usize,
    ) -> Result<Given> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let rows = self.write_returning("store.give_round", GIVE, args![context, id, expires, most]).await?;
        if let Some(row) = rows.first() {
            return Ok(Given::Round(row.count("round")?));
        }
        let rows = self.read("store.roundless", ROUNDLESS, args![context, id]).await?;
        Ok(if rows.is_empty() { Given::Closed } else { Given::Full })
    }

    pub(super) async fn take_round(&self, context: ContextId, spend: Spend) -> Result<bool> {
        let Spend { state: RoundState { call, round }, now, until } = spend;
        let args = args![context, call, round, now, LeaseToken::new(), until];
        Ok(self.write("store.spend_round", SPEND, args).await? > 0)
    }

    pub(super) async fn note_spent(
        &self,
        context: ContextId,
        id: TaskId,
        spender: LeaseToken,
        expires: Timestamp,
    ) -> Result<bool> {
        Ok(self.write("store.spend_passed", SPEND_PASSED, args![context, id, spender, expires]).await? > 0)
    }

    pub(super) async fn prolong_round(&self, context: ContextId, state: RoundState, until: Timestamp) -> Result<bool> {
        let args = args![context, state.call, state.round, until];
        Ok(self.write("store.keep_round", KEEP, args).await? > 0)
    }

    pub(super) async fn drop_round(&self, context: ContextId, id: TaskId) -> Result<()> {
        self.write("store.close_round", CLOSE, args![context, id]).await.map(|_| ())
    }

    pub(super) async fn drop_late_rounds(&self, now: Timestamp, limit: u32) -> Result<Vec<TaskId>> {
        while self.write("store.forget_rounds", FORGET, args![now, limit]).await? >= u64::from(limit) {}
        let args = args![now, limit, now + GIVEN_UP_AGAIN];
        let rows = self.write_returning("store.give_up_rounds", GIVE_UP, args).await?;
        Ok(rows.iter().map(|row| row.uuid("id").map(TaskId::from_uuid)).collect::<std::result::Result<_, _>>()?)
    }
}
