//! `[oauth]`.

use std::time::Duration;

use super::auth::AuthMode;
use super::problem::Problem;
use super::server::ServerConfig;
use super::settings::Settings;
use crate::auth::OauthRules;
use crate::domain::redact::redact_url;

/// Read whatever the mode is; checked where it is `oauth`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OauthConfig {
    pub issuer: Option<String>,
    pub audience: Option<String>,
    pub jwks_url: Option<String>,
    pub tenant_claim: Option<String>,
    pub client_claim: Option<String>,
    pub leeway: Duration,
    pub require_scopes: bool,
}

impl OauthConfig {
    pub(super) fn read(settings: &Settings) -> Self {
        Self {
            issuer: settings.maybe_text("oauth.issuer"),
            audience: settings.maybe_text("oauth.audience"),
            jwks_url: settings.maybe_text("oauth.jwks_url"),
            tenant_claim: settings.maybe_text("oauth.tenant_claim"),
            client_claim: settings.maybe_text("oauth.client_claim"),
            leeway: settings.duration("oauth.leeway"),
            require_scopes: settings.flag("oauth.require_scopes"),
        }
    }

    /// What the mode `oauth` works by. `resource` is the URL under which clients call.
    #[must_use]
    pub fn rules(&self, resource: &str) -> OauthRules {
        OauthRules {
            issuer: self.issuer.clone().unwrap_or_default(),
            audience: self.audience.clone().unwrap_or_else(|| resource.to_owned()),
            jwks_url: self.jwks_url.clone(),
            tenant_claim: self.tenant_claim.clone(),
            client_claim: self.client_claim.clone(),
            leeway: self.leeway,
            require_scopes: self.require_scopes,
        }
    }

    pub(super) fn check(&self, mode: AuthMode, server: &ServerConfig, problems: &mut Vec<Problem>) {
        if mode != AuthMode::Oauth {
            return;
        }
        let mut refuse = |text: String| problems.push(Problem::new(text));
        if self.issuer.is_none() {
            refuse("auth.mode = \"oauth\" needs oauth.issuer: set it to the iss of the access tokens".to_owned());
        }
        if server.public_url.is_none() {
            refuse(
                "auth.mode = \"oauth\" needs server.public_url: clients are told it, and tokens have to be meant for it"
                    .to_owned(),
            );
        }
        // With a URL for the keys nothing is fetched from the issuer's own.
        let fetched = self.jwks_url.as_ref().map(|url| ("oauth.jwks_url", url));
        let fetched = fetched.or_else(|| self.issuer.as_ref().map(|url| ("oauth.issuer", url)));
        if let Some((key, url)) = fetched.filter(|(_, url)| !OauthRules::is_protected(url)) {
            let url = redact_url(url);
            refuse(format!(
                "{key} = {url:?} is not https: on the way others could put in signing keys of their own; http is for this \
                 machine only"
            ));
        }
        let named = [
            ("oauth.audience", &self.audience),
            ("oauth.tenant_claim", &self.tenant_claim),
            ("oauth.client_claim", &self.client_claim),
        ];
        for (key, _) in named.into_iter().filter(|(_, value)| value.as_ref().is_some_and(String::is_empty)) {
            refuse(format!("{key} = \"\": expected a text that is not empty, or leave it out"));
        }
    }
}
