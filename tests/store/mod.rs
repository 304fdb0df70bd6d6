//! The contract of the store: the same cases on every database.

mod batches;
mod catalog;
mod claims;
mod deliveries;
mod inputs;
mod isolation;
mod links;
mod lists;
pub mod migrations;
mod news;
mod nodes;
mod poolers;
pub mod questions;
mod races;
mod retention;
mod rounds;
mod sessions;
mod subscriptions;
mod tasks;
mod tokens;
mod upstream_tasks;

use std::time::Duration;

use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::{AuthContext, ContextKey, Credential};
use taskhold::domain::ids::{ContextId, LeaseToken, NodeId, TaskId, TokenId};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::queue::Counted;
use taskhold::domain::retention::Ttl;
use taskhold::domain::work::NewTask;
use taskhold::store::{End, Finish, ScopedStore, Store};

use crate::support::{contract, contract_everywhere};

/// Some time, in seconds after an arbitrary start.
pub fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000) + Duration::from_secs(seconds)
}

/// A task with something in every field.
fn new_task(created: Timestamp) -> NewTask {
    NewTask {
        id: TaskId::new(),
        session: None,
        tool: "demo__wait".to_owned(),
        upstream: "demo".to_owned(),
        upstream_tool: "wait".to_owned(),
        params: RawJson::trusted(r#"{"name":"demo__wait","arguments":{"n":1e400,"s":"\u0000\ud800"}}"#),
        created,
        granted: Ttl::Milliseconds(3_600_000),
        hard_end: created + Duration::from_secs(26 * 3600),
        poll_interval_ms: 1000,
        restart: RestartPolicy::Retry,
        attempts_allowed: 3,
        run_limit: Duration::from_millis(1_800_000),
        capabilities: RawJson::trusted("{}"),
        progress_token: Some(RawJson::trusted("\"p-1\"")),
        keyed: None,
        counted: Counted::default(),
        claim: None,
    }
}

fn claimed_task(created: Timestamp, node: NodeId) -> (NewTask, LeaseToken) {
    let token = LeaseToken::new();
    (NewTask { claim: Some((node, token)), ..new_task(created) }, token)
}

/// A result that says who wrote it.
fn result(text: &str) -> Outcome {
    Outcome::Result { json: RawJson::trusted(format!(r#"{{"content":[],"by":"{text}"}}"#)), is_error: false }
}

fn end(outcome: Outcome, now: Timestamp) -> End {
    End { outcome, message: Some("over".to_owned()), now, expires: Some(now + Duration::from_secs(600)) }
}

fn finish(task: TaskId, token: LeaseToken, outcome: Outcome, now: Timestamp) -> Finish {
    Finish { task, token, end: end(outcome, now) }
}

/// A caller with a context of its own.
pub async fn caller(store: &Store, subject: &str) -> (ContextId, ScopedStore) {
    let key = ContextKey { subject: subject.to_owned(), ..ContextKey::default() };
    let id = store.system().ensure_context(key, at(0)).await.unwrap();
    (id, store.scoped(&AuthContext::verified(id, None, Credential::Token(TokenId::new()))))
}
