//! `[server]`.

use std::net::SocketAddr;
use std::time::Duration;

use super::problem::Problem;
use super::settings::Settings;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    /// Without a slash at its end.
    pub public_url: Option<String>,
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    pub drain: Duration,
    pub drain_delay: Duration,
}

impl ServerConfig {
    pub(super) fn read(settings: &Settings) -> Self {
        Self {
            listen: settings.address("server.listen"),
            public_url: settings.maybe_text("server.public_url").map(|url| url.trim_end_matches('/').to_owned()),
            allowed_hosts: settings.list("server.allowed_hosts"),
            allowed_origins: settings.list("server.allowed_origins"),
            drain: settings.duration("server.drain"),
            drain_delay: settings.duration("server.drain_delay"),
        }
    }

    pub(super) fn check(&self, problems: &mut Vec<Problem>) {
        for host in &self.allowed_hosts {
            if host.contains(['/', ' ', '@', '*']) {
                problems.push(Problem::new(format!(
                    "server.allowed_hosts has {host:?}: expected a host name with or without a port, such as mcp.example.com"
                )));
            }
        }
    }
}
