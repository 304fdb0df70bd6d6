//! `/healthz` and `/readyz` (OPS-06): state and nothing else, for whoever asks.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Front;

/// A database that answers slower is as good as away.
const DATABASE_PATIENCE: Duration = Duration::from_secs(2);

/// The process lives: its loop turns.
pub(super) async fn healthz() -> Response {
    json(StatusCode::OK, r#"{"status":"ok"}"#.to_owned())
}

/// Whether to send requests here. A node that cannot report that it lives can write nothing else either: its commits hang, or
/// are refused. Migrations are applied, or else the service would not have started to listen; the
/// database's answer to a ping covers those of a database that was replaced.
pub(super) async fn readyz(State(front): State<Arc<Front>>) -> Response {
    let store = front.state.store.system();
    let database = matches!(tokio::time::timeout(DATABASE_PATIENCE, store.ping()).await, Ok(Ok(())));
    let draining = front.state.leaving.is_cancelled() || front.state.drain.is_cancelled();
    let writes = front.state.engine.reports();
    let ready = database && writes && !draining;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let database = match (database, writes) {
        (true, true) => "ok",
        (true, false) => "takes no writes",
        (false, _) => "unavailable",
    };
    json(status, format!(r#"{{"ready":{ready},"database":"{database}","draining":{draining}}}"#))
}

fn json(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}
