//! Nodes: each start of each process, and who is alive. Only here statements read the database's clock.

use std::time::Duration;

use super::dialect::Dialect;
use super::sql::{Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::{Beat, Result};
use crate::domain::clock::Timestamp;
use crate::domain::ids::NodeId;

statements! {
    RETIRE = "UPDATE nodes SET dead = 1 WHERE id = $1 AND dead = 0";
    OTHER = "SELECT id FROM nodes WHERE id <> $1 AND dead = 0 LIMIT 1";
    FORGET = "
        DELETE FROM nodes
        WHERE dead = 1 AND heartbeat < $1 AND NOT EXISTS (SELECT 1 FROM task_live l WHERE l.node = nodes.id)";
}

/// The statement of a database, whose clock is given.
macro_rules! lost {
    ($clock:expr) => {
        concat!(
            "SELECT CAST(CASE WHEN
                EXISTS (SELECT 1 FROM nodes n WHERE n.dead = 0 AND n.id <> $1 AND n.heartbeat < ",
            $clock,
            " - $2)
                OR EXISTS (
                    SELECT 1 FROM task_live l
                    WHERE l.node IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = l.node AND n.dead = 0))
                OR EXISTS (
                    SELECT 1 FROM task_inputs i
                    WHERE i.node IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = i.node AND n.dead = 0))
                OR EXISTS (
                    SELECT 1 FROM sessions s
                    WHERE s.stream_node IS NOT NULL
                        AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = s.stream_node AND n.dead = 0))
                OR EXISTS (
                    SELECT 1 FROM resource_subscriptions r
                    JOIN sessions s ON s.id = r.session AND s.context = r.context
                    WHERE NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = r.node AND n.dead = 0))
                THEN 1 ELSE 0 END AS BIGINT) AS lost"
        )
    };
}
pub(super) use lost;

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn add_node(&self, node: NodeId) -> Result<Timestamp> {
        let rows = self.write_returning("store.register_node", D::REGISTER_NODE, args![node]).await?;
        let row = rows.first().ok_or_else(|| Fault::broken("a new node's heartbeat was not answered"))?;
        Ok(row.time("heartbeat")?)
    }

    pub(super) async fn beat(&self, node: NodeId) -> Result<Beat> {
        let heart = self.heart();
        self.apart("store.heartbeat", async move {
            let mut session = heart.urgent_session().await?;
            let rows = session.fetch(D::HEARTBEAT, args![node]).await?;
            if let Some(row) = rows.first() {
                return Ok(Beat { database_now: row.time("heartbeat")?, alive: true });
            }
            let rows = session.fetch(D::CLOCK, Vec::new()).await?;
            let row = rows.first().ok_or_else(|| Fault::broken("the database's clock answers nothing"))?;
            Ok(Beat { database_now: row.time("now")?, alive: false })
        })
        .await
    }

    pub(super) async fn has_lost(&self, judge: NodeId, age: Duration) -> Result<bool> {
        let rows = self.read("store.anything_lost", D::LOST, args![judge, micros(age)]).await?;
        let row = rows.first().ok_or_else(|| Fault::broken("what is lost was not answered"))?;
        Ok(row.int("lost")? == 1)
    }

    pub(super) async fn bury(&self, judge: NodeId, age: Duration) -> Result<Vec<NodeId>> {
        let rows = self.write_returning("store.declare_dead", D::DECLARE_DEAD, args![judge, micros(age)]).await?;
        Ok(rows.iter().map(|row| row.uuid("id").map(NodeId::from_uuid)).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn has_others(&self, node: NodeId) -> Result<bool> {
        Ok(!self.read("store.other_nodes", OTHER, args![node]).await?.is_empty())
    }

    pub(super) async fn retire(&self, node: NodeId) -> Result<()> {
        self.write("store.retire_node", RETIRE, args![node]).await.map(|_| ())
    }

    pub(super) async fn forget(&self, before: Timestamp) -> Result<u64> {
        self.write("store.forget_nodes", FORGET, args![before]).await
    }
}

fn micros(age: Duration) -> i64 {
    i64::try_from(age.as_micros()).unwrap_or(i64::MAX)
}
