//! Issued access tokens.

use super::Result;
use super::dialect::Dialect;
use super::sql::{Args, Cells, Fault, args, statements};
use super::sql_store::SqlStore;
use super::tasks::clean;
use crate::domain::clock::Timestamp;
use crate::domain::ids::{ContextId, TokenId};

/// An issued access token; the secret itself is nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: TokenId,
    pub context: ContextId,
    pub tenant: String,
    pub name: String,
    /// The argon2id hash in PHC form.
    pub hash: String,
    pub created: Timestamp,
    pub expires: Option<Timestamp>,
    pub revoked: Option<Timestamp>,
}

statements! {
    /// Done twice, it is done once: ids are nobody else's.
    ADD = "
        INSERT INTO access_tokens (id, context, name, hash, created, expires, revoked)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT DO NOTHING";
    ALL = "
        SELECT k.id, k.context, k.name, k.hash, k.created, k.expires, k.revoked, c.tenant
        FROM access_tokens k JOIN auth_contexts c ON c.id = k.context
        ORDER BY k.created, k.id";
    REVOKE = "UPDATE access_tokens SET revoked = COALESCE(revoked, $2) WHERE id = $1";
    EXPIRE = "
        UPDATE access_tokens SET expires = CASE WHEN expires < $2 THEN expires ELSE $2 END WHERE id = $1";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn insert_token(&self, token: TokenRecord) -> Result<()> {
        let TokenRecord { id, context, tenant: _, name, hash, created, expires, revoked } = token;
        let args = args![id, context, clean(&name), hash, created, expires, revoked];
        self.write("store.add_token", ADD, args).await.map(|_| ())
    }

    pub(super) async fn find_tokens(&self, ids: &[TokenId]) -> Result<Vec<TokenRecord>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<Args> = ids.iter().map(|&id| args![id]).collect();
        let found = self.read_many("store.tokens", D::TOKENS, rows).await?;
        Ok(found.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn every_token(&self) -> Result<Vec<TokenRecord>> {
        let rows = self.read("store.all_tokens", ALL, Vec::new()).await?;
        Ok(rows.iter().map(read).collect::<std::result::Result<_, _>>()?)
    }

    pub(super) async fn revoke(&self, id: TokenId, now: Timestamp) -> Result<bool> {
        Ok(self.write("store.revoke_token", REVOKE, args![id, now]).await? > 0)
    }

    pub(super) async fn expire(&self, id: TokenId, at: Timestamp) -> Result<bool> {
        Ok(self.write("store.expire_token", EXPIRE, args![id, at]).await? > 0)
    }
}

fn read<R: Cells>(row: &R) -> std::result::Result<TokenRecord, Fault> {
    Ok(TokenRecord {
        id: TokenId::from_uuid(row.uuid("id")?),
        context: ContextId::from_uuid(row.uuid("context")?),
        tenant: row.text("tenant")?,
        name: row.text("name")?,
        hash: row.text("hash")?,
        created: row.time("created")?,
        expires: row.maybe_time("expires")?,
        revoked: row.maybe_time("revoked")?,
    })
}
