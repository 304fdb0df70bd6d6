//! The modern era by HTTP: one POST, one answer, which is a stream where there is more to say than the answer, or it takes a while.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::{Answer, events, events_after, plain, whole};
use crate::demo::modern::{Headers, Server};
use crate::demo::wire::{Incoming, error_line};

const VERSION: &str = "mcp-protocol-version";
/// After this time the answer becomes a stream, so that whoever waits sees that it was heard.
const SILENCE: Duration = Duration::from_secs(1);

/// The version that the header gives.
pub(super) fn version(headers: &HeaderMap) -> Option<&str> {
    headers.get(VERSION)?.to_str().ok()
}

/// Whether a request without a message is of this era.
pub(super) fn is_named(headers: &HeaderMap) -> bool {
    version(headers).is_some_and(|version| version > "2025-11-25")
}

/// Answers a message. Who goes away before the end of the answer cancels the request.
pub(super) async fn post(server: &Arc<Server>, incoming: &Incoming<'_>, headers: &HeaderMap) -> Answer {
    if incoming.method.is_none() {
        return plain(StatusCode::BAD_REQUEST, "this revision knows no messages but requests and notifications");
    }
    let request = match server.admit(incoming, Some(&read(headers))) {
        None => return plain(StatusCode::ACCEPTED, ""),
        Some(Ok(request)) => request,
        Some(Err(refusal)) => {
            let line = error_line(incoming.id().unwrap_or("null"), &refusal.error);
            return json(StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST), line);
        }
    };
    let (out, mut said) = mpsc::channel(256);
    server.serve(request, &out).await;
    drop(out);
    match tokio::time::timeout(SILENCE, said.recv()).await {
        Err(_) => events(said),
        Ok(None) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the request was given up"),
        Ok(Some(line)) => match status(&line) {
            Some(status) => json(status, line),
            None => events_after(Some(line), said),
        },
    }
}

/// The status that goes with an answer; `None` if the message is none.
fn status(line: &str) -> Option<StatusCode> {
    #[derive(Deserialize)]
    struct Outline {
        method: Option<String>,
        error: Option<Code>,
    }
    #[derive(Deserialize)]
    struct Code {
        code: i64,
    }
    // What cannot be read is a tool's answer: messages with a method are ours.
    let outline = serde_json::from_str(line).unwrap_or(Outline { method: None, error: None });
    match outline {
        Outline { method: Some(_), .. } => None,
        Outline { error: Some(Code { code: -32021 }), .. } => Some(StatusCode::BAD_REQUEST),
        _ => Some(StatusCode::OK),
    }
}

fn read(headers: &HeaderMap) -> Headers {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Headers(headers.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect())
}

fn json(status: StatusCode, line: String) -> Answer {
    whole(status, "application/json", line)
}
