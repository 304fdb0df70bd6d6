//! Access tokens of an issuer, whose server runs in the test.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskhold::auth::{AuthRefusal, Authenticator, OauthAuthenticator, OauthRules};
use taskhold::domain::clock::{Clock, ManualClock, Timestamp};
use taskhold::domain::context::{AuthContext, Credential};
use taskhold::domain::scope::Scope;

use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::issuer::{AUDIENCE, Issuer, Manner, SigningKey, changed, unsigned};

contract! {
    the_caller_is_who_the_token_names,
}

const START_S: i64 = 1_796_000_000;

struct Given {
    issuer: Issuer,
    key: SigningKey,
    clock: Arc<ManualClock>,
    database: TestDatabase,
    rules: OauthRules,
    node: OauthAuthenticator,
}

impl Given {
    async fn new(key: SigningKey) -> Self {
        Self::on(TestDatabase::new(Backend::Sqlite).await, key).await
    }

    async fn on(database: TestDatabase, key: SigningKey) -> Self {
        let issuer = Issuer::start(std::slice::from_ref(&key)).await;
        let clock = ManualClock::at(Timestamp::from_micros(START_S * 1_000_000));
        let rules = OauthRules {
            issuer: issuer.url.clone(),
            audience: AUDIENCE.to_owned(),
            jwks_url: None,
            tenant_claim: None,
            client_claim: None,
            leeway: Duration::from_secs(5),
            require_scopes: true,
        };
        let node = OauthAuthenticator::unattended(rules.clone(), database.store.system(), clock.clone()).unwrap();
        Self { issuer, key, clock, database, rules, node }
    }

    /// A node of its own by these rules.
    fn node(&self, rules: OauthRules) -> OauthAuthenticator {
        OauthAuthenticator::unattended(rules, self.database.store.system(), self.clock.clone()).unwrap()
    }

    /// The claims of a token that is good for an hour, but for these changes.
    fn claims(&self, changes: &Value) -> Value {
        let now = self.clock.now().micros() / 1_000_000;
        changed(self.issuer.claims("ada", now + 3600), changes)
    }

    fn token(&self, changes: &Value) -> String {
        self.key.token(&self.claims(changes))
    }

    async fn show(&self, token: &str) -> Result<AuthContext, AuthRefusal> {
        show(&self.node, token).await
    }

