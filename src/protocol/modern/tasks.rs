//! The extension for tasks: `tasks/get`, `tasks/update`, `tasks/cancel`, and the answer to a call that became a task.

use crate::domain::clock::Timestamp;
use crate::domain::ids::InputId;
use crate::domain::input::Question;
use crate::domain::json::RawJson;
use crate::domain::outcome::{Ending, Outcome};
use crate::domain::retention::TtlRules;
use crate::domain::task::{Status, Task};
use crate::protocol::splice::quoted;

use super::rounds::input_requests;
use super::{errors, results};

/// How readers of this era see a status: a tool's error is a result like others (EXT-06).
#[must_use]
pub const fn status_name(status: Status) -> &'static str {
    match status {
        Status::Working => "working",
        Status::InputRequired => "input_required",
        Status::Ended(Ending::Completed | Ending::ToolError) => "completed",
        Status::Ended(Ending::Failed) => "failed",
        Status::Ended(Ending::Cancelled) => "cancelled",
    }
}

/// The answer to a call that became a task, the only result of this type (EXT-03). `now` and `rules` give the TTL that it
/// shows.
#[must_use]
pub fn create_result(task: &Task, now: Timestamp, rules: &TtlRules) -> RawJson {
    results::of_type("task", &RawJson::trusted(format!("{{{}}}", task_members(task, now, rules))))
}

/// The answer of `tasks/get`: the task with its result or its error, or with what it waits for (EXT-05, INPUT-08).
#[must_use]
pub fn get_result<'a>(
    task: &Task,
    outcome: Option<&Outcome>,
    waiting: impl Iterator<Item = (InputId, &'a Question)>,
    now: Timestamp,
    rules: &TtlRules,
) -> RawJson {
    results::complete(&detailed(task, outcome, waiting, now, rules))
}

