//! `[database]`.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

use super::problem::Problem;
use super::settings::Settings;
use crate::domain::redact::redact_url;
use crate::store::{DatabaseOptions, Pooler};

#[derive(Clone)]
pub struct DatabaseConfig {
    /// May hold a password.
    pub url: SecretString,
    /// Several servers, instead of `url`.
    pub urls: Vec<SecretString>,
    /// Whether `url` was given, and not by default.
    url_is_written: bool,
    pub pooler: Pooler,
    pub listen_urls: Vec<SecretString>,
    pub schema: Option<String>,
    /// Whether a start brings the tables up to date.
    pub auto_migrate: bool,
    pub max_connections: u32,
}

impl DatabaseConfig {
    pub(super) fn read(settings: &Settings) -> Self {
        let secrets = |path| settings.list(path).into_iter().map(SecretString::from).collect();
        Self {
            url: settings.text("database.url").into(),
            urls: secrets("database.urls"),
            url_is_written: settings.is_written("database.url"),
            pooler: match settings.text("database.pooler").as_str() {
                "transaction" => Pooler::Transaction,
                _ => Pooler::None,
            },
            listen_urls: secrets("database.listen_url"),
            schema: settings.maybe_text("database.schema"),
            auto_migrate: settings.text("database.migrate") == "auto",
            max_connections: settings.number("database.max_connections"),
        }
    }

    /// What the store is opened with.
    #[must_use]
    pub fn options(&self) -> DatabaseOptions {
        DatabaseOptions {
            url: self.url.clone(),
            urls: self.urls.clone(),
            listen_urls: self.listen_urls.clone(),
            pooler: self.pooler,
            schema: self.schema.clone(),
            max_connections: self.max_connections,
        }
    }

    /// The URLs without their passwords, for people.
    #[must_use]
    pub fn shown_url(&self) -> String {
        let urls = if self.urls.is_empty() { std::slice::from_ref(&self.url) } else { &self.urls };
        shown(urls)
    }

    pub(super) fn check(&self, problems: &mut Vec<Problem>) {
        let first = self.urls.first().map(ExposeSecret::expose_secret);
        if self.url_is_written && first.is_some_and(|first| first != self.url.expose_secret()) {
            problems.push(Problem::new(format!(
                "database.url = {:?} is not the first of database.urls = {:?}: leave database.url out, or put it first",
                shown(std::slice::from_ref(&self.url)),
                shown(&self.urls)
            )));
        }
        let on_sqlite = self.urls.is_empty() && self.url.expose_secret().starts_with("sqlite:");
        if self.schema.is_some() && on_sqlite {
            problems.push(Problem::new(
                "database.schema is set, but SQLite has no schemas: leave it out, or use PostgreSQL",
            ));
        }
        if self.pooler == Pooler::Transaction && on_sqlite {
            problems.push(Problem::new(
                "database.pooler = \"transaction\", but database.url is a SQLite file, before which no pooler can be: leave \
                 it out, or use PostgreSQL",
            ));
        }
        if !self.listen_urls.is_empty() && on_sqlite {
            problems.push(Problem::new(
                "database.listen_url is set, but database.url is a SQLite file, whose nodes do not listen: leave it out, or \
                 use PostgreSQL",
            ));
        }
        if let (Pooler::Transaction, Some(schema)) = (self.pooler, &self.schema) {
            problems.push(Problem::new(format!(
                "database.schema = {schema:?} does not go with database.pooler = \"transaction\", which passes no schema: \
                 leave it out and give it to the role, by ALTER ROLE the_role IN DATABASE the_database SET search_path = \
                 {schema}"
            )));
        }
    }
}

fn shown(urls: &[SecretString]) -> String {
    urls.iter().map(|url| redact_url(url.expose_secret())).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for DatabaseConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseConfig")
            .field("url", &self.shown_url())
            .field("pooler", &self.pooler)
            .field("listen_url", &shown(&self.listen_urls))
            .field("schema", &self.schema)
            .field("auto_migrate", &self.auto_migrate)
            .field("max_connections", &self.max_connections)
            .finish()
    }
}