    fn later(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

async fn show(node: &OauthAuthenticator, token: &str) -> Result<AuthContext, AuthRefusal> {
    node.authenticate(&[format!("Bearer {token}").as_bytes()]).await
}

// req: AUTH-10
#[tokio::test]
async fn each_kind_of_signature_is_checked_once() {
    for key in [SigningKey::rsa("k"), SigningKey::es256("k"), SigningKey::eddsa("k")] {
        let given = Given::new(key).await;
        let token = given.token(&json!({}));
        let caller = given.show(&token).await.unwrap();
        assert_eq!(caller.credential(), Credential::OAuth);
        assert!(caller.is_identified() && Scope::ALL.into_iter().all(|scope| caller.may(scope)));
        assert_eq!(given.show(&token).await.unwrap(), caller);
        assert_eq!((given.node.verifications(), given.issuer.asked()), (1, 1), "{}", given.key.algorithm());
        // One bit of what it says, or of its signature.
        let (message, signature) = token.rsplit_once('.').unwrap();
        let (header, _) = message.split_once('.').unwrap();
        let other = unsigned(&given.key.header(), &given.claims(&json!({ "sub": "eve" })));
        assert_eq!(given.show(&format!("{other}.{signature}")).await, Err(AuthRefusal::Invalid));
        let end = if signature.starts_with('A') { "B" } else { "A" };
        assert_eq!(given.show(&format!("{message}.{end}{}", &signature[1..])).await, Err(AuthRefusal::Invalid));
        for cut in [format!("{message}."), message.to_owned(), header.to_owned(), format!("{token}.{token}")] {
            assert_eq!(given.show(&cut).await, Err(AuthRefusal::Invalid), "{cut}");
        }
    }
}

// req: AUTH-10
#[tokio::test]
async fn no_header_talks_us_into_another_way_of_checking() {
    let (rsa, curve) = (SigningKey::rsa("rsa"), SigningKey::es256("curve"));
    let given = Given::new(rsa.clone()).await;
    // A key for encryption, one for another algorithm and a shared secret are published too.
    let extra = |changes: Value| changed(rsa.public(), &changes);
    given.issuer.publish_raw(vec![
        extra(json!({ "alg": "RS256", "use": "sig", "key_ops": ["verify"] })),
        curve.public(),
        extra(json!({ "kid": "enc", "use": "enc" })),
        extra(json!({ "kid": "pss", "alg": "PS256" })),
        extra(json!({ "kid": "signs", "key_ops": ["sign"] })),
        json!({ "kty": "oct", "kid": "oct", "k": "c2VjcmV0" }),
        json!({ "kty": "new", "kid": "new" }),
        json!("no key"),
    ]);
    let claims = given.claims(&json!({}));
    given.show(&rsa.token(&claims)).await.unwrap();
    given.show(&curve.token(&claims)).await.unwrap();
    let header = |changes: Value| changed(rsa.header(), &changes);
    let hmac = |secret: &[u8], kid: &str| {
        let message = unsigned(&json!({ "alg": "HS256", "typ": "JWT", "kid": kid }), &claims);
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
        let tag = aws_lc_rs::hmac::sign(&key, message.as_bytes());
        format!("{message}.{}", data_encoding::BASE64URL_NOPAD.encode(tag.as_ref()))
    };
    let none = |alg: &str| format!("{}.", unsigned(&json!({ "alg": alg, "kid": "rsa" }), &claims));
    let thief = SigningKey::rsa("rsa");
    let theirs = |changes: Value| thief.sign(&header(changes), &claims);
    for (what, token) in [
        ("none", none("none")),
        ("None", none("None")),
        ("none with a signature", rsa.sign(&header(json!({ "alg": "none" })), &claims)),
        ("the public key as a secret", hmac(&rsa.public_der(), "rsa")),
        ("the published secret", hmac(b"secret", "oct")),
        ("another RSA hash", rsa.sign(&header(json!({ "alg": "RS512" })), &claims)),
        ("PSS", rsa.sign(&header(json!({ "alg": "PS256", "kid": "pss" })), &claims)),
        ("PSS by the name of RS256", rsa.sign(&header(json!({ "kid": "pss" })), &claims)),
        ("a key for encryption", rsa.sign(&header(json!({ "kid": "enc" })), &claims)),
        ("a key for signing only", rsa.sign(&header(json!({ "kid": "signs" })), &claims)),
        ("another key under the same name", theirs(json!({}))),
        ("a key that it brings along", theirs(json!({ "jwk": thief.public() }))),
        ("a key that it points at", theirs(json!({ "jku": "http://127.0.0.1:1/keys", "x5u": "http://127.0.0.1:1/x" }))),
        ("the name of a key of another kind", curve.sign(&changed(curve.header(), &json!({ "kid": "rsa" })), &claims)),
        ("the algorithm of another kind", rsa.sign(&header(json!({ "alg": "ES256", "kid": "curve" })), &claims)),
        ("what must be understood", rsa.sign(&header(json!({ "crit": ["exp"], "exp": 1 })), &claims)),
        ("a body that is not encoded", rsa.sign(&header(json!({ "crit": ["b64"], "b64": false })), &claims)),
        ("another kind of JWT", rsa.sign(&header(json!({ "typ": "logout+jwt" })), &claims)),
        ("an unknown algorithm", rsa.sign(&header(json!({ "alg": "ES256K" })), &claims)),
        ("claims that are no object", rsa.sign(&rsa.header(), &json!([claims.clone()]))),
        ("no JWT", "x".repeat(40)),
    ] {
        assert_eq!(given.show(&token).await, Err(AuthRefusal::Invalid), "{what}");
    }
    for typ in [json!("JWT"), json!("AT+JWT"), json!("application/at+jwt"), Value::Null] {
        let token = rsa.sign(&header(json!({ "typ": typ })), &claims);
        given.show(&token).await.unwrap();
    }
    // Of each kind there is one key, so that a name is not needed.
    given.show(&rsa.sign(&header(json!({ "kid": null })), &claims)).await.unwrap();
    given.later(30);
    given.issuer.publish(&[rsa.clone(), SigningKey::rsa("second")]);
    given.show(&rsa.sign(&header(json!({ "kid": "third" })), &claims)).await.unwrap_err();
    assert_eq!(given.show(&rsa.sign(&header(json!({ "kid": null })), &claims)).await, Err(AuthRefusal::Invalid));
    let long = given.token(&json!({ "more": "x".repeat(8 * 1024) }));
    assert_eq!(given.show(&long).await, Err(AuthRefusal::Malformed), "more than a header may have");
}

// req: AUTH-10
// field case: F-AUTH-07 (a token for somebody else)
#[tokio::test]
async fn a_token_counts_for_its_audience_and_for_its_time() {
    let given = Given::new(SigningKey::es256("k")).await;
    for bad in [
        json!({ "aud": "https://other.example/mcp" }),
        json!({ "aud": null }),
        json!({ "iss": format!("{}/", given.issuer.url) }),
        json!({ "exp": START_S - 5 }),
        json!({ "nbf": START_S + 6 }),
        json!({ "exp": null }),
        json!({ "sub": null }),
    ] {
        assert_eq!(given.show(&given.token(&bad)).await, Err(AuthRefusal::Invalid), "{bad}");
    }
    let token = given.token(&json!({ "exp": START_S + 60, "nbf": START_S + 5, "aud": ["x", AUDIENCE] }));
    given.show(&token).await.unwrap();
    given.later(64);
    given.show(&token).await.unwrap();
    given.later(1);
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Invalid), "it has ended, and the leeway with it");
    let rows = given.database.rows().await;
    given.show(&given.token(&json!({ "sub": "eve", "aud": "x" }))).await.unwrap_err();
    assert_eq!(given.database.rows().await, rows, "who is refused leaves nothing behind");
}

