//! `[database]`.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

use super::problem::Problem;
use super::redact::redact_url;
use super::settings::Settings;
use crate::store::DatabaseOptions;

#[derive(Clone)]
pub struct DatabaseConfig {
    /// May hold a password.
    pub url: SecretString,
    pub schema: Option<String>,
    /// Whether a start brings the tables up to date.
    pub auto_migrate: bool,
    pub max_connections: u32,
}

impl DatabaseConfig {
    pub(super) fn read(settings: &Settings) -> Self {
        Self {
            url: settings.text("database.url").into(),
            schema: settings.maybe_text("database.schema"),
            auto_migrate: settings.text("database.migrate") == "auto",
            max_connections: settings.number("database.max_connections"),
        }
    }

    /// What the store is opened with.
    #[must_use]
    pub fn options(&self) -> DatabaseOptions {
        DatabaseOptions {
            schema: self.schema.clone(),
            max_connections: self.max_connections,
            ..DatabaseOptions::new(self.url.clone())
        }
    }

    /// The URL without its password, for people.
    #[must_use]
    pub fn shown_url(&self) -> String {
        redact_url(self.url.expose_secret())
    }

    pub(super) fn check(&self, problems: &mut Vec<Problem>) {
        if self.schema.is_some() && self.url.expose_secret().starts_with("sqlite:") {
            problems.push(Problem::new(
                "database.schema is set, but SQLite has no schemas: leave it out, or use PostgreSQL",
            ));
        }
    }
}

impl fmt::Debug for DatabaseConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseConfig")
            .field("url", &self.shown_url())
            .field("schema", &self.schema)
            .field("auto_migrate", &self.auto_migrate)
            .field("max_connections", &self.max_connections)
            .finish()
    }
}
