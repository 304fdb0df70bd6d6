//! `[auth]`.

use super::problem::Problem;
use super::server::ServerConfig;
use super::settings::Settings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    Token,
    Oauth,
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    pub mode: AuthMode,
    pub allow_remote_without_auth: bool,
}

impl AuthConfig {
    pub(super) fn read(settings: &Settings) -> Self {
        let mode = match settings.text("auth.mode").as_str() {
            "none" => AuthMode::None,
            "oauth" => AuthMode::Oauth,
            _ => AuthMode::Token,
        };
        Self { mode, allow_remote_without_auth: settings.flag("auth.allow_remote_without_auth") }
    }

    pub(super) fn check(&self, server: &ServerConfig, problems: &mut Vec<Problem>) {
        if self.mode == AuthMode::None && !server.listen.ip().is_loopback() && !self.allow_remote_without_auth {
            problems.push(Problem::new(format!(
                "server.listen = {} is reached by other machines and auth.mode = \"none\" lets everybody in: listen on \
                 127.0.0.1, set auth.mode = \"token\", or set auth.allow_remote_without_auth = true",
                server.listen
            )));
        }
    }
}
