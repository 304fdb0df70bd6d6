//! What sessions subscribed to, and which node follows it.

use super::Result;
use super::dialect::Dialect;
use super::sql::{Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::tasks::clean;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, NodeId, SessionId};

/// A session's wish to be told of a resource.
#[derive(Debug, Clone)]
pub struct NewSubscription {
    pub session: SessionId,
    pub uri: String,
    pub upstream: String,
    /// Which node follows it at the upstream.
    pub node: NodeId,
    pub now: Timestamp,
}

/// A stored subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRow {
    pub session: SessionId,
    pub uri: String,
    pub context: ContextId,
    pub upstream: String,
    pub node: NodeId,
}

statements! {
    /// Only for a session of this context; not above the limit. Made again, it belongs to the node that made it last.
    ADD = "
        INSERT INTO resource_subscriptions (session, uri, context, upstream, node, created)
        SELECT s.id, $3, s.context, $4, $5, $6 FROM sessions s
        WHERE s.context = $1 AND s.id = $2 AND (
            SELECT COUNT(*) FROM resource_subscriptions r WHERE r.session = $2 AND r.uri <> $3
        ) < $7
        ON CONFLICT (session, uri) DO UPDATE SET upstream = excluded.upstream, node = excluded.node";
    END = "
        DELETE FROM resource_subscriptions WHERE context = $1 AND session = $2 AND uri = $3
        RETURNING session, uri, context, upstream, node";
    OF_SESSION = "
        SELECT session, uri, context, upstream, node FROM resource_subscriptions WHERE context = $1 AND session = $2
        ORDER BY uri";
    /// A session that has ended is told nothing, whether or not its rows are gone.
    SUBSCRIBERS = "
        SELECT r.context, r.session FROM resource_subscriptions r
        JOIN sessions s ON s.id = r.session AND s.context = r.context
        WHERE r.node = $1 AND r.upstream = $2 AND r.uri = $3 AND ($4 = 1 OR r.context = $5)
        ORDER BY r.session";
    AT_NODE = "
        SELECT r.session, r.uri, r.context, r.upstream, r.node FROM resource_subscriptions r
        JOIN sessions s ON s.id = r.session AND s.context = r.context
        WHERE r.node = $1 ORDER BY r.session, r.uri";
    HAND_ON = "UPDATE resource_subscriptions SET node = $2 WHERE node = $1";
    /// Those of nodes that are dead or unknown.
    ORPHANED = "
        SELECT r.session, r.uri, r.context, r.upstream, r.node FROM resource_subscriptions r
        JOIN sessions s ON s.id = r.session AND s.context = r.context
        WHERE NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = r.node AND n.dead = 0)
        ORDER BY r.session, r.uri LIMIT $1";
    MOVE = "UPDATE resource_subscriptions SET node = $4 WHERE session = $1 AND uri = $2 AND node = $3";
    REAP = "
        DELETE FROM resource_subscriptions WHERE (session, uri) IN (
            SELECT r.session, r.uri FROM resource_subscriptions r
            WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = r.session) LIMIT $1
        )";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn insert_subscription(
        &self,
        context: ContextId,
        new: NewSubscription,
        most: u32,
    ) -> Result<bool> {
        let NewSubscription { session, uri, upstream, node, now } = new;
        let args = args![context, session, clean(&uri), clean(&upstream), node, now, most];
        Ok(self.write("store.add_subscription", ADD, args).await? > 0)
    }

    pub(super) async fn delete_subscription(
        &self,
        context: ContextId,
        session: SessionId,
        uri: &str,
    ) -> Result<Option<SubscriptionRow>> {
        let rows = self.write_returning("store.end_subscription", END, args![context, session, clean(uri)]).await?;
        Ok(rows.first().map(read).transpose()?)
    }

    pub(super) async fn subscriptions_of(&self, context: ContextId, id: SessionId) -> Result<Vec<SubscriptionRow>> {
        let rows = self.read("store.subscriptions", OF_SESSION, args![context, id]).await?;
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn subscribers_of(
        &self,
        node: NodeId,
        context: Option<ContextId>,
        upstream: &str,
        uri: &str,
    ) -> Result<Vec<(ContextId, SessionId)>> {
        let of_all = context.is_none();
        let context = context.map_or_else(uuid::Uuid::nil, ContextId::as_uuid);
        let args = args![node, clean(upstream), clean(uri), of_all, context];
        let rows = self.read("store.subscribers", SUBSCRIBERS, args).await?;
        let read = |row: &_| read_subscriber(row);
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn subscriptions_of_node(&self, node: NodeId) -> Result<Vec<SubscriptionRow>> {
        let rows = self.read("store.subscriptions_at", AT_NODE, args![node]).await?;
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn hand_on_subscriptions(&self, from: NodeId, to: NodeId) -> Result<u64> {
        self.write("store.move_subscriptions", HAND_ON, args![from, to]).await
    }

    pub(super) async fn subscriptions_of_the_dead(&self, limit: u32) -> Result<Vec<SubscriptionRow>> {
        let rows = self.read("store.orphaned_subscriptions", ORPHANED, args![limit]).await?;
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn move_subscription(&self, row: SubscriptionRow, node: NodeId) -> Result<bool> {
        let args = args![row.session, clean(&row.uri), row.node, node];
        Ok(self.write("store.take_subscription", MOVE, args).await? > 0)
    }

    pub(super) async fn delete_orphaned_subscriptions(&self, limit: u32) -> Result<u64> {
        self.write("store.reap_subscriptions", REAP, args![limit]).await
    }
}

fn read<R: Cells>(row: &R) -> std::result::Result<SubscriptionRow, Fault> {
    Ok(SubscriptionRow {
        session: SessionId::from_uuid(row.uuid("session")?),
        uri: row.text("uri")?,
        context: ContextId::from_uuid(row.uuid("context")?),
        upstream: row.text("upstream")?,
        node: NodeId::from_uuid(row.uuid("node")?),
    })
}

fn read_subscriber<R: Cells>(row: &R) -> std::result::Result<(ContextId, SessionId), Fault> {
    Ok((ContextId::from_uuid(row.uuid("context")?), SessionId::from_uuid(row.uuid("session")?)))
}
