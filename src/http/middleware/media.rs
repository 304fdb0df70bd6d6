//! Media types and declared sizes (HTTP-04): 415, 406, 413.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;

use super::body::refuse;
use crate::http::Front;
use crate::http::error::Rejection;

/// In which forms a client takes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Accepts {
    pub json: bool,
    /// Asked for by its name (or `text/*`), not by `*/*` alone: who says nothing wants a plain answer.
    pub events: bool,
}

impl Accepts {
    /// `None` if neither form will do.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut ranges = Vec::new();
        for value in headers.get_all(ACCEPT) {
            // What is no text cannot be a range of ours; the ranges beside it count.
            ranges.extend(String::from_utf8_lossy(value.as_bytes()).split(',').filter_map(Range::parse));
        }
        if !headers.contains_key(ACCEPT) {
            return Some(Self { json: true, events: false });
        }
        let best = |kind: &str, subtype: &str| ranges.iter().filter_map(|range| range.fits(kind, subtype)).max();
        let json = best("application", "json").is_some_and(|(_, wanted)| wanted);
        let events = best("text", "event-stream");
        let by_name = events.is_some_and(|(closeness, wanted)| wanted && closeness > 0);
        let at_all = events.is_some_and(|(_, wanted)| wanted);
        (json || at_all).then_some(Self { json, events: by_name || (at_all && !json) })
    }
}

/// Whether a stream of events will do, whatever else would.
pub(in crate::http) fn takes_events(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return true;
    }
    let mut ranges = Vec::new();
    for value in values {
        ranges.extend(String::from_utf8_lossy(value.as_bytes()).split(',').filter_map(Range::parse));
    }
    let best = ranges.iter().filter_map(|range| range.fits("text", "event-stream")).max();
    best.is_some_and(|(_, wanted)| wanted)
}

/// One media range of an `Accept` header.
struct Range {
    kind: String,
    subtype: String,
    wanted: bool,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let refused = parts.filter_map(|parameter| parameter.split_once('=')).any(|(name, value)| {
            name.trim().eq_ignore_ascii_case("q") && value.trim().parse::<f32>().is_ok_and(|q| q <= 0.0)
        });
        Some(Self {
            kind: kind.trim().to_ascii_lowercase(),
            subtype: subtype.trim().to_ascii_lowercase(),
            wanted: !refused,
        })
    }

    /// How closely the range names the type, if it covers it, and whether it is wanted.
    fn fits(&self, kind: &str, subtype: &str) -> Option<(u8, bool)> {
        let closeness = match (self.kind.as_str(), self.subtype.as_str()) {
            (k, s) if k == kind && s == subtype => 2,
            (k, "*") if k == kind => 1,
            ("*", "*") => 0,
            _ => return None,
        };
        Some((closeness, self.wanted))
    }
}

pub(in crate::http) async fn check(State(front): State<Arc<Front>>, mut request: Request, next: Next) -> Response {
    // Only messages have a body and an answer in one of two forms.
    if request.method() == Method::POST {
        let limit = front.state.rules.body_limit;
        let rejection = if declared_length(request.headers()).is_some_and(|length| length > limit as u64) {
            Some(Rejection::BodyTooLarge { limit })
        } else if !is_json(request.headers()) || is_encoded(request.headers()) {
            Some(Rejection::UnsupportedMediaType)
        } else if let Some(accepts) = Accepts::of(request.headers()) {
            request.extensions_mut().insert(accepts);
            None
        } else {
            Some(Rejection::NotAcceptable)
        };
        if let Some(rejection) = rejection {
            return refuse(request, limit, &rejection).await;
        }
    }
    next.run(request).await
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (types.next(), types.next()) else { return false };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

/// Whether the body is compressed or the like: no encoding is served.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: HTTP-04
    #[test]
    fn an_answer_comes_in_any_form_that_is_accepted() {
        let accepts = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ACCEPT, value.parse().unwrap());
            }
            Accepts::of(&headers).map(|accepts| (accepts.json, accepts.events))
        };
        assert_eq!(accepts(&["application/json, text/event-stream"]), Some((true, true)));
        assert_eq!(accepts(&["text/event-stream", "application/json"]), Some((true, true)));
        assert_eq!(accepts(&["text/event-stream;q=0.9,application/json;q=0.1"]), Some((true, true)));
        assert_eq!(accepts(&["application/json"]), Some((true, false)));
        assert_eq!(accepts(&["text/event-stream"]), Some((false, true)));
        assert_eq!(accepts(&["*/*"]), Some((true, false)));
        assert_eq!(accepts(&["application/*"]), Some((true, false)));
        assert_eq!(accepts(&["Text/*"]), Some((false, true)));
        assert_eq!(accepts(&["*/*, application/json;q=0"]), Some((false, true)));
        assert_eq!(accepts(&["*/*, text/event-stream; q=0"]), Some((true, false)));
        assert_eq!(accepts(&[]), Some((true, false)));
        assert_eq!(accepts(&["x/\u{ff}, application/json"]), Some((true, false)));
        for none in ["text/html", "application/json;q=0", "", "json", "application/xml, image/*"] {
            assert_eq!(accepts(&[none]), None, "{none}");
        }
    }

    #[test]
    fn only_json_is_read() {
        let is_json = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_TYPE, value.parse().unwrap());
            }
            super::is_json(&headers)
        };
        assert!(is_json(&["application/json"]));
        assert!(is_json(&["Application/JSON ; charset=utf-8"]));
        let is_encoded = |coding: &'static str| {
            super::is_encoded(&HeaderMap::from_iter([(CONTENT_ENCODING, coding.parse().unwrap())]))
        };
        assert!(is_encoded("gzip") && is_encoded("identity, br") && !is_encoded("Identity"));
        assert!(!super::is_encoded(&HeaderMap::new()));
        for bad in [&[][..], &["text/plain"], &["application/jsonx"], &["application/json", "application/json"]] {
            assert!(!is_json(bad), "{bad:?}");
        }
    }
}
