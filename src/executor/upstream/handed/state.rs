//! What an upstream says of its task.

use std::time::Duration;

use super::MOST_DETAIL;
use crate::domain::json::RawJson;
use crate::domain::text::storable;
use crate::protocol::scan::string_value;
use crate::protocol::splice::member;

/// Where the upstream gives no `pollInterval`, and the bounds of one that it gives.
const POLL: Duration = Duration::from_secs(1);
const SHORTEST_POLL: f64 = 100.0;
const LONGEST_POLL: f64 = 60_000.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor::upstream) enum Status {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Debug, Default, PartialEq)]
pub(in crate::executor::upstream) struct State {
    /// `None`: not known.
    pub(in crate::executor::upstream) status: Option<Status>,
    pub(in crate::executor::upstream) message: Option<String>,
    poll: Option<Duration>,
}

impl State {
    /// Reads a task whose id is known to be this one, a raw text.
    pub(in crate::executor::upstream) fn read(task: &str, id: &RawJson) -> Self {
        let text = |name| member(task, name).and_then(string_value);
        let message = text("statusMessage").map(|message| storable(&without_id(&message, id), MOST_DETAIL));
        Self { status: text("status").and_then(|name| Status::from_name(&name)), message, poll: poll_interval(task) }
    }

    /// Reads the answer to a question about the task with this id. One that leaves the id out is no worse for that.
    ///
    /// # Errors
    /// What it says instead.
    pub(in crate::executor::upstream) fn answer(answer: &str, id: &RawJson) -> Result<Self, String> {
        if member(answer, "taskId").is_some_and(|theirs| !is_same(theirs, id)) {
            return Err("with another task".to_owned());
        }
        let state = Self::read(answer, id);
        if state.status.is_none() {
            let shown = member(answer, "status").and_then(string_value).map(|status| storable(&status, MOST_DETAIL));
            return Err(shown.map_or("without a status".to_owned(), |status| format!("with the status {status:?}")));
        }
        Ok(state)
    }

    pub(in crate::executor::upstream) fn pause(&self) -> Duration {
        self.poll.unwrap_or(POLL)
    }
}

impl Status {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "working" => Self::Working,
            "input_required" => Self::InputRequired,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ => return None,
        })
    }
}

/// The same string, however it is written.
fn is_same(theirs: &str, ours: &RawJson) -> bool {
    let (theirs, ours) = (string_value(theirs), string_value(ours.as_str()));
    theirs.is_some() && theirs == ours
}

/// Within its bounds. It may be any JSON number, also one that is infinite for us.
fn poll_interval(task: &str) -> Option<Duration> {
    // By its name in each era.
    let raw = member(task, "pollIntervalMs").or_else(|| member(task, "pollInterval"))?;
    let ms: f64 = raw.parse().ok()?;
    Some(Duration::from_secs_f64(ms.clamp(SHORTEST_POLL, LONGEST_POLL) / 1000.0))
}

/// A text of the upstream without the id of its task, which is shown to nobody (EXEC-11). An id that is part of a longer word
/// is none.
pub(super) fn without_id(text: &str, id: &RawJson) -> String {
    let Some(id) = string_value(id.as_str()).filter(|id| !id.is_empty()) else { return text.to_owned() };
    let is_word = |char: char| char.is_alphanumeric();
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(&*id) {
        let (before, after) = (&rest[..at], &rest[at + id.len()..]);
        let joins = |outer: Option<char>, inner: Option<char>| outer.is_some_and(is_word) && inner.is_some_and(is_word);
        let last = before.chars().next_back().or_else(|| shown.chars().next_back());
        let is_part = joins(last, id.chars().next()) || joins(after.chars().next(), id.chars().next_back());
        shown.push_str(before);
        shown.push_str(if is_part { &id } else { "…" });
        rest = after;
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_interval_is_bounded() {
        for (interval, expected) in [
            ("1", 100),
            ("-5", 100),
            ("-1e400", 100),
            ("250.5", 250),
            ("1e400", 60_000),
            ("18446744073709551616", 60_000),
            ("\"7\"", 1000),
            ("null", 1000),
        ] {
            for name in ["pollInterval", "pollIntervalMs"] {
                let state = State::read(&format!(r#"{{"{name}":{interval}}}"#), &RawJson::trusted("\"t\""));
                assert_eq!(state.pause().as_millis(), expected, "{interval}");
            }
        }
    }

    #[test]
    fn an_answer_is_of_the_task_that_was_asked_for_and_has_a_status_of_the_protocol() {
        let id = RawJson::trusted(r#""t\u0031""#);
        let status = |answer: &str| State::answer(answer, &id).map(|state| state.status);
        for same in [r#"{"taskId":"t1","status":"working"}"#, r#"{"status":"working"}"#] {
            assert_eq!(status(same), Ok(Some(Status::Working)));
        }
        for other in [r#"{"taskId":"t2","status":"completed"}"#, r#"{"taskId":1,"status":"completed"}"#] {
            assert_eq!(status(other), Err("with another task".to_owned()));
        }
        assert_eq!(status(r#"{"taskId":"t1","status":"done"}"#), Err("with the status \"done\"".to_owned()));
        assert_eq!(status(r#"{"taskId":"t1"}"#), Err("without a status".to_owned()));
    }

    #[test]
    fn a_text_is_shown_without_the_id_of_the_task() {
        for (id, text, shown) in [
            ("task-1", "task-1: Task not found: task-1", "…: Task not found: …"),
            ("t", "what task? t", "what task? …"),
            ("1", "11 of 1 (1)", "11 of … (…)"),
            ("", "nothing", "nothing"),
        ] {
            assert_eq!(without_id(text, &RawJson::trusted(format!("\"{id}\""))), shown);
        }
    }
}
