//! Authorization contexts.

use super::dialect::Dialect;
use super::sql::{Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::tasks::clean;
use super::{Result, StoreError};
use crate::domain::clock::Timestamp;
use crate::domain::context::ContextKey;
use crate::domain::ids::ContextId;

statements! {
    BY_KEY = "SELECT id FROM auth_contexts WHERE tenant = $1 AND issuer = $2 AND subject = $3 AND client = $4";
    BY_ID = "SELECT tenant, issuer, subject, client FROM auth_contexts WHERE id = $1";
    /// Whoever comes second finds the first one's row.
    ADD = "
        INSERT INTO auth_contexts (id, tenant, issuer, subject, client, created) VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT DO NOTHING";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn find_or_add_context(&self, key: ContextKey, now: Timestamp) -> Result<ContextId> {
        let [tenant, issuer, subject, client] =
            [key.tenant, key.issuer, key.subject, key.client].map(|part| clean(&part));
        let wanted = args![&tenant, &issuer, &subject, &client];
        let rows = self.read("store.context", BY_KEY, wanted.clone()).await?;
        if let Some(row) = rows.first() {
            return Ok(ContextId::from_uuid(row.uuid("id")?));
        }
        let new = args![ContextId::new(), &tenant, &issuer, &subject, &client, now];
        self.write("store.add_context", ADD, new).await?;
        let rows = self.read("store.context", BY_KEY, wanted).await?;
        let row = rows.first().ok_or_else(|| StoreError::BrokenRow("a new context is not there".into()))?;
        Ok(ContextId::from_uuid(row.uuid("id")?))
    }

    pub(super) async fn find_context(&self, id: ContextId) -> Result<Option<ContextKey>> {
        let rows = self.read("store.context", BY_ID, args![id]).await?;
        Ok(rows.first().map(read).transpose()?)
    }
}

fn read<R: Cells>(row: &R) -> std::result::Result<ContextKey, Fault> {
    Ok(ContextKey {
        tenant: row.text("tenant")?,
        issuer: row.text("issuer")?,
        subject: row.text("subject")?,
        client: row.text("client")?,
    })
}
