//! A client's own task for a question of ours (CAP-08): what of it matters to us. Its id is opaque.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::RawJson;

/// Bytes of an id as it is written.
const MOST_ID: usize = 1024;
/// Where the client gives no `pollInterval`, and the bounds of one that it gives.
const POLL: Duration = Duration::from_secs(1);
const POLL_LEAST: Duration = Duration::from_millis(100);
const POLL_MOST: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTask {
    /// A JSON string, as the client wrote it.
    pub id: RawJson,
    pub status: ClientStatus,
    /// How long to wait before the client is asked for it again.
    pub poll_interval: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientStatus {
    /// Also what we do not know.
    Working,
    InputRequired,
    Completed,
    /// Failed or cancelled.
    Failed,
}

impl ClientStatus {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    fn from_raw(raw: Option<&RawValue>) -> Self {
        match raw.map(RawValue::get) {
            Some(r#""input_required""#) => Self::InputRequired,
            Some(r#""completed""#) => Self::Completed,
            Some(r#""failed""# | r#""cancelled""#) => Self::Failed,
            _ => Self::Working,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Members<'a> {
    #[serde(borrow)]
    task_id: &'a RawValue,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    poll_interval: Option<&'a RawValue>,
}

impl ClientTask {
    /// The task of a `CreateTaskResult`; `None` if the result is none.
    #[must_use]
    pub fn created(result: &RawJson) -> Option<Self> {
        #[derive(Deserialize)]
        struct Created<'a> {
            #[serde(borrow)]
            task: &'a RawValue,
        }
        let Created { task } = serde_json::from_str(result.as_str()).ok()?;
        Self::parse(task.get())
    }

    /// A task object, or a result that is one.
    #[must_use]
    pub fn read(task: &RawJson) -> Option<Self> {
        Self::parse(task.as_str())
    }

    fn parse(task: &str) -> Option<Self> {
        let Members { task_id, status, poll_interval } = serde_json::from_str(task).ok()?;
        let id = task_id.get();
        if !id.starts_with('"') || id.len() > MOST_ID {
            return None;
        }
        let asked = poll_interval.and_then(|raw| serde_json::from_str::<f64>(raw.get()).ok());
        let asked = asked.and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok());
        let poll_interval = asked.unwrap_or(POLL).clamp(POLL_LEAST, POLL_MOST);
        Some(Self { id: RawJson::trusted(id), status: ClientStatus::from_raw(status), poll_interval })
    }

    /// What is kept of it, of bounded size; [`Self::read`] reads it.
    #[must_use]
    pub fn to_raw(&self) -> RawJson {
        let (id, status, poll) = (self.id.as_str(), self.status.as_str(), self.poll_interval.as_millis());
        RawJson::trusted(format!(r#"{{"taskId":{id},"status":"{status}","pollInterval":{poll}}}"#))
    }

    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.status, ClientStatus::Completed | ClientStatus::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(task: &str) -> Option<ClientTask> {
        ClientTask::read(&RawJson::trusted(task))
    }

    #[test]
    fn the_id_stays_as_it_was_written() {
        let raw = r#"{"task":{"taskId":"a\ud800\u0041","status":"working","ttl":1e400,"x":"\ud800"},"_meta":{"k":1}}"#;
        let task = ClientTask::created(&RawJson::trusted(raw)).unwrap();
        assert_eq!((task.id.as_str(), task.poll_interval), (r#""a\ud800\u0041""#, POLL));
        assert_eq!(ClientTask::read(&task.to_raw()), Some(task));
        for none in [
            r#"{"action":"accept","content":{"task":{"taskId":"x"}}}"#.to_owned(),
            r#"{"task":{}}"#.to_owned(),
            r#"{"task":{"taskId":1}}"#.to_owned(),
            r#"{"task":"x"}"#.to_owned(),
            format!(r#"{{"task":{{"taskId":"{}"}}}}"#, "x".repeat(MOST_ID)),
            "[]".to_owned(),
        ] {
            assert_eq!(ClientTask::created(&RawJson::trusted(none.as_str())), None, "{none}");
        }
    }

    #[test]
    fn its_status_and_interval_are_read_within_bounds() {
        for (given, status, over) in [
            ("working", ClientStatus::Working, false),
            ("input_required", ClientStatus::InputRequired, false),
            ("completed", ClientStatus::Completed, true),
            ("failed", ClientStatus::Failed, true),
            ("cancelled", ClientStatus::Failed, true),
            ("dreaming", ClientStatus::Working, false),
        ] {
            let task = read(&format!(r#"{{"taskId":"x","status":"{given}"}}"#)).unwrap();
            assert_eq!((task.status, task.is_over()), (status, over), "{given}");
        }
        for (given, ms) in
            [("250", 250), ("0.5e3", 500), ("1", 100), ("-1", 1000), ("1e9", 60_000), ("1e400", 1000), ("null", 1000)]
        {
            let task = read(&format!(r#"{{"taskId":"x","pollInterval":{given}}}"#)).unwrap();
            assert_eq!(task.poll_interval, Duration::from_millis(ms), "{given}");
        }
    }
}