// req: AUTH-11
async fn the_caller_is_who_the_token_names(database: TestDatabase) {
    let given = Given::on(database, SigningKey::es256("k")).await;
    let ada = given.show(&given.token(&json!({}))).await.unwrap();
    given.later(3000);
    let refreshed = given.token(&json!({ "client_id": "another", "jti": "2", "scope": "tasks:read" }));
    let again = given.show(&refreshed).await.unwrap();
    assert_eq!((again.id(), again.tenant()), (ada.id(), None));
    assert!(again.may(Scope::TasksRead) && !again.may(Scope::TasksWrite) && !again.may(Scope::ToolsCall));
    let claim = |name: &str| Some(name.to_owned());
    let second = given.node(given.rules.clone());
    assert_eq!(show(&second, &refreshed).await.unwrap().id(), ada.id(), "on every node");
    assert_ne!(given.show(&given.token(&json!({ "sub": "bob" }))).await.unwrap().id(), ada.id());

    let rules = OauthRules { tenant_claim: claim("org"), client_claim: claim("client_id"), ..given.rules.clone() };
    let node = given.node(rules);
    let of = async |changes: Value| show(&node, &given.token(&changes)).await;
    let acme = of(json!({})).await.unwrap();
    assert_eq!(acme.tenant(), Some("acme"));
    let others = [of(json!({ "org": "beta" })).await.unwrap(), of(json!({ "client_id": "another" })).await.unwrap()];
    assert!(acme.id() != ada.id() && others.iter().all(|other| other.id() != acme.id()));
    assert_eq!(of(json!({ "jti": "3" })).await.unwrap().id(), acme.id());
    for bad in [json!({ "org": null }), json!({ "client_id": null })] {
        assert_eq!(of(bad).await, Err(AuthRefusal::Invalid));
    }
}

