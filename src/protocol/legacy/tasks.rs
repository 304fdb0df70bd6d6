//! `tasks/get`, `tasks/result`, `tasks/list`, `tasks/cancel`, and the answer to a call that became a task.

use crate::domain::clock::Timestamp;
use crate::domain::ids::TaskId;
use crate::domain::json::RawJson;
use crate::domain::outcome::{Ending, Outcome};
use crate::domain::retention::TtlRules;
use crate::domain::task::{Status, Task};
use crate::protocol::jsonrpc::{ErrorObject, TASK_CANCELLED};
use crate::protocol::scan::string_value;
use crate::protocol::splice::quoted;

use super::tools::{Answer, shown_result};
use super::{CREATED_TASK, IMMEDIATE_RESPONSE, InvalidParams, RELATED_TASK, param};

/// The `taskId` of get, result and cancel. Related-task metadata says nothing here (TASK-09).
///
/// `Ok(None)` is text that cannot be an id of ours: to the caller the same as an unknown one (TASK-11).
///
/// # Errors
/// If it is missing or no string (TASK-25).
pub fn task_id(params: Option<&RawJson>) -> Result<Option<TaskId>, InvalidParams> {
    let text =
        param(params, "taskId").and_then(string_value).ok_or_else(|| InvalidParams::new("taskId must be a string"))?;
    Ok(text.parse().ok())
}

/// The `cursor` of a list.
///
/// # Errors
/// If it is there and no string (TASK-25).
pub fn cursor(params: Option<&RawJson>) -> Result<Option<String>, InvalidParams> {
    param(params, "cursor")
        .map(|raw| string_value(raw).map(Into::into).ok_or_else(|| InvalidParams::new("cursor must be a string")))
        .transpose()
}

/// How legacy readers see a status: a tool's error is a failure (LIFE-12).
#[must_use]
pub const fn status_name(status: Status) -> &'static str {
    match status {
        Status::Working => "working",
        Status::InputRequired => "input_required",
        Status::Ended(Ending::Completed) => "completed",
        Status::Ended(Ending::ToolError | Ending::Failed) => "failed",
        Status::Ended(Ending::Cancelled) => "cancelled",
    }
}

