//! Migrations through a pooler that gives each transaction another connection.
//!
//! sqlx's own run prepares statements that last, outside of transactions; a pooler would give them to others. The notes that
//! it keeps are kept in the same way, so that either goes on where the other has been.

use std::collections::HashMap;

use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Row as _};

use super::open::OpenError;
use super::sql::statements;

const NOTES: &str = "CREATE TABLE IF NOT EXISTS _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMPTZ NOT NULL DEFAULT now(),
    success BOOLEAN NOT NULL,
    checksum BYTEA NOT NULL,
    execution_time BIGINT NOT NULL
)";

statements! {
    RUN = "SELECT version, checksum FROM _sqlx_migrations ORDER BY version";
    NOTE = "
        INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES ($1, $2, TRUE, $3, -1)";
}

/// Runs what is missing, all or none.
pub async fn run(migrator: &Migrator, connection: &mut PgConnection) -> Result<(), OpenError> {
    let mut transaction = connection.begin().await?;
    sqlx::raw_sql(NOTES).execute(&mut *transaction).await?;
    let mut have: HashMap<i64, Vec<u8>> = HashMap::new();
    for row in sqlx::query(RUN).persistent(false).fetch_all(&mut *transaction).await? {
        have.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for migration in migrator.iter() {
        match have.get(&migration.version) {
            Some(checksum) if **checksum == *migration.checksum => continue,
            Some(_) => {
                return Err(OpenError::Migration(format!(
                    "migration {} was previously applied but has been modified",
                    migration.version
                )));
            }
            None => {}
        }
        let failed = |error: sqlx::Error| OpenError::Migration(format!("migration {}: {error}", migration.version));
        sqlx::raw_sql(migration.sql.clone()).execute(&mut *transaction).await.map_err(failed)?;
        sqlx::query(NOTE)
            .persistent(false)
            .bind(migration.version)
            .bind(&*migration.description)
            .bind(&*migration.checksum)
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
    }
    Ok(transaction.commit().await?)
}