// req: AUTH-10
#[tokio::test]
async fn a_new_key_is_fetched_once_for_all_who_name_it() {
    let given = Given::new(SigningKey::es256("old")).await;
    let old = given.token(&json!({}));
    given.show(&old).await.unwrap();
    assert_eq!(given.issuer.asked(), 1);
    let new = SigningKey::es256("new");
    given.issuer.publish(&[given.key.clone(), new.clone()]);
    let rotated = new.token(&given.claims(&json!({})));
    assert_eq!(given.show(&rotated).await, Err(AuthRefusal::Invalid), "the last look was a moment ago");
    given.later(30);
    let shown = std::iter::repeat_with(|| given.show(&rotated)).take(8);
    for shown in futures_util::future::join_all(shown).await {
        shown.unwrap();
    }
    assert_eq!(given.issuer.asked(), 2);
    given.show(&old).await.unwrap();
    // Names of keys that there are not, as many as somebody likes to make up.
    for round in 0..3 {
        let made_up: Vec<String> = (0..20)
            .map(|n| {
                given.key.sign(&changed(given.key.header(), &json!({ "kid": format!("{round}-{n}") })), &json!({}))
            })
            .collect();
        let shown = futures_util::future::join_all(made_up.iter().map(|token| given.show(token))).await;
        assert!(shown.iter().all(|shown| *shown == Err(AuthRefusal::Invalid)), "{shown:?}");
        given.later(10);
    }
    assert_eq!(given.issuer.asked(), 2);
}

// req: AUTH-10
#[tokio::test]
async fn a_key_that_is_taken_back_takes_its_tokens_with_it() {
    let given = Given::new(SigningKey::es256("old")).await;
    let token = given.token(&json!({}));
    given.show(&token).await.unwrap();
    let new = SigningKey::es256("new");
    given.issuer.publish(std::slice::from_ref(&new));
    given.node.refresh().await;
    given.show(&token).await.unwrap();
    assert_eq!(given.issuer.asked(), 1, "it is not time yet");
    given.later(600);
    given.node.refresh().await;
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Invalid));
    given.show(&new.token(&given.claims(&json!({})))).await.unwrap();
    assert_eq!(given.issuer.asked(), 2);
}

// req: AUTH-10, KEEP-11
#[tokio::test]
async fn while_the_issuer_is_away_known_keys_serve_for_a_day() {
    let given = Given::new(SigningKey::es256("k")).await;
    let away = |away| given.issuer.behave(Manner { away, ..Manner::default() });
    away(true);
    let token = given.token(&json!({ "exp": START_S + 2 * 86_400 }));
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Unavailable), "nobody knows whether it is good");
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Unavailable));
    assert_eq!(given.issuer.asked(), 1, "not asked again at once");
    assert_eq!(given.show("nonsense").await, Err(AuthRefusal::Invalid), "that is known without");
    away(false);
    given.later(10);
    given.show(&token).await.unwrap();
    let short = given.token(&json!({}));
    given.show(&short).await.unwrap();
    away(true);
    given.later(86_400 - 1);
    given.node.refresh().await;
    given.show(&token).await.unwrap();
    given.show(&given.token(&json!({ "sub": "bob" }))).await.unwrap();
    let unknown = SigningKey::es256("unknown").token(&given.claims(&json!({})));
    assert_eq!(given.show(&unknown).await, Err(AuthRefusal::Unavailable), "the key may be new");
    given.later(1);
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Unavailable));
    assert_eq!(given.show(&short).await, Err(AuthRefusal::Invalid), "no key would make it good again");
    away(false);
    given.later(10);
    given.node.refresh().await;
    given.show(&token).await.unwrap();
}

// req: AUTH-10
#[tokio::test]
async fn keys_come_from_the_configured_issuer_or_not_at_all() {
    let given = Given::new(SigningKey::es256("k")).await;
    given.issuer.behave(Manner { openid: true, ..Manner::default() });
    assert_eq!(given.rules.try_keys().await, Ok(1));
    let direct = OauthRules { jwks_url: Some(format!("{}/keys", given.issuer.url)), ..given.rules.clone() };
    assert_eq!(direct.try_keys().await, Ok(1));
    let keys_text = |text: String| Manner { keys_text: Some(text), ..Manner::default() };
    for (manner, why) in [
        (Manner { issuer: Some("https://evil.example".to_owned()), ..Manner::default() }, "not exactly oauth.issuer"),
        (Manner { redirects: true, ..Manner::default() }, "answers 302"),
        (Manner { away: true, ..Manner::default() }, "answers 503"),
        (keys_text("{".to_owned()), "it is no JWK set"),
        (keys_text("{\"keys\":[]}".to_owned()), "has no key for RS256, ES256 or EdDSA"),
        (keys_text(format!("{{\"keys\":[],\"x\":\"{}\"}}", "x".repeat(256 * 1024))), "is larger than 262144 bytes"),
    ] {
        given.issuer.behave(manner);
        let told = given.rules.try_keys().await.unwrap_err();
        assert!(told.contains(why) && told.contains(&given.issuer.url), "{told}");
    }
}