/// The task object: the whole result of get and cancel (TASK-05, TASK-10). `now` and `rules` give the TTL that it shows.
#[must_use]
pub fn task_object(task: &Task, now: Timestamp, rules: &TtlRules) -> RawJson {
    let message = task.message.as_ref().map(|text| format!(r#""statusMessage":{},"#, quoted(text)));
    let ttl = task.shown_ttl(now, rules).milliseconds().map_or_else(|| "null".to_owned(), |ms| ms.to_string());
    RawJson::trusted(format!(
        r#"{{"taskId":"{}","status":"{}",{}"createdAt":"{}","lastUpdatedAt":"{}","ttl":{ttl},"pollInterval":{}}}"#,
        task.id,
        status_name(task.status),
        message.unwrap_or_default(),
        task.created.to_rfc3339(),
        task.updated.to_rfc3339(),
        task.poll_interval_ms,
    ))
}

/// The answer to a call that became a task (TASK-01), with what some clients need beside `task` (TASK-27).
#[must_use]
pub fn create_result(task: &Task, now: Timestamp, rules: &TtlRules, immediate_response: Option<&str>) -> RawJson {
    let immediate = immediate_response.map(|text| format!(r#","{IMMEDIATE_RESPONSE}":{}"#, quoted(text)));
    RawJson::trusted(format!(
        r#"{{"task":{},"content":[],"_meta":{{"{RELATED_TASK}":{{"taskId":"{id}"}},"{CREATED_TASK}":{{"taskId":"{id}","status":"{}"}}{}}}}}"#,
        task_object(task, now, rules).as_str(),
        status_name(task.status),
        immediate.unwrap_or_default(),
        id = task.id,
    ))
}

/// One page of `tasks/list`; `next` is there exactly if more tasks are (TASK-17).
#[must_use]
pub fn list_result(tasks: &[Task], next: Option<&str>, now: Timestamp, rules: &TtlRules) -> RawJson {
    let mut text = String::from(r#"{"tasks":["#);
    for (at, task) in tasks.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(task_object(task, now, rules).as_str());
    }
    text.push(']');
    if let Some(next) = next {
        text.push_str(r#","nextCursor":"#);
        text.push_str(&quoted(next));
    }
    text.push('}');
    RawJson::trusted(text)
}

/// The answer of `tasks/result` (TASK-06, TASK-08): what the plain call would have got, with our related-task metadata
/// merged in. A cancelled task has no result (TASK-15).
#[must_use]
pub fn outcome_answer(task: TaskId, outcome: &Outcome) -> Answer {
    match outcome {
        Outcome::Result { json, .. } => {
            let related = format!(r#"{{"taskId":"{task}"}}"#);
            Answer::Result(shown_result(json, &[(RELATED_TASK, &related)]))
        }
        Outcome::Error { json } => Answer::error(json.clone()),
        Outcome::Cancelled => {
            let data = RawJson::trusted(format!(r#"{{"taskId":"{task}"}}"#));
            Answer::error(ErrorObject::new(TASK_CANCELLED, "the task was cancelled").with_data(data).to_raw())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::ids::ContextId;
    use crate::domain::retention::Ttl;

    const NOW: Timestamp = Timestamp::from_micros(1_796_000_001_000_000);

    fn rules() -> TtlRules {
        TtlRules {
            default: None,
            min: Duration::from_secs(10),
            max: None,
            min_retention: Duration::from_secs(600),
            hard_lifetime: Duration::from_secs(90_000),
        }
    }

    fn task(status: Status) -> Task {
        Task {
            id: "786512e2-9e0d-44bd-8f29-789f320fe840".parse().unwrap(),
            context: ContextId::new(),
            tool: "wait".to_owned(),
            status,
            message: Some("half \"done\"".to_owned()),
            created: Timestamp::from_micros(1_796_000_000_000_001),
            updated: NOW,
            granted: Ttl::Milliseconds(60_000),
            poll_interval_ms: 1000,
            expires: None,
            session: None,
            progress_token: None,
            progress: None,
            progress_at: Timestamp::from_micros(1_796_000_000_000_001),
        }
    }

    // req: LIFE-08, LIFE-09, TASK-05, TASK-24
    #[test]
    fn a_task_object_has_its_fields_in_a_fixed_order() {
        assert_eq!(
            task_object(&task(Status::Working), NOW, &rules()).as_str(),
            r#"{"taskId":"786512e2-9e0d-44bd-8f29-789f320fe840","status":"working","statusMessage":"half \"done\"","createdAt":"2026-11-30T00:53:20.000001Z","lastUpdatedAt":"2026-11-30T00:53:21.000000Z","ttl":60000,"pollInterval":1000}"#
        );
        let endless = Task { granted: Ttl::Unlimited, message: None, ..task(Status::InputRequired) };
        let text = task_object(&endless, NOW, &rules());
        assert!(text.as_str().contains(r#""status":"input_required","createdAt""#), "{}", text.as_str());
        assert!(text.as_str().contains(r#""ttl":null"#), "{}", text.as_str());
    }

    #[test]
    fn statuses_have_their_names() {
        let names = Status::ALL.map(status_name);
        assert_eq!(names, ["working", "input_required", "completed", "failed", "failed", "cancelled"]);
    }

    // req: TASK-01, TASK-04, TASK-27
    #[test]
    fn a_create_result_serves_every_client() {
        let result = create_result(&task(Status::Working), NOW, &rules(), Some("started"));
        let result: serde_json::Value = serde_json::from_str(result.as_str()).unwrap();
        let id = "786512e2-9e0d-44bd-8f29-789f320fe840";
        assert_eq!(result["task"]["taskId"], id);
        assert_eq!(result["content"], serde_json::json!([]));
        assert_eq!(
            result["_meta"],
            serde_json::json!({
                "io.modelcontextprotocol/related-task": {"taskId": id},
                "modelcontextprotocol.io/task": {"taskId": id, "status": "working"},
                "io.modelcontextprotocol/model-immediate-response": "started",
            })
        );
        let plain = create_result(&task(Status::Working), NOW, &rules(), None);
        assert!(!plain.as_str().contains(IMMEDIATE_RESPONSE));
    }

    // req: TASK-10, TASK-17
    #[test]
    fn a_page_has_a_cursor_only_if_there_is_more() {
        assert_eq!(list_result(&[], None, NOW, &rules()).as_str(), r#"{"tasks":[]}"#);
        let page = list_result(&[task(Status::Working), task(Status::Working)], Some("n\"x"), NOW, &rules());
        let page: serde_json::Value = serde_json::from_str(page.as_str()).unwrap();
        assert_eq!((page["tasks"].as_array().unwrap().len(), page["nextCursor"].as_str()), (2, Some("n\"x")));
        assert_eq!(page["tasks"][0].get("_meta"), None);
    }

    // req: TASK-08, LIFE-11
    #[test]
    fn related_task_metadata_is_merged_into_a_result() {
        let id = task(Status::Working).id;
        let answer =
            |json: &str| match outcome_answer(id, &Outcome::Result { json: RawJson::trusted(json), is_error: false }) {
                Answer::Result(json) => json.to_text(),
                Answer::Error(_) => panic!("a result stays a result"),
            };
        assert_eq!(
            answer(
                r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"k":1e400},"resultType":"complete","content":[]}"#
            ),
            format!(r#"{{"_meta":{{"k":1e400,"{RELATED_TASK}":{{"taskId":"{id}"}}}},"content":[]}}"#)
        );
        assert_eq!(answer(r#"{"a":1.0}"#), format!(r#"{{"a":1.0,"_meta":{{"{RELATED_TASK}":{{"taskId":"{id}"}}}}}}"#));
    }

    // req: TASK-06, TASK-15
    #[test]
    fn errors_and_cancellations_are_errors() {
        let id = task(Status::Working).id;
        let error = RawJson::trusted(r#"{"code":-32011,"message":"m","data":{"n":1.0}}"#);
        assert_eq!(outcome_answer(id, &Outcome::Error { json: error.clone() }), Answer::error(error));
        let expected = format!(r#"{{"code":-32800,"message":"the task was cancelled","data":{{"taskId":"{id}"}}}}"#);
        assert_eq!(outcome_answer(id, &Outcome::Cancelled), Answer::error(RawJson::trusted(expected)));
    }

    // req: TASK-09, TASK-25
    #[test]
    fn the_task_id_parameter_decides() {
        let id = TaskId::new();
        let parse = |text: String| task_id(Some(&RawJson::trusted(text)));
        let noise = format!(r#""task":{{}},"_meta":{{"{RELATED_TASK}":{{"taskId":"{}"}}}}"#, TaskId::new());
        assert_eq!(parse(format!(r#"{{{noise},"taskId":"{id}"}}"#)), Ok(Some(id)));
        assert_eq!(parse(r#"{"taskId":""}"#.to_owned()), Ok(None));
        assert_eq!(parse(r#"{"taskId":"\u0000"}"#.to_owned()), Ok(None));
        for bad in [format!("{{{noise}}}"), r#"{"taskId":7}"#.to_owned(), r#"{"taskId":null}"#.to_owned()] {
            assert!(parse(bad).unwrap_err().0.contains("taskId"));
        }
        assert!(task_id(None).unwrap_err().0.contains("taskId"));
        assert_eq!(cursor(None), Ok(None));
        assert_eq!(cursor(Some(&RawJson::trusted(r#"{"cursor":"a"}"#))), Ok(Some("a".to_owned())));
        assert!(cursor(Some(&RawJson::trusted(r#"{"cursor":1}"#))).unwrap_err().0.contains("cursor"));
    }
}
