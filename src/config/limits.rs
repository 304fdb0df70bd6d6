//! `[limits]`.

use std::time::Duration;

use super::problem::Problem;
use super::settings::Settings;

/// Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsConfig {
    pub body: usize,
    pub arguments: usize,
    pub result: usize,
    pub message: usize,
    pub question: usize,
    pub answer: usize,
    /// Unanswered ones of one task.
    pub open_questions: usize,
    /// Of one attempt.
    pub questions: usize,
    /// Calls that are no tasks and wait for a retry, per caller.
    pub parked_calls: usize,
    /// After so many the question is not asked again.
    pub refused_answers: u32,
    /// Of one caller, on all nodes together.
    pub slots: Option<u64>,
    /// Tasks of one caller that wait for a slot.
    pub queued: u64,
    /// Between two notes of one call.
    pub progress_interval: Duration,
    /// Per caller.
    pub sessions: u32,
    /// Of resources, per session.
    pub subscriptions: u32,
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
            question: settings.number("limits.question"),
            answer: settings.number("limits.answer"),
            open_questions: settings.number("limits.open_questions"),
            questions: settings.number("limits.questions"),
            parked_calls: settings.number("limits.parked_calls"),
            refused_answers: settings.number("limits.refused_answers"),
            slots: settings.maybe_number("limits.slots"),
            queued: settings.number("limits.queued"),
            progress_interval: settings.duration("limits.progress_interval"),
            sessions: settings.number("limits.sessions"),
            subscriptions: settings.number("limits.subscriptions"),
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
