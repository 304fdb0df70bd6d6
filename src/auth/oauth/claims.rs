//! What a token whose signature is right has to say to count here (AUTH-10, AUTH-11).

use std::time::Duration;

use serde_json::Value;

use super::OauthRules;
use super::jwt::Claims;
use crate::domain::clock::Timestamp;
use crate::domain::context::ContextKey;
use crate::domain::scope::{Scope, Scopes};

/// What a caller's name, tenant and client may have at most.
const MOST_BYTES: usize = 255;

/// Who is calling, what that caller may do, and until when.
#[derive(Debug, PartialEq)]
pub(super) struct Grant {
    pub(super) context: ContextKey,
    pub(super) scopes: Scopes,
    pub(super) ends: Timestamp,
}

/// # Errors
/// Why the token does not count, for the log; no value of it.
pub(super) fn judge(rules: &OauthRules, claims: &Claims, now: Timestamp) -> Result<Grant, &'static str> {
    if claims.get("iss").and_then(Value::as_str) != Some(rules.issuer.as_str()) {
        return Err("its iss is not exactly oauth.issuer");
    }
    if !texts(claims.get("aud")).any(|audience| audience == rules.audience) {
        return Err("its aud does not have oauth.audience");
    }
    let ends = time(claims.get("exp")).ok_or("it has no exp")? + rules.leeway;
    if ends <= now {
        return Err("it has expired");
    }
    if claims.contains_key("nbf") && time(claims.get("nbf")).ok_or("its nbf is no time")? > now + rules.leeway {
        return Err("its nbf has not come yet");
    }
    // Who shows it has to prove that it holds that key, and there is nobody here to check that.
    if claims.contains_key("cnf") {
        return Err("it is bound to a key (cnf)");
    }
    let part = |claim: &Option<String>, lacking| {
        claim.as_ref().map_or(Ok(String::new()), |claim| name(claims.get(claim)).ok_or(lacking))
    };
    let context = ContextKey {
        issuer: rules.issuer.clone(),
        subject: name(claims.get("sub")).ok_or("its sub is missing or cannot be used")?,
        tenant: part(&rules.tenant_claim, "its oauth.tenant_claim is missing or cannot be used")?,
        client: part(&rules.client_claim, "its oauth.client_claim is missing or cannot be used")?,
    };
    let scopes = if rules.require_scopes { scopes(claims) } else { Scopes::ALL };
    Ok(Grant { context, scopes, ends })
}

/// Whether these are claims that ID tokens and security events have. They may be signed by the same key and for the same
/// audience, and were never meant to be shown here.
pub(super) fn are_of_another_kind(claims: &Claims) -> bool {
    ["nonce", "at_hash", "c_hash", "events"].iter().any(|name| claims.contains_key(*name))
}

/// By `scope` (RFC 9068), or by `scp`, which some issuers have instead; others than ours mean nothing here.
fn scopes(claims: &Claims) -> Scopes {
    let said = claims.get("scope").or_else(|| claims.get("scp"));
    texts(said).flat_map(str::split_ascii_whitespace).filter_map(Scope::from_name).collect()
}

/// A text, or those of a list.
fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    let list = match value {
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    list.iter().filter_map(Value::as_str)
}

/// Text by which rows are told apart: it must be the same text when it comes back from the database.
fn name(value: Option<&Value>) -> Option<String> {
    let text = value?.as_str()?;
    let is_usable = (1..=MOST_BYTES).contains(&text.len()) && !text.contains(char::is_control);
    is_usable.then(|| text.to_owned())
}

