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
    #[error(
        "{} cannot be written by this user: {detail}; SQLite writes the file, FILE-wal and FILE-shm beside it, and their \
         folder: run this as the user of the service, or give that right", path.display()
    )]
    NotWritable { path: PathBuf, detail: String },
    #[error(
        "there is no file {}: `taskhold migrate` makes it; if the service has its database elsewhere, name that one (a \
         relative path begins in the working directory)", .0.display()
    )]
    NoFile(PathBuf),
    #[error(
        "the database has no tables of taskhold: `taskhold migrate` makes them; if the service has its database, or \
         schema, elsewhere, name that one"
    )]
    NoTables,
    #[error(
        "the database belongs to another program: it has the table(s) {0}, and not those of taskhold; name another one, or \
         on PostgreSQL another schema (database.schema)"
    )]
    NotOurs(String),
    #[error(
        "migration {0} was run with another text than it has in this binary, going by its checksum in _sqlx_migrations: no \
         further migration is run. `taskhold check` shows both sides, docs/databases.md says what to do"
    )]
    Changed(String),
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
    #[error(
        "another process has been migrating this database for too long: see its log, or end it; 30 s after that another \
         one can"
    )]
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

/// Opens a migrated database (see [`super::migrate`]) as it is: neither a file nor a table is made or changed.
///
/// # Errors
/// If it cannot be reached, is none that can be served safely, or its migrations are not ours.
pub async fn open(options: &DatabaseOptions) -> Result<Store, OpenError> {
    Ok(match options.target()? {
        Target::Sqlite(path) => {
            let found = migrate::look_sqlite(&path).await?;
            found.ok_or_else(|| OpenError::NoFile(open_sqlite::in_full(&path)))?.complete()?;
            Store::new(Arc::new(SqlStore::new(open_sqlite::connections(&path))))
        }
        Target::Postgres(targets) => {
            migrate::look_postgres(options, &targets).await?.complete()?;
            targets.tell_where();
            Store::new(Arc::new(SqlStore::new(open_postgres::connections(options, &targets)?)))
        }
    })
}
