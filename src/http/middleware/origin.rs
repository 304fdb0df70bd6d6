//! Origin and Host (HTTP-01): a page in a browser must not reach a service that trusts its network.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};
use axum::middleware::Next;
use axum::response::Response;

use super::body::refuse;
use crate::domain::text::storable;
use crate::http::error::Rejection;
use crate::http::{Front, HttpRules};

/// Bytes of a refused value in the log.
const MOST_SHOWN: usize = 200;

pub(in crate::http) async fn check(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let rules = &front.state.rules;
    // What to set is said in the log only: the caller may be a stranger's page.
    if let Some(refused) = refused_host(rules, request.headers(), request.uri()) {
        tracing::warn!(
            http.host = refused,
            "refused a request for a Host that is not allowed: if clients reach this service by that name, add it to \
             server.allowed_hosts, or make it that of server.public_url"
        );
        return refuse(request, rules.body_limit, &Rejection::Forbidden).await;
    }
    if let Some(refused) = refused_origin(rules, request.headers()) {
        tracing::warn!(
            http.origin = refused,
            "refused a request from an Origin that is not allowed: if pages from there may call this service, add it to \
             server.allowed_origins"
        );
        return refuse(request, rules.body_limit, &Rejection::Forbidden).await;
    }
    next.run(request).await
}

/// What a request asks for that it may not; `None` if it may.
fn refused_host(rules: &HttpRules, headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let is_allowed = |host: &str| rules.allowed_hosts.iter().any(|allowed| host_matches(allowed, host));
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host,
        (None, _) => return Some("(none)".to_owned()),
        (Some(_), Some(_)) => return Some("(several)".to_owned()),
    };
    if !host.to_str().is_ok_and(is_allowed) {
        return Some(shown(host.as_bytes()));
    }
    let target = uri.authority().filter(|authority| !is_allowed(authority.as_str()));
    target.map(|authority| shown(authority.as_str().as_bytes()))
}

/// A header's value for the log: one line of it, and not much of that.
fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    storable(&text.chars().take(MOST_SHOWN + 1).flat_map(char::escape_debug).collect::<String>(), MOST_SHOWN)
}

/// `allowed` without a port stands for every port.
fn host_matches(allowed: &str, host: &str) -> bool {
    let bare = |text: &str| text.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let (allowed_name, allowed_port) = split_port(allowed);
    let (name, port) = split_port(host);
    bare(name) == bare(allowed_name) && (allowed_port.is_none() || allowed_port == port)
}

/// Splits `name:port`, `[v6]:port`; a bare IPv6 address has no port.
fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if name.ends_with(']') || !name.contains(':') => (name, Some(port)),
        _ => (host, None),
    }
}

/// The same for the page that a request comes from. Compared with the list alone, never with the Host: a page that rebinds its
/// name controls both.
fn refused_origin(rules: &HttpRules, headers: &HeaderMap) -> Option<String> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let origin = match (origins.next(), origins.next()) {
        (None, _) => return None,
        (Some(origin), None) => origin,
        (Some(_), Some(_)) => return Some("(several)".to_owned()),
    };
    let is_allowed = |origin: &str| {
        rules.allowed_origins.iter().any(|allowed| allowed.trim_end_matches('/').eq_ignore_ascii_case(origin))
    };
    (!origin.to_str().is_ok_and(is_allowed)).then(|| shown(origin.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_is_one_short_line() {
        assert_eq!(shown(b"mcp.example:8443"), "mcp.example:8443");
        assert_eq!(shown(b"a\nWARN all is well\x1b[2J\0\xff"), "a\\nWARN all is well\\u{1b}[2J\\0\u{FFFD}");
        for long in ["x".repeat(10_000), "\u{1b}".repeat(10_000), "ä".repeat(10_000)] {
            let shown = shown(long.as_bytes());
            assert!(shown.len() <= MOST_SHOWN && shown.ends_with('…'), "{shown}");
        }
    }

    #[test]
    fn hosts_match_with_and_without_ports() {
        for (allowed, host) in [
            ("localhost", "localhost"),
            ("localhost", "LOCALHOST:8080"),
            ("127.0.0.1", "127.0.0.1:1"),
            ("::1", "[::1]:8080"),
            ("[::1]", "[::1]"),
            ("mcp.example:443", "mcp.example:443"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert!(host_matches(allowed, host), "{allowed} {host}");
        }
        for (allowed, host) in [
            ("localhost", "localhost.evil.example"),
            ("localhost", "evil.example:localhost"),
            ("mcp.example:443", "mcp.example"),
            ("mcp.example:443", "mcp.example:80"),
            ("localhost", ""),
            ("::1", "::2"),
        ] {
            assert!(!host_matches(allowed, host), "{allowed} {host}");
        }
    }
}
