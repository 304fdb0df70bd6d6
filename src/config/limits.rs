//! `[limits]`.

use super::problem::Problem;
use super::settings::Settings;

/// Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsConfig {
    pub body: usize,
    pub arguments: usize,
    pub result: usize,
    pub message: usize,
    /// Per caller.
    pub sessions: u32,
    /// Per caller and process.
    pub streams: usize,
    /// Per process.
    pub connections: usize,
}

impl LimitsConfig {
    pub(super) fn read(settings: &Settings) -> Self {
        Self {
            body: settings.number("limits.body"),
            arguments: settings.number("limits.arguments"),
            result: settings.number("limits.result"),
            message: settings.number("limits.message"),
            sessions: settings.number("limits.sessions"),
            streams: settings.number("limits.streams"),
            connections: settings.number("limits.connections"),
        }
    }

    pub(super) fn check(&self, problems: &mut Vec<Problem>) {
        if self.arguments > self.body {
            problems.push(Problem::new(format!(
                "limits.arguments = {} is more than limits.body = {}, which holds them",
                self.arguments, self.body
            )));
        }
    }
}
