//! What goes to a client beside answers: notifications, and requests of ours.
//!
//! Whatever an upstream sent is carried as it arrived, but for the members that are ours: the client's own progress token,
//! and related-task metadata with our id (NOTE-13). An upstream's id never passes.

use std::time::Duration;

use crate::domain::clock::Timestamp;
use crate::domain::ids::TaskId;
use crate::domain::input::{InputKind, Question};
use crate::domain::json::RawJson;
use crate::domain::retention::TtlRules;
use crate::domain::task::Task;
use crate::protocol::jsonrpc::{Id, write_notification, write_request};
use crate::protocol::splice::{quoted, replace_member, set_members, set_meta};

use super::tasks::task_object;
use super::tools::FOREIGN_META;
use super::{RELATED_TASK, Revision, SERVER_INFO};

/// `notifications/tasks/status` with the whole task, and no related-task metadata (NOTE-01, NOTE-02).
#[must_use]
pub fn task_status(task: &Task, now: Timestamp, rules: &TtlRules) -> String {
    write_notification("notifications/tasks/status", Some(&task_object(task, now, rules)))
}

/// `notifications/progress` under the client's own token (NOTE-03).
#[must_use]
pub fn progress(token: &RawJson, params: &RawJson, task: Option<TaskId>) -> String {
    let params = replace_member(params, "progressToken", token.as_str());
    write_notification("notifications/progress", Some(&related(&params, task)))
}

/// `notifications/message`.
#[must_use]
pub fn log(params: &RawJson, task: Option<TaskId>) -> String {
    write_notification("notifications/message", Some(&related(params, task)))
}

/// `notifications/elicitation/complete`.
#[must_use]
pub fn elicitation_complete(params: &RawJson, task: Option<TaskId>) -> String {
    write_notification("notifications/elicitation/complete", Some(&related(params, task)))
}

