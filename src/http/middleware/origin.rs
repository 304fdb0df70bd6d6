//! Origin and Host (HTTP-01): a page in a browser must not reach a service that trusts its network.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};
use axum::middleware::Next;
use axum::response::Response;

use super::body::refuse;
use crate::http::error::Rejection;
use crate::http::{Front, HttpRules};

pub(in crate::http) async fn check(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let rules = &front.state.rules;
    // What to set is said in the log only: the caller may be a stranger's page.
    if !host_is_allowed(rules, request.headers(), request.uri()) {
        tracing::warn!("refused a request for a Host that is not in server.allowed_hosts");
        return refuse(request, rules.body_limit, &Rejection::Forbidden).await;
    }
    if !origin_is_allowed(rules, request.headers()) {
        tracing::warn!("refused a request from an Origin that is not in server.allowed_origins");
        return refuse(request, rules.body_limit, &Rejection::Forbidden).await;
    }
    next.run(request).await
}

fn host_is_allowed(rules: &HttpRules, headers: &HeaderMap, uri: &Uri) -> bool {
    let allowed = |host: &str| rules.allowed_hosts.iter().any(|allowed| host_matches(allowed, host));
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    host.to_str().is_ok_and(allowed) && uri.authority().is_none_or(|authority| allowed(authority.as_str()))
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

/// Compared with the list alone, never with the Host: a page that rebinds its name controls both.
fn origin_is_allowed(rules: &HttpRules, headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    match (origins.next(), origins.next()) {
        (None, _) => true,
        (Some(origin), None) => origin.to_str().is_ok_and(|origin| {
            rules.allowed_origins.iter().any(|allowed| allowed.trim_end_matches('/').eq_ignore_ascii_case(origin))
        }),
        (Some(_), Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
