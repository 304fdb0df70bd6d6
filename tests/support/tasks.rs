//! Tasks for tests of the store.

use std::time::Duration;

use taskhold::domain::clock::Timestamp;
use taskhold::domain::ids::{LeaseToken, NodeId, TaskId};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::queue::Counted;
use taskhold::domain::retention::Ttl;
use taskhold::domain::work::NewTask;

/// A task of an hour, waiting if it has no claim.
pub fn new_task(id: TaskId, created: Timestamp, claim: Option<(NodeId, LeaseToken)>) -> NewTask {
    NewTask {
        id,
        session: None,
        tool: "tool".to_owned(),
        upstream: "upstream".to_owned(),
        upstream_tool: "tool".to_owned(),
        params: RawJson::trusted(r#"{"name":"tool","arguments":{}}"#),
        created,
        granted: Ttl::Milliseconds(3_600_000),
        hard_end: created + Duration::from_secs(26 * 3600),
        poll_interval_ms: 1000,
        restart: RestartPolicy::Fail,
        attempts_allowed: 3,
        run_limit: Duration::from_secs(600),
        capabilities: RawJson::trusted("{}"),
        progress_token: None,
        keyed: None,
        counted: Counted::default(),
        claim,
    }
}