/// Seconds since the epoch, whole or not.
fn time(value: Option<&Value>) -> Option<Timestamp> {
    let seconds = value?.as_f64()?;
    let since = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
    Some(Timestamp::from_micros(0) + since)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn rules() -> OauthRules {
        OauthRules {
            issuer: "https://issuer.example".to_owned(),
            audience: "https://mcp.example/mcp".to_owned(),
            jwks_url: None,
            tenant_claim: None,
            client_claim: None,
            leeway: Duration::from_secs(5),
            require_scopes: true,
        }
    }

    fn claims(change: &Value) -> Claims {
        let mut claims = json!({
            "iss": "https://issuer.example",
            "aud": "https://mcp.example/mcp",
            "sub": "ada",
            "exp": 1_060,
            "client_id": "app",
            "org": "acme",
            "scope": "tools:call openid",
        });
        for (name, value) in change.as_object().unwrap() {
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        claims.as_object().unwrap().clone()
    }

    fn judged(rules: &OauthRules, change: &Value) -> Result<Grant, &'static str> {
        judge(rules, &claims(change), NOW)
    }

    // req: AUTH-10, AUTH-11
    #[test]
    fn a_token_that_says_what_it_has_to_counts() {
        let grant = judged(&rules(), &json!({})).unwrap();
        let issuer = "https://issuer.example".to_owned();
        let context = ContextKey { issuer, subject: "ada".to_owned(), ..ContextKey::default() };
        assert_eq!(grant.context, context);
        assert_eq!(grant.scopes, Scopes::default().and(Scope::ToolsCall));
        assert_eq!(grant.ends, NOW + Duration::from_secs(65));
        for good in [
            json!({ "aud": ["https://other.example", "https://mcp.example/mcp"] }),
            json!({ "exp": 1_000.5 }),
            json!({ "exp": 996 }),
            json!({ "exp": 1e300 }),
            json!({ "nbf": 1_005 }),
            json!({ "nbf": -1 }),
        ] {
            assert!(judged(&rules(), &good).is_ok(), "{good}");
        }
    }

    // req: AUTH-10, AUTH-11
    #[test]
    fn a_token_that_lacks_something_does_not() {
        for bad in [
            json!({ "iss": null }),
            json!({ "iss": "https://issuer.example/" }),
            json!({ "iss": "HTTPS://issuer.example" }),
            json!({ "iss": ["https://issuer.example"] }),
            json!({ "aud": null }),
            json!({ "aud": "https://mcp.example" }),
            json!({ "aud": "https://mcp.example/mcp/" }),
            json!({ "aud": [] }),
            json!({ "aud": [["https://mcp.example/mcp"]] }),
            json!({ "exp": null }),
            json!({ "exp": "1060" }),
            json!({ "exp": 995 }),
            json!({ "exp": -1 }),
            json!({ "nbf": 1_006 }),
            json!({ "nbf": "soon" }),
            json!({ "cnf": { "jkt": "x" } }),
            json!({ "sub": null }),
            json!({ "sub": "" }),
            json!({ "sub": 7 }),
            json!({ "sub": "a\u{0}" }),
            json!({ "sub": "a".repeat(256) }),
        ] {
            assert!(judged(&rules(), &bad).is_err(), "{bad}");
        }
    }

    // req: AUTH-11
    #[test]
    fn tenant_and_client_are_of_the_context_where_they_are_configured() {
        let claim = |name: &str| Some(name.to_owned());
        let rules = OauthRules { tenant_claim: claim("org"), client_claim: claim("client_id"), ..rules() };
        let context = judged(&rules, &json!({})).unwrap().context;
        assert_eq!((context.tenant.as_str(), context.client.as_str()), ("acme", "app"));
        // One without would be nobody's tenant, and under nobody's limits.
        for bad in
            [json!({ "org": null }), json!({ "org": "" }), json!({ "org": ["acme"] }), json!({ "client_id": null })]
        {
            assert!(judged(&rules, &bad).is_err(), "{bad}");
        }
    }

    // req: AUTH-10
    #[test]
    fn scopes_come_by_either_name_and_in_either_form() {
        let scopes = |change| judged(&rules(), &change).unwrap().scopes;
        assert_eq!(scopes(json!({ "scope": "tasks:write tools:call" })), Scopes::ALL);
        assert_eq!(scopes(json!({ "scope": ["tasks:write", "tools:call"] })), Scopes::ALL);
        assert_eq!(scopes(json!({ "scope": null, "scp": "tasks:write tools:call" })), Scopes::ALL);
        assert_eq!(scopes(json!({ "scope": null, "scp": ["tasks:read"] })), Scopes::default().and(Scope::TasksRead));
        assert_eq!(scopes(json!({ "scope": null })), Scopes::default());
        assert_eq!(scopes(json!({ "scope": "tasks:* admin" })), Scopes::default());
        let without = OauthRules { require_scopes: false, ..rules() };
        assert_eq!(judged(&without, &json!({ "scope": null })).unwrap().scopes, Scopes::ALL);
    }
}
