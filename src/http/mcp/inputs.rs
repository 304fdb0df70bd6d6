//! Clients' answers to our requests: JSON-RPC responses, POSTed to any node (INPUT-05).

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::domain::input::Answer;
use crate::engine::{Caller, Refusal};
use crate::http::Front;
use crate::http::error::Rejection;
use crate::protocol::jsonrpc::{self, ResponseBody};
use crate::protocol::scan::string_value;

/// Accepted whatever it is about: one that is late, unknown or foreign changes nothing (INPUT-14). Refused only if it could
/// not be written.
pub(super) async fn answered(front: &Front, caller: &Caller, response: jsonrpc::Response) -> Response {
    // Ids of ours are texts.
    let id = response.id.as_ref().and_then(|id| string_value(id.as_raw()));
    let answer = match response.body {
        ResponseBody::Result(result) => Answer::Result(result),
        ResponseBody::Error(error) => Answer::Error(error),
    };
    let written = match id {
        Some(id) => front.state.engine.answer(caller, &id, answer).await,
        None => Ok(()),
    };
    match written {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(refusal) => {
            if let Refusal::Store(error) = refusal {
                tracing::warn!(%error, "a client's answer could not be stored");
            }
            Rejection::Unavailable.to_response(None)
        }
    }
}