/// A task with its result or its error, or with what it waits for, as a message of its own shows it (NOTE-05).
#[must_use]
pub fn detailed<'a>(
    task: &Task,
    outcome: Option<&Outcome>,
    waiting: impl Iterator<Item = (InputId, &'a Question)>,
    now: Timestamp,
    rules: &TtlRules,
) -> RawJson {
    let more = match (task.status, outcome) {
        (Status::InputRequired, _) => {
            let waiting = waiting.map(|(key, question)| (key.to_string().into(), question));
            format!(r#","inputRequests":{}"#, input_requests(waiting))
        }
        // As the plain call would have been answered.
        (_, Some(Outcome::Result { json, .. })) => format!(r#","result":{}"#, results::complete(json).as_str()),
        (_, Some(Outcome::Error { json })) => format!(r#","error":{}"#, errors::relayed(json).as_str()),
        (_, Some(Outcome::Cancelled) | None) => String::new(),
    };
    RawJson::trusted(format!("{{{}{more}}}", task_members(task, now, rules)))
}

/// The answer of `tasks/update` and `tasks/cancel` (EXT-07, INPUT-09).
#[must_use]
pub fn acknowledgement() -> RawJson {
    results::complete(&RawJson::trusted("{}"))
}

fn task_members(task: &Task, now: Timestamp, rules: &TtlRules) -> String {
    let message = task.message.as_ref().map(|text| format!(r#""statusMessage":{},"#, quoted(text)));
    let ttl = task.shown_ttl(now, rules).milliseconds().map_or_else(|| "null".to_owned(), |ms| ms.to_string());
    format!(
        r#""taskId":"{}","status":"{}",{}"createdAt":"{}","lastUpdatedAt":"{}","ttlMs":{ttl},"pollIntervalMs":{}"#,
        task.id,
        status_name(task.status),
        message.unwrap_or_default(),
        task.created.to_rfc3339(),
        task.updated.to_rfc3339(),
        task.poll_interval_ms,
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::domain::ids::ContextId;
    use crate::domain::input::InputKind;
    use crate::domain::retention::Ttl;
    use crate::protocol::legacy::{RELATED_TASK, SERVER_INFO};

    const NOW: Timestamp = Timestamp::from_micros(1_796_000_001_000_000);
    const ID: &str = "786512e2-9e0d-44bd-8f29-789f320fe840";

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
            id: ID.parse().unwrap(),
            context: ContextId::new(),
            tool: "wait".to_owned(),
            status,
            message: Some("half \"done\"".to_owned()),
            created: Timestamp::from_micros(1_796_000_000_000_001),
            updated: NOW,
            granted: Ttl::Milliseconds(60_000),
            poll_interval_ms: 1000,
            expires: Some(Timestamp::from_micros(1_796_000_600_000_001)),
            session: None,
            progress_token: None,
            progress: None,
            progress_at: Timestamp::from_micros(1_796_000_000_000_001),
        }
    }

    fn raw(text: &str) -> RawJson {
        RawJson::trusted(text)
    }

    fn got(status: Status, outcome: Option<&Outcome>) -> String {
        get_result(&task(status), outcome, std::iter::empty(), NOW, &rules()).as_str().to_owned()
    }

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    // req: EXT-03, LIFE-08, LIFE-09
    #[test]
    fn a_create_result_is_flat() {
        let made = create_result(&task(Status::Working), NOW, &rules());
        let members = format!(
            r#"{{"taskId":"{ID}","status":"working","statusMessage":"half \"done\"","createdAt":"2026-11-30T00:53:20.000001Z","lastUpdatedAt":"2026-11-30T00:53:21.000000Z","ttlMs":60000,"pollIntervalMs":1000,"resultType":"task","#
        );
        assert!(made.as_str().starts_with(&members), "{}", made.as_str());
        let made = value(made.as_str());
        assert_eq!(made["_meta"].as_object().unwrap().keys().collect::<Vec<_>>(), [SERVER_INFO]);
        let endless = Task { granted: Ttl::Unlimited, message: None, ..task(Status::Working) };
        let made = value(create_result(&endless, NOW, &rules()).as_str());
        assert_eq!((&made["ttlMs"], made.get("statusMessage")), (&Value::Null, None));
    }

    // req: EXT-05, EXT-06, LIFE-11, LIFE-12
    #[test]
    fn a_result_is_inlined_as_it_arrived() {
        let theirs = format!(
            r#"{{"content":[{{"n":1.0}}],"isError":true,"structuredContent":[1e400],"_meta":{{"{RELATED_TASK}":{{"taskId":"theirs"}},"a":"\ud800"}}}}"#
        );
        let failed = Outcome::Result { json: raw(&theirs), is_error: true };
        let text = got(Status::Ended(Ending::ToolError), Some(&failed));
        let inlined = format!(
            r#","result":{{"content":[{{"n":1.0}}],"isError":true,"structuredContent":[1e400],"_meta":{{"a":"\ud800","{SERVER_INFO}":{}}},"resultType":"complete"}},"resultType":"complete","_meta":"#,
            results::OURS
        );
        assert!(text.contains(&inlined) && text.contains(r#""status":"completed""#), "{text}");
        assert!(!text.contains(RELATED_TASK) && !text.contains(r#""error""#), "{text}");
        assert!(text.contains(r#""ttlMs":600000,"#), "{text}");
    }

    // req: EXT-05, EXT-06
    #[test]
    fn an_error_is_inlined_as_this_era_tells_it() {
        let of = |error: &str| value(&got(Status::Ended(Ending::Failed), Some(&Outcome::Error { json: raw(error) })));
        let plain = of(r#"{"code":-32011,"message":"m","data":{"x":1}}"#);
        assert_eq!((&plain["status"], plain.get("result")), (&json!("failed"), None));
        assert_eq!(plain["error"], json!({ "code": -32011, "message": "m", "data": { "x": 1 } }));
        for code in [-32042, -32021] {
            let error = json!({ "code": code, "message": "theirs" });
            let told = of(&error.to_string());
            assert_eq!((&told["error"]["code"], &told["error"]["data"]["error"]), (&json!(-32603), &error));
        }
    }

    // req: EXT-05
    #[test]
    fn what_has_no_outcome_shows_none() {
        for (status, name, outcome) in [
            (Status::Working, "working", None),
            (Status::Ended(Ending::Cancelled), "cancelled", Some(&Outcome::Cancelled)),
        ] {
            let shown = value(&got(status, outcome));
            assert_eq!((&shown["status"], &shown["resultType"]), (&json!(name), &json!("complete")));
            for absent in ["result", "error", "inputRequests"] {
                assert_eq!(shown.get(absent), None, "{name} {absent}");
            }
        }
        let ack = value(acknowledgement().as_str());
        assert_eq!(ack.as_object().unwrap().keys().collect::<Vec<_>>(), ["_meta", "resultType"]);
        assert_eq!(ack["resultType"], "complete");
    }

    // req: INPUT-08, EXEC-20 (ids of elicitations)
    #[test]
    fn every_open_question_is_shown_under_its_key() {
        let keys = [InputId::new(), InputId::new(), InputId::new()];
        let questions = [
            (InputKind::Elicitation, Some(r#"{"message":"m","mode":"url","elicitationId":"1","url":"x:","n":1e400}"#)),
            (InputKind::Sampling, Some(r#"{"messages":[],"elicitationId":"kept"}"#)),
            (InputKind::Roots, None),
        ]
        .map(|(kind, params)| Question { kind, params: params.map(raw) });
        let waiting = keys.into_iter().zip(&questions);
        let text = get_result(&task(Status::InputRequired), None, waiting, NOW, &rules());
        let expected = format!(
            r#","inputRequests":{{"{}":{{"method":"elicitation/create","params":{{"message":"m","mode":"url","url":"x:","n":1e400}}}},"{}":{{"method":"sampling/createMessage","params":{{"messages":[],"elicitationId":"kept"}}}},"{}":{{"method":"roots/list"}}}},"#,
            keys[0], keys[1], keys[2]
        );
        assert!(text.as_str().contains(&expected), "{}", text.as_str());
    }
}
