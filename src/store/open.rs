//! Opening the store.

use std::path::PathBuf;
use std::sync::Arc;

use super::options::{DatabaseOptions, Target};
use super::sql::Fault;
use super::sql_store::SqlStore;
use super::{Store, StoreError, migrate, open_postgres, open_sqlite};

/// Why the store cannot be opened. Never says a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the database URL cannot be used: {0}")]
    Url(String),
    #[error("the folder of the database file does not exist: {}", .0.display())]
    MissingFolder(PathBuf),
    #[error(
        "the database file {} is on a network file system ({kind}), where SQLite loses data; use a local disk or \
         PostgreSQL", path.display()
    )]
    NetworkFileSystem { path: PathBuf, kind: String },
    #[error("the database file {} cannot be opened: {detail}", path.display())]
    File { path: PathBuf, detail: String },
    #[error("PostgreSQL 15 or newer is needed; the server is {0}")]
    ServerTooOld(String),
    #[error(
        "the database URL leads to a connection pooler in transaction mode, which would mix up statements of different \
         clients: set database.pooler = \"transaction\", or give the server's own address"
    )]
    Pooler,
    #[error("migrations are missing: {}; run `taskhold migrate`", .0.join(", "))]
    Pending(Vec<String>),
    #[error(
        "migrations are missing: {}; the role of the database URL may not change tables: run `taskhold migrate` as one that \
         may", .0.join(", ")
    )]
    Forbidden(Vec<String>),
    #[error(
        "the database was migrated by a newer version: its schema needs a binary of schema {needed} or newer, this one \
         has {own}; update taskhold"
    )]
    FromTheFuture { needed: i64, own: i64 },
    #[error("migrating the database failed: {0}")]
    Migration(String),
    #[error("another process has been migrating this database for too long")]
    MigrationLocked,
    #[error("the database cannot be opened: {0}")]
    Store(StoreError),
}

impl From<Fault> for OpenError {
    fn from(fault: Fault) -> Self {
        Self::Store(fault.into())
    }
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Fault::from(error).into()
    }
}

/// Opens a migrated database (see [`super::migrate`]).
///
/// # Errors
/// If it cannot be reached, is none that can be served safely, or its migrations are not ours.
pub async fn open(options: &DatabaseOptions) -> Result<Store, OpenError> {
    Ok(match options.target()? {
        Target::Sqlite(path) => {
            refuse_pending(migrate::check_sqlite(&path).await?)?;
            Store::new(Arc::new(SqlStore::new(open_sqlite::connections(&path))))
        }
        Target::Postgres(targets) => {
            refuse_pending(migrate::check_postgres(options, &targets).await?)?;
            targets.tell_where();
            Store::new(Arc::new(SqlStore::new(open_postgres::connections(options, &targets)?)))
        }
    })
}

fn refuse_pending(pending: Vec<String>) -> Result<(), OpenError> {
    if pending.is_empty() { Ok(()) } else { Err(OpenError::Pending(pending)) }
}
