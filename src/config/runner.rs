//! `[runner]`.

use std::time::Duration;

use super::problem::Problem;
use super::settings::Settings;
use super::tasks::shown;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerConfig {
    pub slots: usize,
    /// Tasks that wait for input without a slot.
    pub asking: usize,
    pub run_limit: Duration,
    pub hard_run_limit: Duration,
    /// The first one included.
    pub attempts: u32,
}

impl RunnerConfig {
    pub(super) fn read(settings: &Settings) -> Self {
        Self {
            slots: settings.number("runner.slots"),
            asking: settings.number("runner.asking"),
            run_limit: settings.duration("runner.run_limit"),
            hard_run_limit: settings.duration("runner.hard_run_limit"),
            attempts: settings.number("runner.attempts"),
        }
    }

    pub(super) fn check(&self, problems: &mut Vec<Problem>) {
        if self.run_limit > self.hard_run_limit {
            problems.push(Problem::new(format!(
                "runner.run_limit = {} is more than runner.hard_run_limit = {}",
                shown(Some(self.run_limit)),
                shown(Some(self.hard_run_limit))
            )));
        }
    }
}
