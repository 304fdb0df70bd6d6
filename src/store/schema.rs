//! What a database has of our schema. Looking changes nothing.

use sqlx::Row as _;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;

use super::migrate::{missing, named, own_schema};
use super::open::OpenError;
use super::sql::statements;

statements! {
    OLDEST_BINARY = "SELECT oldest_binary FROM schema_info WHERE id = 1";
    APPLIED = "SELECT version, checksum FROM _sqlx_migrations WHERE success";
}

const TABLES_POSTGRES: &str = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()";
const TABLES_SQLITE: &str =
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
const SCHEMAS: &str = "SELECT nspname::text FROM pg_namespace";
/// Where the migrations that ran are noted. Every program that migrates as we do has a table of this name.
pub const NOTES: &str = "_sqlx_migrations";
/// The table by which a schema is known as ours: it is made before all others.
pub const MARK: &str = "schema_info";
/// How many tables of somebody else are named.
const NAMED: usize = 5;

/// What was found.
pub struct Found {
    /// Whether anything of ours is there.
    pub is_ours: bool,
    /// The oldest binary that may run on it.
    oldest_binary: i64,
    /// Versions and checksums.
    applied: Vec<(i64, Vec<u8>)>,
    /// Tables of another program that leave no place for ours.
    others: Vec<String>,
}

impl Found {
    pub async fn in_postgres(connection: &mut PgConnection) -> Result<Self, OpenError> {
        // Each is one message, which a pooler passes as it is. The table that is made first is looked for last: others may
        // be making ours now.
        let tables = sqlx::raw_sql(TABLES_POSTGRES).fetch_all(&mut *connection).await?;
        let applied = if_there(sqlx::raw_sql(APPLIED).fetch_all(&mut *connection).await)?;
        let oldest = if_there(sqlx::raw_sql(OLDEST_BINARY).fetch_optional(&mut *connection).await)?;
        let mut others: Vec<String> = tables.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        // A schema may be shared with tables that have other names.
        let ours = super::migrate::tables();
        others.retain(|table| table == NOTES || ours.contains(&table.as_str()));
        Ok(Self {
            is_ours: oldest.is_some(),
            oldest_binary: oldest.flatten().map(|row| row.try_get(0)).transpose()?.unwrap_or(0),
            applied: read_applied(applied.unwrap_or_default().iter().map(|row| (row.try_get(0), row.try_get(1))))?,
            others,
        })
    }

    pub async fn in_sqlite(connection: &mut SqliteConnection) -> Result<Self, OpenError> {
        let others: Vec<String> = sqlx::query_scalar(TABLES_SQLITE).fetch_all(&mut *connection).await?;
        let applied = if_there(sqlx::query(APPLIED).fetch_all(&mut *connection).await)?;
        let oldest: Option<Option<i64>> =
            if_there(sqlx::query_scalar(OLDEST_BINARY).fetch_optional(&mut *connection).await)?;
        Ok(Self {
            is_ours: oldest.is_some(),
            oldest_binary: oldest.flatten().unwrap_or(0),
            applied: read_applied(applied.unwrap_or_default().iter().map(|row| (row.try_get(0), row.try_get(1))))?,
            others,
        })
    }

    /// The migrations that are missing, by number and name.
    ///
    /// # Errors
    /// If the database is another program's, or a newer version's that says that older ones must not run.
    pub fn pending(&self) -> Result<Vec<String>, OpenError> {
        if !self.is_ours && !self.others.is_empty() {
            let more = if self.others.len() > NAMED { ", ..." } else { "" };
            let names: Vec<&str> = self.others.iter().take(NAMED).map(String::as_str).collect();
            return Err(OpenError::NotOurs(format!("{}{more}", names.join(", "))));
        }
        let own = own_schema();
        if self.oldest_binary > own {
            return Err(OpenError::FromTheFuture { needed: self.oldest_binary, own });
        }
        Ok(missing(|version| self.applied.iter().any(|(applied, _)| *applied == version)))
    }

    /// The same, for whoever works with the database as it is.
    ///
    /// # Errors
    /// If one is missing, too.
    pub fn complete(&self) -> Result<(), OpenError> {
        match self.pending()? {
            pending if pending.is_empty() => Ok(()),
            _ if !self.is_ours => Err(OpenError::NoTables),
            pending => Err(OpenError::Pending(pending)),
        }
    }

    /// The migrations that were noted with another checksum than theirs, with the one that they have.
    pub fn changed(&self, migrator: &Migrator) -> Vec<(String, String)> {
        let ours = migrator.iter().filter(|ours| {
            let noted = self.applied.iter().find(|(version, _)| *version == ours.version);
            noted.is_some_and(|(_, checksum)| **checksum != *ours.checksum)
        });
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        ours.map(|ours| (named(ours.version), hex(&ours.checksum))).collect()
    }
}

/// Whether the database has a schema of this name.
pub async fn has_schema(connection: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    let schemas = sqlx::raw_sql(SCHEMAS).fetch_all(connection).await?;
    let mut names = schemas.iter().map(|row| row.try_get::<String, _>(0));
    names.try_fold(false, |found, schema| Ok(found | (schema? == name)))
}

type Noted = (Result<i64, sqlx::Error>, Result<Vec<u8>, sqlx::Error>);

fn read_applied(rows: impl Iterator<Item = Noted>) -> Result<Vec<(i64, Vec<u8>)>, sqlx::Error> {
    rows.map(|(version, checksum)| Ok((version?, checksum?))).collect()
}

/// `None` if the table is not there yet.
fn if_there<T>(result: Result<T, sqlx::Error>) -> Result<Option<T>, OpenError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            let missing = error.as_database_error().is_some_and(|refusal| {
                refusal.code().as_deref() == Some("42P01") || refusal.message().starts_with("no such table")
            });
            if missing { Ok(None) } else { Err(error.into()) }
        }
    }
}
