//! What would stand in the way of a start on an SQLite file.

use std::path::Path;

use super::check::Report;
use super::migrate::{look_sqlite, missing, sqlite_migrator};
use super::open::OpenError;
use super::open_sqlite::check_access;

/// Whether the tables are there and up to date.
pub async fn check(path: &Path, report: &mut Report) -> bool {
    match look(path).await {
        Ok((pending, changed)) => {
            report.good_database();
            report.migrations(&pending, &changed, None);
            pending.is_empty()
        }
        Err(error) => {
            report.bad_database(error);
            false
        }
    }
}

/// The migrations that are missing, and those with another text.
async fn look(path: &Path) -> Result<(Vec<String>, Vec<(String, String)>), OpenError> {
    Ok(match look_sqlite(path).await? {
        Some(found) => (found.pending()?, found.changed(&sqlite_migrator())),
        None => {
            // It is to be made there.
            check_access(path)?;
            (missing(|_| false), Vec::new())
        }
    })
}
