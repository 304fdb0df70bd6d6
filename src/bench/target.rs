//! The server that is measured: its address, and connections to it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Uri;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use secrecy::{ExposeSecret, SecretString};
use tower::ServiceExt as _;

use super::BenchError;
use super::failure::Failure;
use crate::lifecycle::spawn;

/// How long a connection may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// See the module's documentation.
pub(super) struct Target {
    url: Uri,
    /// What a request's first line names.
    path: Uri,
    /// Of every request.
    headers: HeaderMap,
    connector: HttpsConnector<HttpConnector>,
}

/// The sending half of a connection.
pub(super) type Sender = SendRequest<Full<Bytes>>;

impl Target {
    /// # Errors
    /// If the URL or the token cannot be used; the token is not shown.
    pub(super) fn new(url: &str, token: Option<&SecretString>) -> Result<Self, BenchError> {
        // It may hold a password, and is not shown then.
        if url.contains('@') {
            let why = "--url names a user, who is not told to the server: leave that out and give the token by --token";
            return Err(BenchError::Unusable(why.to_owned()));
        }
        let unusable = || {
            BenchError::Unusable(format!(
                "--url {url:?} cannot be used: expected one such as http://127.0.0.1:8080/mcp"
            ))
        };
        let parsed: Uri = url.parse().map_err(|_| unusable())?;
        let authority = parsed.authority().filter(|_| matches!(parsed.scheme_str(), Some("http" | "https")));
        let host =
            authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()).ok_or_else(unusable)?;
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if let Some(token) = token {
            let unusable =
                || BenchError::Unusable("the token cannot be used: expected visible ASCII without spaces".to_owned());
            let is_token = token.expose_secret().bytes().all(|byte| byte.is_ascii_graphic());
            let bearer = format!("Bearer {}", token.expose_secret());
            let value = HeaderValue::from_str(&bearer).ok().filter(|_| is_token && bearer.len() > "Bearer ".len());
            let mut value = value.ok_or_else(unusable)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let path = parsed.path_and_query().map_or_else(|| Uri::from_static("/"), |path| Uri::from(path.clone()));
        Ok(Self { path, headers, connector: connector()?, url: parsed })
    }

    pub(super) fn url(&self) -> &Uri {
        &self.url
    }

    pub(super) fn path(&self) -> &Uri {
        &self.path
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// A new connection.
    pub(super) async fn connect(&self) -> Result<Sender, Failure> {
        let connecting = self.connector.clone().oneshot(self.url.clone());
        let connected = tokio::time::timeout(CONNECT, connecting).await;
        let stream = connected.map_err(|_| Failure::connection(format!("none within {} s", CONNECT.as_secs())))?;
        let stream = stream.map_err(|error| Failure::connection(deepest(&*error)))?;
        let (sender, connection) = handshake(stream).await.map_err(|error| Failure::connection(deepest(&error)))?;
        spawn("bench connection", async {
            // Whoever waits for an answer hears of it.
            let _broken = connection.await;
        });
        Ok(sender)
    }
}

/// Plain and TLS connections without delay; each is used for one request after the other.
fn connector() -> Result<HttpsConnector<HttpConnector>, BenchError> {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    // Two providers are linked: this is the one that the database's connections use.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = HttpsConnectorBuilder::new().with_provider_and_platform_verifier(provider);
    let tls = tls.map_err(|error| BenchError::Unusable(format!("TLS cannot be used: {error}")))?;
    Ok(tls.https_or_http().enable_http1().wrap_connector(http))
}

/// The first cause of an error says most.
pub(super) fn deepest(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, token: Option<&str>) -> String {
        let token = token.map(SecretString::from);
        Target::new(url, token.as_ref()).err().unwrap_or_else(|| panic!("{url} is taken")).to_string()
    }

    #[test]
    fn a_url_is_taken_apart() {
        let target = Target::new("http://127.0.0.1:8080/a/mcp?x=1", Some(&SecretString::from("th_x"))).unwrap();
        assert_eq!(target.path(), "/a/mcp?x=1");
        assert_eq!(target.headers()[HOST], "127.0.0.1:8080");
        let bearer = &target.headers()[AUTHORIZATION];
        assert!(bearer == "Bearer th_x" && bearer.is_sensitive());
        assert!(!Target::new("https://host", None).unwrap().headers().contains_key(AUTHORIZATION));
    }

    #[test]
    fn what_cannot_be_used_is_said_without_the_token() {
        for url in ["", "localhost:8080", "/mcp", "ftp://h/mcp", "http://", "http://h h/"] {
            assert!(refused(url, None).contains("such as http://127.0.0.1:8080/mcp"), "{url}");
        }
        let said = refused("http://me:hunter2@h/mcp", None);
        assert!(said.contains("--token") && !said.contains("hunter2"), "{said}");
        for token in ["", "hunter2 x", "hunter2\n", "hunter2é"] {
            let said = refused("http://h/mcp", Some(token));
            assert!(said.contains("the token cannot be used") && !said.contains("hunter2"), "{said}");
        }
    }
}
