//! `[tasks]`.

use std::time::Duration;

use super::auth::AuthMode;
use super::problem::Problem;
use super::runner::RunnerConfig;
use super::settings::Settings;
use crate::domain::retention::TtlRules;

/// The most that a task may live by default when callers cannot be told apart (AUTH-09).
const ANONYMOUS_TTL: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TasksConfig {
    pub enabled: bool,
    pub ttl: TtlRules,
    /// How long a call may run before it becomes a task, where the service decides that.
    pub grace: Duration,
    pub poll_interval: Duration,
    pub page_size: u32,
    /// Whether requests about a task must have `Mcp-Name`.
    pub name_header_required: bool,
    /// For one answer; `None` leaves it to the run limit.
    pub input_timeout: Option<Duration>,
    /// For the retry of a call that asked by its answer.
    pub round_timeout: Duration,
}

impl TasksConfig {
    pub(super) fn read(settings: &Settings) -> Self {
        Self {
            enabled: settings.flag("tasks.enabled"),
            ttl: TtlRules {
                default: settings.maybe_duration("tasks.default_ttl"),
                min: settings.duration("tasks.min_ttl"),
                max: settings.maybe_duration("tasks.max_ttl"),
                min_retention: settings.duration("tasks.min_retention"),
                hard_lifetime: settings.duration("tasks.hard_lifetime"),
            },
            grace: settings.duration("tasks.grace"),
            poll_interval: settings.duration("tasks.poll_interval"),
            page_size: settings.number("tasks.page_size"),
            name_header_required: settings.flag("tasks.require_name_header"),
            input_timeout: settings.maybe_duration("tasks.input_timeout"),
            round_timeout: settings.duration("tasks.round_timeout"),
        }
    }

    pub(super) fn check(&self, runner: &RunnerConfig, mode: AuthMode, problems: &mut Vec<Problem>) {
        let ttl = &self.ttl;
        let mut refuse = |text: String| problems.push(Problem::new(text));
        if ttl.default.is_some_and(|default| default < ttl.min) {
            refuse(format!(
                "tasks.default_ttl = {} is less than tasks.min_ttl = {}",
                shown(ttl.default),
                shown(Some(ttl.min))
            ));
        }
        if let Some(max) = ttl.max
            && ttl.default.is_none_or(|default| default > max)
        {
            refuse(format!(
                "tasks.default_ttl = {} is more than tasks.max_ttl = {}",
                shown(ttl.default),
                shown(ttl.max)
            ));
        }
        if ttl.max.is_some_and(|max| max < ttl.min) {
            refuse(format!("tasks.min_ttl = {} is more than tasks.max_ttl = {}", shown(Some(ttl.min)), shown(ttl.max)));
        }
        let needed = ttl.max.unwrap_or_default() + runner.hard_run_limit + ttl.min_retention;
        if ttl.hard_lifetime < needed {
            refuse(format!(
                "tasks.hard_lifetime = {} is less than tasks.max_ttl + runner.hard_run_limit + tasks.min_retention = {}",
                shown(Some(ttl.hard_lifetime)),
                shown(Some(needed))
            ));
        }
        if mode == AuthMode::None && ttl.default.is_none_or(|default| default > ANONYMOUS_TTL) {
            refuse(format!(
                "tasks.default_ttl = {} is more than 1h, the most without authentication: lower it, or set auth.mode = \
                 \"token\"",
                shown(ttl.default)
            ));
        }
    }
}

pub(super) fn shown(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "none".to_owned(), |duration| humantime::format_duration(duration).to_string())
}
