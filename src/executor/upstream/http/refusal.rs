//! What an HTTP status that is no success means for a request.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Response, StatusCode, Url};
use tokio::time::timeout;

use super::body::{self, Body};
use crate::domain::text::storable;
use crate::protocol::jsonrpc::{Id, Message, ResponseBody};
use crate::protocol::scan::string_value;
use crate::protocol::splice::member;

/// What is read of such an answer, and for how long.
const MOST_BODY: usize = 64 << 10;
const BODY_TIME: Duration = Duration::from_secs(5);
/// How much of an upstream's own words is shown.
const MOST_WORDS: usize = 300;

/// What kind of content an answer has.
pub(super) enum Media {
    Json,
    Events,
    Other(Option<String>),
}

pub(super) fn media(response: &Response) -> Media {
    let value = response.headers().get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let kind = value.as_ref().map(|value| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match kind.as_deref() {
        Some("application/json") => Media::Json,
        Some("text/event-stream") => Media::Events,
        other => Media::Other(other.map(|kind| storable(kind, MOST_WORDS))),
    }
}

/// A refusal as it was read.
pub(super) struct Refusal {
    /// The answer to the request, if the upstream gave a whole one.
    pub(super) answer: Option<Message>,
    /// What an operator can act on.
    pub(super) detail: String,
    /// Whether the request may have been run all the same.
    pub(super) may_have_run: bool,
    /// Many servers answer 400, not 404, to a session that they do not know.
    pub(super) is_about_session: bool,
    /// Whether it looks like a server that does not know what it was asked, or how.
    pub(super) speaks_otherwise: bool,
}

/// `is_modern` says that there is no session, and that an error without an id is about this request.
pub(super) async fn read(mut response: Response, number: u64, is_modern: bool) -> Refusal {
    let status = response.status();
    let target = response.headers().get(LOCATION).and_then(|to| response.url().join(to.to_str().ok()?).ok());
    let text = match timeout(BODY_TIME, body::read(&mut response, MOST_BODY)).await {
        Ok(Ok(Body::Whole(text))) => text,
        _ => Vec::new(),
    };
    let message = Message::parse(&text).ok();
    let mut words = None;
    if let Some(Message::Response(response)) = &message
        && let ResponseBody::Error(error) = &response.body
    {
        words = member(error.as_str(), "message").and_then(string_value).map(|text| storable(&text, MOST_WORDS));
    }
    let is_answer = matches!(&message, Some(Message::Response(response))
        if response.id.as_ref().is_some_and(|id| id.as_raw() == number.to_string()));
    if is_modern {
        let answer = match message {
            Some(Message::Response(response)) if is_answer || response.id.is_none() => {
                Some(Message::Response(crate::protocol::jsonrpc::Response {
                    id: Some(Id::from_number(number)),
                    ..response
                }))
            }
            _ => None,
        };
        let speaks_otherwise =
            matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED);
        let (detail, may_have_run) = (detail(status, target.as_ref(), words.as_deref()), may_have_run(status));
        return Refusal { answer, detail, may_have_run, is_about_session: false, speaks_otherwise };
    }
    let is_about_session =
        status == StatusCode::BAD_REQUEST && String::from_utf8_lossy(&text).to_ascii_lowercase().contains("session");
    let detail = detail(status, target.as_ref(), words.as_deref());
    Refusal {
        answer: message.filter(|_| is_answer && !is_about_session),
        detail,
        may_have_run: may_have_run(status),
        is_about_session,
        speaks_otherwise: false,
    }
}

fn may_have_run(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT
}

fn detail(status: StatusCode, target: Option<&Url>, words: Option<&str>) -> String {
    let advice = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Some("it refuses access: check bearer_env and headers".to_owned())
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            Some("no MCP server answers at its URL: check the path".to_owned())
        }
        StatusCode::TOO_MANY_REQUESTS => Some("it takes no more requests for now".to_owned()),
        status if status.is_redirection() => Some(match target.map(Url::origin) {
            Some(origin) => {
                format!("it redirects to {}, which is not followed: correct its URL", origin.ascii_serialization())
            }
            None => "it redirects, which is not followed: correct its URL".to_owned(),
        }),
        _ => None,
    };
    let mut detail = format!("it answered HTTP {status}");
    for part in [advice.as_deref(), words].into_iter().flatten() {
        detail.push_str(": ");
        detail.push_str(part);
    }
    detail
}
