//! This service as an OAuth 2.1 protected resource (AUTH-10): its metadata (RFC 9728), and what its challenges say.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::Front;
use crate::domain::scope::Scope;
use crate::protocol::splice::quoted;

/// Where metadata are; the path of the resource follows, if it has one.
pub(super) const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
/// The path below the public URL under which messages are taken.
const ENDPOINT: &str = "/mcp";

/// What clients are told of us, all of it made from the public URL: never from what a request says of itself (HTTP-01).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedResource {
    url: String,
    /// The path of its own metadata.
    metadata_path: String,
    document: String,
    /// What a challenge says besides the error and the scope.
    metadata: String,
    /// Which scopes there are, as a challenge says it; empty where tokens need none.
    scope: String,
}

impl ProtectedResource {
    /// Of a service whose clients reach it under this URL, which has no slash at its end. `scopes` are those that tokens need:
    /// clients ask the issuer for what they are told here, and one that does not know a scope refuses the whole request.
    #[must_use]
    pub fn new(public_url: &str, issuer: &str, scopes: &[Scope]) -> Self {
        let uri = public_url.parse::<Uri>().unwrap_or_default();
        let path = uri.path().trim_end_matches('/');
        let metadata_path = format!("{WELL_KNOWN}{path}{ENDPOINT}");
        let url = format!("{public_url}{ENDPOINT}");
        let (supported, scope) = if scopes.is_empty() {
            (String::new(), String::new())
        } else {
            let names: Vec<_> = scopes.iter().map(|scope| quoted(scope.as_str())).collect();
            let scope = format!(", scope=\"{}\"", Scope::list(scopes));
            (format!(r#""scopes_supported":[{}],"#, names.join(",")), scope)
        };
        let document = format!(
            r#"{{"resource":{},"authorization_servers":[{}],{supported}"bearer_methods_supported":["header"],"resource_name":"Taskhold"}}"#,
            quoted(&url),
            quoted(issuer),
        );
        let origin = public_url.strip_suffix(path).unwrap_or(public_url);
        let metadata = format!("resource_metadata=\"{origin}{metadata_path}\"");
        Self { url, metadata_path, document, metadata, scope }
    }

    /// The URL of the endpoint, which access tokens are meant for.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds to a response that challenges its caller where to learn more, and which scopes there are unless it says what lacks.
    pub(super) fn complete(&self, response: &mut Response) {
        let Some(given) = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()) else {
            return;
        };
        let separator = if given.contains(' ') { ", " } else { " " };
        let mut challenge = format!("{given}{separator}{}", self.metadata);
        if !given.contains("scope=") {
            challenge.push_str(&self.scope);
        }
        if let Ok(value) = HeaderValue::from_bytes(challenge.as_bytes()) {
            response.headers_mut().insert(WWW_AUTHENTICATE, value);
        }
    }
}

/// The metadata, at the paths where clients look: the root, the endpoint's own path here and the one that its URL has.
pub(super) async fn metadata(State(front): State<Arc<Front>>, uri: Uri) -> Response {
    let is_ours = |resource: &&ProtectedResource| {
        let below = uri.path().strip_prefix(WELL_KNOWN);
        matches!(below, Some("" | ENDPOINT)) || uri.path() == resource.metadata_path
    };
    match front.state.rules.resource.as_ref().filter(is_ours) {
        Some(resource) => {
            ([(header::CONTENT_TYPE, "application/json")], Body::from(resource.document.clone())).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::Rejection;

    // req: AUTH-10
    // field case: F-AUTH-06
    #[test]
    fn metadata_are_between_the_host_and_the_path_of_the_resource() {
        for (public_url, url, path, metadata) in [
            (
                "https://mcp.example",
                "https://mcp.example/mcp",
                "/.well-known/oauth-protected-resource/mcp",
                "https://mcp.example/.well-known/oauth-protected-resource/mcp",
            ),
            (
                "https://x.example:8443/t/acme",
                "https://x.example:8443/t/acme/mcp",
                "/.well-known/oauth-protected-resource/t/acme/mcp",
                "https://x.example:8443/.well-known/oauth-protected-resource/t/acme/mcp",
            ),
        ] {
            let resource = ProtectedResource::new(public_url, "https://issuer.example/", &Scope::ALL);
            assert_eq!((resource.url(), resource.metadata_path.as_str()), (url, path));
            assert_eq!(resource.metadata, format!("resource_metadata=\"{metadata}\""));
            let document: serde_json::Value = serde_json::from_str(&resource.document).unwrap();
            assert_eq!(document["resource"], url);
            assert_eq!(document["authorization_servers"], serde_json::json!(["https://issuer.example/"]));
            assert_eq!(document["scopes_supported"], serde_json::json!(["tasks:read", "tasks:write", "tools:call"]));
        }
    }

    // req: AUTH-01, AUTH-10
    #[test]
    fn challenges_say_where_to_learn_more() {
        let named = ProtectedResource::new("https://mcp.example", "https://issuer.example", &Scope::ALL);
        let told_by = |resource: &ProtectedResource, rejection: Rejection| {
            let mut response = rejection.to_response(None);
            resource.complete(&mut response);
            response.headers().get(WWW_AUTHENTICATE).map(|value| value.to_str().unwrap().to_owned())
        };
        let told = |rejection| told_by(&named, rejection);
        let at = r#"resource_metadata="https://mcp.example/.well-known/oauth-protected-resource/mcp""#;
        let all = r#"scope="tasks:read tasks:write tools:call""#;
        assert_eq!(told(Rejection::TokenMissing).unwrap(), format!("Bearer {at}, {all}"));
        assert_eq!(told(Rejection::TokenInvalid).unwrap(), format!(r#"Bearer error="invalid_token", {at}, {all}"#));
        assert_eq!(
            told(Rejection::ScopeMissing { scopes: &[Scope::TasksWrite] }).unwrap(),
            format!(r#"Bearer error="insufficient_scope", scope="tasks:write", {at}"#)
        );
        assert_eq!(
            told(Rejection::ScopeMissing { scopes: &[Scope::ToolsCall, Scope::TasksRead] }).unwrap(),
            format!(r#"Bearer error="insufficient_scope", scope="tools:call tasks:read", {at}"#)
        );
        assert_eq!(told(Rejection::TokenMalformed), None);
        // An issuer that has no such scopes must not be asked for them.
        let unnamed = ProtectedResource::new("https://mcp.example", "https://issuer.example", &[]);
        assert_eq!(told_by(&unnamed, Rejection::TokenMissing).unwrap(), format!("Bearer {at}"));
        let document: serde_json::Value = serde_json::from_str(&unnamed.document).unwrap();
        assert_eq!(document.get("scopes_supported"), None);
        assert_eq!(document["authorization_servers"], serde_json::json!(["https://issuer.example"]));
    }
}
