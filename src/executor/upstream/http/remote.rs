//! An upstream's endpoint, and the one client for it that all its links share.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode, Url, redirect, retry};
use secrecy::ExposeSecret;

use super::super::config::{Endpoint, Settings};

/// How long a connection may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// Connections without a request are closed after this; servers mostly do so after a minute or more.
const POOL_IDLE: Duration = Duration::from_secs(45);
/// A peer that is gone is noticed: an answer may take hours, but not without a sign that somebody is there.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
const MOST_REDIRECTS: usize = 5;

/// Where an upstream is reached.
pub(in super::super) struct Remote {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) client: Client,
}

impl Remote {
    /// # Errors
    /// What of the URL or the headers cannot be used; never a value.
    pub(in super::super) fn new(endpoint: &Endpoint, settings: &Settings) -> Result<Self, String> {
        let url = Url::parse(&endpoint.url).map_err(|error| format!("its URL cannot be used: {error}"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &endpoint.headers {
            let unusable = || format!("its header {name:?} cannot be used");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
            let mut value = HeaderValue::from_bytes(value.expose_secret().as_bytes()).map_err(|_| unusable())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let client = Client::builder()
            .user_agent(concat!("taskhold/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT.min(settings.start_timeout))
            .pool_idle_timeout(POOL_IDLE)
            .tcp_nodelay(true)
            .tcp_keepalive(KEEP_ALIVE)
            .tcp_keepalive_interval(KEEP_ALIVE)
            .tcp_keepalive_retries(3)
            // What was sent may have been run: whether it is sent again is decided by those who know what it was.
            .retry(retry::never())
            .redirect(redirect::Policy::custom(redirected))
            .referer(false)
            .no_proxy()
            .gzip(true)
            .build();
        let client = client.map_err(|error| format!("no client can be made for its URL: {}", deepest(&error)))?;
        Ok(Self { url, headers, client })
    }
}

/// Only within the origin, so that credentials stay there, and only where the method is kept.
fn redirected(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let is_kept = matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    let is_home = attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
    if is_kept && is_home && attempt.previous().len() <= MOST_REDIRECTS { attempt.follow() } else { attempt.stop() }
}

/// Why a request failed, without its URL.
pub(super) fn describe(error: &reqwest::Error) -> String {
    let cause = deepest(error);
    if error.is_connect() {
        format!("it cannot be reached: {cause}")
    } else if error.is_timeout() {
        "it did not answer in time".to_owned()
    } else {
        format!("the connection broke: {cause}")
    }
}

/// The first cause of an error says most, and has no URL in it.
fn deepest(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if cause.downcast_ref::<reqwest::Error>().is_some() {
        // One without a cause; its own text would show the URL.
        return "the request cannot be made".to_owned();
    }
    cause.to_string()
}
