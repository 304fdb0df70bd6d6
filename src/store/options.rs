//! How to reach the database.

use std::path::PathBuf;
use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use super::open::OpenError;

/// What the configuration says of the database.
#[derive(Debug, Clone)]
pub struct DatabaseOptions {
    /// `sqlite://PATH` or `postgres://...`; may hold a password.
    pub url: SecretString,
    /// The PostgreSQL schema to work in; without one, the role's `search_path` decides.
    pub schema: Option<String>,
    /// The most connections to PostgreSQL of this process.
    pub max_connections: u32,
}

/// Where the database is.
pub(super) enum Target {
    Sqlite(PathBuf),
    Postgres(Box<PgConnectOptions>),
}

impl DatabaseOptions {
    pub(super) fn target(&self) -> Result<Target, OpenError> {
        let url = self.url.expose_secret();
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => {
                if self.schema.is_some() {
                    return Err(OpenError::Url("a schema can be chosen on PostgreSQL only".to_owned()));
                }
                if url.contains(":memory:") || url.contains("mode=memory") {
                    return Err(OpenError::Url("an in-memory database keeps no task; name a file".to_owned()));
                }
                // sqlx's message may quote the URL.
                let options = SqliteConnectOptions::from_str(url)
                    .map_err(|_| OpenError::Url("expected sqlite://PATH".to_owned()))?;
                let path = options.get_filename().to_path_buf();
                if path.as_os_str().is_empty() {
                    return Err(OpenError::Url("expected sqlite://PATH".to_owned()));
                }
                Ok(Target::Sqlite(path))
            }
            Some("postgres" | "postgresql") => {
                if let Some(schema) = &self.schema
                    && !is_plain_name(schema)
                {
                    return Err(OpenError::Url(
                        "the schema's name may have lower-case letters, digits and underscores only".to_owned(),
                    ));
                }
                let options = PgConnectOptions::from_str(url)
                    .map_err(|_| OpenError::Url("expected postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned()))?;
                Ok(Target::Postgres(Box::new(options)))
            }
            _ => {
                Err(OpenError::Url("expected sqlite://PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned()))
            }
        }
    }
}

/// A name that needs no quotes anywhere: it travels in a startup parameter and in statements.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 63
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str, schema: Option<&str>) -> Result<Target, OpenError> {
        let schema = schema.map(str::to_owned);
        DatabaseOptions { url: url.into(), schema, max_connections: 10 }.target()
    }

    #[test]
    fn urls_say_which_database() {
        for (url, path) in [
            ("sqlite://taskhold.db", "taskhold.db"),
            ("sqlite:taskhold.db", "taskhold.db"),
            ("sqlite:///var/lib/taskhold/tasks.db", "/var/lib/taskhold/tasks.db"),
        ] {
            let Ok(Target::Sqlite(found)) = target(url, None) else { panic!("{url}") };
            assert_eq!(found.to_str(), Some(path));
        }
        assert!(matches!(target("postgres://u:p@h/d", Some("tasks_2")), Ok(Target::Postgres(_))));
    }

    #[test]
    fn unusable_urls_are_refused_without_their_password() {
        for (url, schema) in [
            ("mysql://u:hunter2@h/d", None),
            ("hunter2", None),
            ("postgres://u:hunter2@h:port/d", None),
            ("postgres://u:hunter2@h/d", Some("a; DROP")),
            ("sqlite::memory:", None),
            ("sqlite://x?mode=hunter2", None),
            ("sqlite://x", Some("tasks")),
        ] {
            let Err(error) = target(url, schema) else { panic!("{url}") };
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
