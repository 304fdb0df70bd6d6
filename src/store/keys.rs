//! The installation's own keys.

use super::dialect::Dialect;
use super::sql::{Cells, args, statements};
use super::sql_store::SqlStore;
use super::{Result, StoreError};
use crate::domain::ids::random_bytes;

statements! {
    FIND = "SELECT secret FROM server_keys WHERE kind = $1";
    /// Whoever comes second finds the first one's key.
    ADD = "INSERT INTO server_keys (kind, secret, created) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
}

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn find_or_add_key(&self, kind: &str) -> Result<[u8; 32]> {
        if let Some(key) = self.find_key(kind).await? {
            return Ok(key);
        }
        let now = self.read("store.clock", D::CLOCK, Vec::new()).await?;
        let now = now.first().map(|row| row.int("now")).transpose()?;
        self.write("store.add_key", ADD, args![kind, random_bytes::<32>().to_vec(), now]).await?;
        self.find_key(kind).await?.ok_or_else(|| StoreError::BrokenRow("a new server key is not there".into()))
    }

    async fn find_key(&self, kind: &str) -> Result<Option<[u8; 32]>> {
        let rows = self.read("store.server_key", FIND, args![kind]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let key = row.bytes("secret")?.try_into();
        key.map(Some).map_err(|_| StoreError::BrokenRow("a server key does not have 32 bytes".into()))
    }
}
