//! The issuer by HTTP: its metadata (RFC 8414, OpenID Connect Discovery) and the keys that they lead to.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::{Client, Url, redirect};
use serde::Deserialize;

use super::OauthRules;
use super::jwt::KeySet;
use super::keys::Source;
use crate::domain::redact::redact_url;
use crate::domain::text::storable;

/// All of one fetch.
const TIME: Duration = Duration::from_secs(10);
/// A document that is larger is not read.
const MOST_BYTES: usize = 256 * 1024;
/// Of what it says so much is repeated in messages.
const SHOWN_BYTES: usize = 200;

pub(super) struct Remote {
    client: Client,
    issuer: String,
    jwks_url: Option<String>,
}

impl Remote {
    /// # Errors
    /// If no client can be made.
    pub(super) fn new(rules: &OauthRules) -> Result<Self, String> {
        let client = Client::builder()
            .user_agent(concat!("taskhold/", env!("CARGO_PKG_VERSION")))
            .timeout(TIME)
            // The keys come from where the configuration says, or not at all.
            .redirect(redirect::Policy::none())
            .referer(false)
            .no_proxy()
            .build()
            .map_err(told)?;
        Ok(Self { client, issuer: rules.issuer.clone(), jwks_url: rules.jwks_url.clone() })
    }

    async fn try_fetch(&self) -> Result<KeySet, String> {
        let url = match &self.jwks_url {
            Some(url) => url.clone(),
            None => self.discover().await?,
        };
        let text = self.get(&url).await?;
        KeySet::parse(&text).map_err(|why| format!("{} cannot be used: {}", cut(&redact_url(&url)), cut(&why)))
    }

    /// Where the issuer says that its keys are. What is told is what was wrong first: the others are other places for the same.
    async fn discover(&self) -> Result<String, String> {
        let mut problem = None;
        for url in metadata_urls(&self.issuer) {
            match self.metadata(&url).await {
                Ok(url) => return Ok(url),
                Err(why) => problem = problem.or(Some(why)),
            }
        }
        let problem = problem.unwrap_or_else(|| "it is no URL".to_owned());
        Err(format!("the issuer's metadata cannot be had, and oauth.jwks_url is not set: {problem}"))
    }

    async fn metadata(&self, url: &str) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Metadata {
            issuer: String,
            jwks_uri: String,
        }
        let (text, url) = (self.get(url).await?, redact_url(url));
        let Metadata { issuer, jwks_uri } = serde_json::from_slice(&text)
            .map_err(|error| format!("{url} is no metadata of an issuer: {}", cut(&error.to_string())))?;
        if issuer != self.issuer {
            return Err(format!("{url} is of the issuer {:?}, which is not exactly oauth.issuer", cut(&issuer)));
        }
        if !is_protected(&jwks_uri) {
            let shown = cut(&redact_url(&jwks_uri));
            return Err(format!("{url} has the jwks_uri {shown:?}, which is not https"));
        }
        Ok(jwks_uri)
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let request = self.client.get(url).header("accept", "application/json");
        let url = cut(&redact_url(url));
        let failed = |error| format!("{url} cannot be read: {}", told(error));
        let mut response = request.send().await.map_err(failed)?;
        if response.status() != 200 {
            return Err(format!("{url} answers {}", response.status()));
        }
        let mut text = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            if text.len() + piece.len() > MOST_BYTES {
                return Err(format!("{url} is larger than {MOST_BYTES} bytes"));
            }
            text.extend_from_slice(&piece);
        }
        Ok(text)
    }
}

#[async_trait]
impl Source for Remote {
    async fn fetch(&self) -> Result<KeySet, String> {
        let fetched = tokio::time::timeout(TIME, self.try_fetch()).await;
        fetched.unwrap_or_else(|_| Err(format!("the issuer does not answer within {} s", TIME.as_secs())))
    }
}

/// Whether nobody on the way can put in keys of their own: https, or no way at all.
pub(super) fn is_protected(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let is_here = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    url.scheme() == "https" || (url.scheme() == "http" && is_here)
}

/// Where an issuer's metadata are, in the order of MCP's clients.
fn metadata_urls(issuer: &str) -> Vec<String> {
    let Ok(url) = Url::parse(issuer) else { return Vec::new() };
    let (origin, path) = (url.origin().ascii_serialization(), url.path().trim_end_matches('/'));
    let mut urls = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        urls.push(format!("{origin}{path}/.well-known/openid-configuration"));
    }
    urls
}

/// What others wrote, as much of it as an operator needs.
fn cut(text: &str) -> String {
    storable(text, SHOWN_BYTES)
}

/// An error and its causes; the URL stands before it.
fn told(error: reqwest::Error) -> String {
    format!("{:#}", anyhow::Error::from(error.without_url()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_are_looked_for_where_each_kind_of_issuer_has_them() {
        let plain = [
            "https://a.example/.well-known/oauth-authorization-server",
            "https://a.example/.well-known/openid-configuration",
        ];
        assert_eq!(metadata_urls("https://a.example"), plain);
        assert_eq!(metadata_urls("https://a.example/"), plain);
        assert_eq!(
            metadata_urls("https://a.example:8443/realms/r"),
            [
                "https://a.example:8443/.well-known/oauth-authorization-server/realms/r",
                "https://a.example:8443/.well-known/openid-configuration/realms/r",
                "https://a.example:8443/realms/r/.well-known/openid-configuration",
            ]
        );
    }

    #[test]
    fn keys_come_by_https_or_from_this_machine() {
        for good in ["https://a.example/k?x=1", "http://127.0.0.1:1/k", "http://localhost/k", "http://[::1]:8/k"] {
            assert!(is_protected(good), "{good}");
        }
        for bad in ["http://a.example/k", "http://127.0.0.1.a.example/k", "file:///k", "k", ""] {
            assert!(!is_protected(bad), "{bad}");
        }
    }
}