/// `notifications/cancelled`: a question that the client holds is not open any more (INPUT-12).
#[must_use]
pub fn cancelled(id: &str, reason: &str, task: Option<TaskId>) -> String {
    let params = format!(r#"{{"requestId":{},"reason":{}}}"#, quoted(id), quoted(reason));
    write_notification("notifications/cancelled", Some(&related(&RawJson::trusted(params), task)))
}

/// A question as a request under this id (INPUT-02, INPUT-15); as one that the client may run as a task of its own and keep
/// for `as_task` (CAP-08). Before 2025-11-25 there was no `mode` (EXEC-20).
#[must_use]
pub fn question(
    revision: Revision,
    id: &str,
    question: &Question,
    task: Option<TaskId>,
    as_task: Option<Duration>,
) -> String {
    let params = match (&question.params, task) {
        (Some(params), task) => Some(related(params, task)),
        (None, Some(_)) => Some(related(&RawJson::trusted("{}"), task)),
        (None, None) => None,
    };
    let params = match as_task {
        Some(ttl) => {
            let params = params.unwrap_or_else(|| RawJson::trusted("{}"));
            Some(replace_member(&params, "task", &format!(r#"{{"ttl":{}}}"#, ttl.as_millis())))
        }
        None => params,
    };
    let has_no_mode = question.kind == InputKind::Elicitation && revision < Revision::V2025_11_25;
    let params = params.map(|params| if has_no_mode { set_members(&params, &[], &["mode"]) } else { params });
    request(id, question.kind.method(), params.as_ref())
}

/// A request about a client's own task, which `client_task` names as the client wrote it. No related-task metadata: the id is
/// in the parameters.
#[must_use]
pub fn client_task(id: &str, method: &str, client_task: &RawJson) -> String {
    request(id, method, Some(&RawJson::trusted(format!(r#"{{"taskId":{}}}"#, client_task.as_str()))))
}

fn request(id: &str, method: &str, params: Option<&RawJson>) -> String {
    let Some(id) = Id::from_raw(&quoted(id)) else { unreachable!("a quoted text is an id") };
    write_request(&id, method, params)
}

/// A list of which clients are told that it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    Tools,
    Prompts,
    Resources,
}

impl List {
    /// The notification.
    #[must_use]
    pub const fn changed(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
        }
    }
}

#[must_use]
pub fn list_changed(list: List) -> String {
    write_notification(list.changed(), None)
}

/// `notifications/resources/updated`.
#[must_use]
pub fn resource_updated(params: &RawJson) -> String {
    write_notification("notifications/resources/updated", Some(&related(params, None)))
}

/// Related-task metadata of our task, or none.
fn related(params: &RawJson, task: Option<TaskId>) -> RawJson {
    match task {
        Some(task) => set_meta(params, &[(RELATED_TASK, &format!(r#"{{"taskId":"{task}"}}"#))], &[SERVER_INFO]),
        None => set_meta(params, &[], &FOREIGN_META),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ContextId;
    use crate::domain::retention::Ttl;
    use crate::domain::task::Status;

    const THEIRS: &str = r#""io.modelcontextprotocol/related-task":{"taskId":"theirs"}"#;

    fn question(id: &str, asked: &Question, task: Option<TaskId>, as_task: Option<Duration>) -> String {
        super::question(Revision::V2025_11_25, id, asked, task, as_task)
    }

    fn params_of(message: &str) -> String {
        crate::protocol::splice::member(message, "params").unwrap().to_owned()
    }

    // req: NOTE-02
    #[test]
    fn a_status_is_the_whole_task_without_metadata() {
        let rules = TtlRules {
            default: None,
            min: Duration::from_secs(10),
            max: None,
            min_retention: Duration::from_secs(600),
            hard_lifetime: Duration::from_secs(26 * 3600),
        };
        let now = Timestamp::from_micros(1_796_000_001_000_000);
        let task = Task {
            session: None,
            progress_token: None,
            progress: None,
            progress_at: Timestamp::from_micros(1_796_000_000_000_001),
            id: TaskId::new(),
            context: ContextId::new(),
            tool: "t".to_owned(),
            status: Status::Working,
            message: Some("half".to_owned()),
            created: now,
            updated: now,
            granted: Ttl::Milliseconds(60_000),
            poll_interval_ms: 1000,
            expires: None,
        };
        let message = task_status(&task, now, &rules);
        assert_eq!(
            message,
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{}}}"#,
                task_object(&task, now, &rules).as_str()
            )
        );
        assert!(!message.contains("_meta"), "{message}");
    }

    // req: NOTE-13, NOTE-03 (of NOTE-03 the legacy half)
    #[test]
    fn progress_goes_under_the_clients_token_and_our_id() {
        let task = TaskId::new();
        let params = RawJson::trusted(format!(
            r#"{{"progressToken":7,"progress":1.0,"total":1e400,"x":"\ud800","_meta":{{{THEIRS},"k":1}}}}"#
        ));
        assert_eq!(
            params_of(&progress(&RawJson::trusted(r#""mine""#), &params, Some(task))),
            format!(
                r#"{{"progressToken":"mine","progress":1.0,"total":1e400,"x":"\ud800","_meta":{{"k":1,"{RELATED_TASK}":{{"taskId":"{task}"}}}}}}"#
            )
        );
        assert_eq!(
            params_of(&progress(&RawJson::trusted("0"), &params, None)),
            r#"{"progressToken":0,"progress":1.0,"total":1e400,"x":"\ud800","_meta":{"k":1}}"#
        );
    }

    // req: NOTE-13
    #[test]
    fn whatever_is_about_a_task_names_ours_and_never_theirs() {
        let task = TaskId::new();
        let theirs = RawJson::trusted(format!(r#"{{"a":1.0,"_meta":{{{THEIRS}}}}}"#));
        let asked = Question { kind: InputKind::Elicitation, params: Some(theirs.clone()) };
        let bare = Question { kind: InputKind::Roots, params: None };
        let about = |task| {
            [
                log(&theirs, task),
                elicitation_complete(&theirs, task),
                cancelled("id", "a \"reason\"", task),
                question("id", &asked, task, None),
                question("id", &bare, task, None),
                progress(&RawJson::trusted("1"), &theirs, task),
            ]
        };
        let ours = format!(r#""{RELATED_TASK}":{{"taskId":"{task}"}}"#);
        for message in about(Some(task)) {
            assert!(message.contains(&ours) && !message.contains("theirs"), "{message}");
            assert_eq!(message.matches(RELATED_TASK).count(), 1, "{message}");
        }
        for message in about(None) {
            assert!(!message.contains(RELATED_TASK), "{message}");
        }
        assert!(!resource_updated(&theirs).contains(RELATED_TASK));
    }

    // req: CAP-08
    #[test]
    fn a_question_that_goes_as_a_task_says_how_long() {
        let task = TaskId::new();
        let asked = Question { kind: InputKind::Sampling, params: Some(RawJson::trusted(r#"{"maxTokens":1.0}"#)) };
        let ttl = Some(Duration::from_millis(1500));
        assert_eq!(
            params_of(&question("id", &asked, Some(task), ttl)),
            format!(r#"{{"maxTokens":1.0,"_meta":{{"{RELATED_TASK}":{{"taskId":"{task}"}}}},"task":{{"ttl":1500}}}}"#)
        );
        assert!(!question("id", &asked, Some(task), None).contains(r#""task":"#));
        assert_eq!(
            client_task("id", "tasks/get", &RawJson::trusted(r#""a\ud800""#)),
            r#"{"jsonrpc":"2.0","id":"id","method":"tasks/get","params":{"taskId":"a\ud800"}}"#
        );
    }

    #[test]
    fn a_question_names_its_mode_only_where_there_are_modes() {
        let form = r#"{"mode":"form","message":"mode","requestedSchema":{"type":"object","properties":{"mode":{}}}}"#;
        let asked = Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(form)) };
        let params = |revision| params_of(&super::question(revision, "id", &asked, None, None));
        assert_eq!(params(Revision::V2025_11_25), form);
        assert_eq!(params(Revision::V2025_06_18), form.replace(r#""mode":"form","#, ""));
    }

    // req: INPUT-15
    #[test]
    fn a_question_is_asked_as_it_arrived() {
        let asked = Question {
            kind: InputKind::Sampling,
            params: Some(RawJson::trusted(r#"{"maxTokens":1.0,"messages":[{"x":1e400}]}"#)),
        };
        assert_eq!(
            question("c-1", &asked, None, None),
            r#"{"jsonrpc":"2.0","id":"c-1","method":"sampling/createMessage","params":{"maxTokens":1.0,"messages":[{"x":1e400}]}}"#
        );
        let bare = Question { kind: InputKind::Roots, params: None };
        assert_eq!(question("a", &bare, None, None), r#"{"jsonrpc":"2.0","id":"a","method":"roots/list"}"#);
    }
}
