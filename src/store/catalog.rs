//! The last known lists of each upstream, and the names that they are exposed by.

use std::sync::Arc;

use super::Result;
use super::dialect::Dialect;
use super::link::Session;
use super::sql::{Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::tasks::clean;
use crate::domain::clock::Timestamp;
use crate::domain::json::RawJson;

/// One item of an upstream, under the name that it is exposed by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogItem {
    pub upstream: String,
    /// `tool`, `prompt`, `resource`, `template`, or `capabilities` for the upstream itself.
    pub kind: String,
    /// The upstream's own name for it.
    pub name: String,
    /// Unique per kind; once given, it does not move.
    pub exposed: String,
    /// The upstream's definition as it arrived.
    pub definition: RawJson,
    /// The order in the upstream's list.
    pub rank: i64,
    /// Whether the upstream's last complete list had it.
    pub listed: bool,
    pub seen: Timestamp,
}

statements! {
    ALL = "
        SELECT upstream, kind, name, exposed, definition, rank, listed, seen FROM upstream_catalogs
        ORDER BY upstream, kind, rank, name";
    /// Never the exposed name.
    UPDATE = "
        UPDATE upstream_catalogs SET definition = $4, rank = $5, listed = $6, seen = $7
        WHERE upstream = $1 AND kind = $2 AND name = $3";
    /// Does nothing if another row has the exposed name.
    ADD = "
        INSERT INTO upstream_catalogs (upstream, kind, name, definition, rank, listed, seen, exposed)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
    DROP = "DELETE FROM upstream_catalogs WHERE upstream = $1 AND kind = $2 AND name = $3";
    UPSTREAMS = "SELECT DISTINCT upstream FROM upstream_catalogs";
    PRUNE = "
        DELETE FROM upstream_catalogs
        WHERE upstream = $1 AND NOT EXISTS (
            SELECT 1 FROM tasks t
            WHERE t.upstream = upstream_catalogs.upstream AND t.upstream_tool = upstream_catalogs.name
        )";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn whole_catalog(&self) -> Result<Vec<CatalogItem>> {
        let rows = self.read("store.catalog", ALL, Vec::new()).await?;
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn merge_catalog(&self, mut items: Vec<CatalogItem>) -> Result<Vec<CatalogItem>> {
        // All nodes in one order, so that none waits for another in a circle.
        items.sort_by(|a, b| (&a.upstream, &a.kind, &a.name).cmp(&(&b.upstream, &b.kind, &b.name)));
        let items = Arc::new(items);
        self.again("store.put_catalog", move |link| {
            let items = Arc::clone(&items);
            async move { merge(&mut link.writer().await?, &items).await }
        })
        .await?;
        self.whole_catalog().await
    }

    pub(super) async fn delete_from_catalog(&self, mut items: Vec<CatalogItem>) -> Result<Vec<CatalogItem>> {
        items.sort_by(|a, b| (&a.upstream, &a.kind, &a.name).cmp(&(&b.upstream, &b.kind, &b.name)));
        let items = Arc::new(items);
        self.again("store.drop_catalog", move |link| {
            let items = Arc::clone(&items);
            async move {
                let mut session = link.writer().await?;
                let mut transaction = session.begin().await?;
                for item in &*items {
                    let args = args![clean(&item.upstream), clean(&item.kind), clean(&item.name)];
                    transaction.execute(DROP, args).await?;
                }
                transaction.commit().await
            }
        })
        .await?;
        self.whole_catalog().await
    }

    pub(super) async fn drop_from_catalog(&self, keep: &[String]) -> Result<u64> {
        let rows = self.read("store.catalog_upstreams", UPSTREAMS, Vec::new()).await?;
        let mut dropped = 0;
        for row in rows {
            let upstream = row.text("upstream")?;
            if !keep.iter().any(|kept| clean(kept) == upstream) {
                dropped += self.write("store.prune_catalog", PRUNE, args![upstream]).await?;
            }
        }
        Ok(dropped)
    }
}

async fn merge<D: Dialect>(session: &mut Session<D>, items: &[CatalogItem]) -> std::result::Result<(), Fault> {
    let mut transaction = session.begin().await?;
    for item in items {
        let mut args = args![
            clean(&item.upstream),
            clean(&item.kind),
            clean(&item.name),
            &item.definition,
            item.rank,
            item.listed,
            item.seen,
        ];
        if transaction.execute(UPDATE, args.clone()).await? == 0 {
            args.push(clean(&item.exposed).into());
            transaction.execute(ADD, args).await?;
        }
    }
    transaction.commit().await
}

fn read<R: Cells>(row: &R) -> std::result::Result<CatalogItem, Fault> {
    Ok(CatalogItem {
        upstream: row.text("upstream")?,
        kind: row.text("kind")?,
        name: row.text("name")?,
        exposed: row.text("exposed")?,
        definition: row.json("definition")?,
        rank: row.int("rank")?,
        listed: row.int("listed")? == 1,
        seen: row.time("seen")?,
    })
}
