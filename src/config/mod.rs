//! Configuration: the only place that reads the environment and configuration files.
//!
//! The file (`taskhold.toml` in the working directory, or what `--config` names), `./.env`, the environment and flags,
//! in that rising order (OPS-02). [`keys`] is the one list of keys; each section has its file.

mod auth;
mod database;
pub mod document;
pub mod keys;
mod limits;
mod oauth;
mod problem;
mod runner;
mod server;
mod settings;
mod sources;
mod tasks;
mod tenants;
mod upstreams;
mod value;

use std::collections::BTreeMap;

pub use crate::domain::redact::redact_url;
pub use auth::{AuthConfig, AuthMode};
pub use database::DatabaseConfig;
pub use limits::LimitsConfig;
pub use oauth::OauthConfig;
pub use problem::{ConfigError, Problem};
pub use runner::RunnerConfig;
pub use server::ServerConfig;
pub use sources::{DEFAULT_FILE, Overrides, Sources};
pub use tasks::TasksConfig;
pub use tenants::TenantConfig;
pub use upstreams::{ToolConfig, UpstreamConfig, find_program, variables};

/// Everything that can be configured, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// What is logged, as [`tracing_subscriber::EnvFilter`] reads it.
    pub log: String,
    pub server: ServerConfig,
    pub database: DatabaseConfig,
    pub auth: AuthConfig,
    pub oauth: OauthConfig,
    pub tasks: TasksConfig,
    pub runner: RunnerConfig,
    pub limits: LimitsConfig,
    /// In their order; names are unique.
    pub upstreams: Vec<UpstreamConfig>,
    pub tenants: BTreeMap<String, TenantConfig>,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// All that is wrong, each with its key, value, place and what is allowed.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let layers = sources::Layers::gather(sources, &mut problems);
        let settings = settings::Settings::read(keys::KEYS, "", &layers.values, &mut problems);
        let runner = RunnerConfig::read(&settings);
        let config = Self {
            log: settings.text("log"),
            server: ServerConfig::read(&settings),
            database: DatabaseConfig::read(&settings),
            auth: AuthConfig::read(&settings),
            oauth: OauthConfig::read(&settings),
            tasks: TasksConfig::read(&settings),
            limits: LimitsConfig::read(&settings),
            upstreams: upstreams::read(&layers, &runner, &mut problems),
            tenants: tenants::read(&layers, &mut problems),
            runner,
        };
        // Keys that do not fit each other are only worth a word when each is right by itself.
        if problems.is_empty() {
            config.check(&mut problems);
        }
        ConfigError::unless_empty(problems).map(|()| config)
    }

    fn check(&self, problems: &mut Vec<Problem>) {
        self.server.check(problems);
        self.database.check(problems);
        self.auth.check(&self.server, problems);
        self.oauth.check(self.auth.mode, &self.server, problems);
        self.runner.check(problems);
        self.tasks.check(&self.runner, self.auth.mode, problems);
        self.limits.check(problems);
    }
}

#[cfg(test)]
mod tests;