// req: AUTH-10
#[tokio::test]
async fn what_is_told_of_an_issuer_has_no_secret_of_the_url_and_little_of_its_text() {
    let given = Given::new(SigningKey::es256("k")).await;
    let host = given.issuer.url.strip_prefix("http://").unwrap();
    let secret = format!("http://ada:hunter2@{host}/none?apikey=hunter3");
    let told = OauthRules { jwks_url: Some(secret), ..given.rules.clone() }.try_keys().await.unwrap_err();
    assert!(told.contains("answers 404") && told.contains(host) && !told.contains("hunter"), "{told}");
    let long = "x".repeat(5000);
    for manner in [
        Manner { issuer: Some(long.clone()), ..Manner::default() },
        Manner { keys_text: Some(format!("{{\"keys\":\"{long}\"}}")), ..Manner::default() },
    ] {
        given.issuer.behave(manner);
        let told = given.rules.try_keys().await.unwrap_err();
        assert!(told.contains(&long[..100]) && !told.contains(&long[..201]), "{told}");
    }
}

// req: AUTH-10
#[tokio::test]
async fn an_issuer_that_takes_all_keys_back_is_believed_and_one_that_says_nonsense_is_not() {
    let given = Given::new(SigningKey::es256("k")).await;
    let (token, key) = (given.token(&json!({ "exp": START_S + 86_400 })), given.key.public());
    given.show(&token).await.unwrap();
    let refreshed = async || {
        given.later(600);
        given.node.refresh().await;
        given.show(&token).await.map(drop)
    };
    given.issuer.behave(Manner { keys_text: Some("{\"keys\":".to_owned()), ..Manner::default() });
    assert_eq!(refreshed().await, Ok(()), "that is no set of keys");
    given.issuer.behave(Manner::default());
    for empty in [vec![], vec![json!({ "kty": "oct", "kid": "k", "k": "c2VjcmV0" })]] {
        given.issuer.publish_raw(vec![key.clone()]);
        assert_eq!(refreshed().await, Ok(()));
        given.issuer.publish_raw(empty.clone());
        assert_eq!(refreshed().await, Err(AuthRefusal::Invalid), "{empty:?}");
    }
    let fresh = given.node(given.rules.clone());
    assert_eq!(show(&fresh, &token).await.map(drop), Err(AuthRefusal::Invalid), "nor by who asks for the first time");
}

// req: AUTH-10
#[tokio::test]
async fn the_same_keys_in_another_order_are_no_new_keys() {
    let given = Given::new(SigningKey::es256("a")).await;
    let (a, b) = (given.key.public(), SigningKey::es256("b").public());
    given.issuer.publish_raw(vec![a.clone(), b.clone()]);
    let token = given.token(&json!({}));
    given.show(&token).await.unwrap();
    for order in [vec![b.clone(), a.clone()], vec![a.clone(), b.clone(), a.clone()]] {
        given.issuer.publish_raw(order);
        given.later(600);
        given.node.refresh().await;
        given.show(&token).await.unwrap();
        assert_eq!(given.node.verifications(), 1, "what was verified is remembered");
    }
    assert_eq!(given.issuer.asked(), 3);
}

// req: AUTH-10
#[tokio::test]
async fn a_token_for_another_purpose_is_refused_though_the_issuer_signed_it() {
    let given = Given::new(SigningKey::es256("k")).await;
    let claims = |name: &str| given.claims(&json!({ name: "x" }));
    for typ in [json!("JWT"), Value::Null] {
        let header = changed(given.key.header(), &json!({ "typ": typ }));
        for name in ["nonce", "at_hash", "c_hash", "events"] {
            let shown = given.show(&given.key.sign(&header, &claims(name))).await;
            assert_eq!(shown, Err(AuthRefusal::Invalid), "{name}");
        }
        given.show(&given.key.sign(&header, &claims("auth_time"))).await.unwrap();
    }
    // It says itself that it is an access token.
    given.show(&given.key.token(&claims("nonce"))).await.unwrap();
}
