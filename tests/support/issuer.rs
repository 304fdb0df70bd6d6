//! An OAuth authorization server as far as a resource server sees one: metadata, keys, and tokens of any kind, good and bad.
//! It signs by itself, so that it says what the product's library would never write.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RsaKeyPair, RsaPublicKeyComponents,
};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::response::{IntoResponse, Response};
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What tokens are for, unless a test says otherwise.
pub const AUDIENCE: &str = "https://mcp.example/mcp";
const METADATA: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";
const KEYS: &str = "/keys";

/// A key pair and the name under which it is published.
#[derive(Clone)]
pub struct SigningKey {
    pub kid: String,
    pair: Arc<Pair>,
}

enum Pair {
    Rsa(RsaKeyPair),
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
}

impl SigningKey {
    pub fn rsa(kid: &str) -> Self {
        Self::of(kid, Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()))
    }

    pub fn es256(kid: &str) -> Self {
        Self::of(kid, Pair::Es256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()))
    }

    pub fn eddsa(kid: &str) -> Self {
        Self::of(kid, Pair::EdDsa(Ed25519KeyPair::generate().unwrap()))
    }

    fn of(kid: &str, pair: Pair) -> Self {
        Self { kid: kid.to_owned(), pair: Arc::new(pair) }
    }

    pub fn algorithm(&self) -> &'static str {
        match &*self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::Es256(_) => "ES256",
            Pair::EdDsa(_) => "EdDSA",
        }
    }

    /// As a JWK set has it.
    pub fn public(&self) -> Value {
        let text = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        match &*self.pair {
            Pair::Rsa(pair) => {
                let key = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({ "kty": "RSA", "kid": self.kid, "n": text(&key.n), "e": text(&key.e) })
            }
            Pair::Es256(pair) => {
                let point = pair.public_key().as_ref();
                json!({ "kty": "EC", "kid": self.kid, "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..]) })
            }
            Pair::EdDsa(pair) => {
                json!({ "kty": "OKP", "kid": self.kid, "crv": "Ed25519", "x": text(pair.public_key().as_ref()) })
            }
        }
    }

    /// The public key as bytes that somebody might take for a shared secret.
    pub fn public_der(&self) -> Vec<u8> {
        match &*self.pair {
            Pair::Rsa(pair) => pair.public_key().as_der().unwrap().as_ref().to_vec(),
            Pair::Es256(pair) => pair.public_key().as_ref().to_vec(),
            Pair::EdDsa(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    /// A JWT with exactly this header and these claims.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = unsigned(header, claims);
        let rsa = |pair: &RsaKeyPair, encoding: &'static dyn aws_lc_rs::signature::RsaEncoding| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(encoding, &SystemRandom::new(), message.as_bytes(), &mut signature).unwrap();
            signature
        };
        let signature = match (&*self.pair, header["alg"].as_str()) {
            (Pair::Rsa(pair), Some("PS256")) => rsa(pair, &RSA_PSS_SHA256),
            (Pair::Rsa(pair), Some("RS512")) => rsa(pair, &RSA_PKCS1_SHA512),
            (Pair::Rsa(pair), _) => rsa(pair, &RSA_PKCS1_SHA256),
            (Pair::Es256(pair), _) => pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec(),
            (Pair::EdDsa(pair), _) => pair.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", BASE64URL_NOPAD.encode(&signature))
    }

    /// The header of a good token of this key.
    pub fn header(&self) -> Value {
        json!({ "alg": self.algorithm(), "typ": "at+jwt", "kid": self.kid })
    }

    /// A token of this key with a good header.
    pub fn token(&self, claims: &Value) -> String {
        self.sign(&self.header(), claims)
    }
}

/// The first two parts of a JWT.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    format!("{}.{}", part(header), part(claims))
}

/// A value with some members changed, and those that are `null` left out.
pub fn changed(mut value: Value, changes: &Value) -> Value {
    for (name, change) in changes.as_object().unwrap() {
        match change {
            Value::Null => drop(value.as_object_mut().unwrap().remove(name)),
            change => value[name] = change.clone(),
        }
    }
    value
}

/// What the issuer's server does.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// It answers nothing but 503.
    pub away: bool,
    /// It has its metadata only where OpenID Connect has them.
    pub openid: bool,
    /// What it says that it is.
    pub issuer: Option<String>,
    /// Its keys lead elsewhere.
    pub redirects: bool,
    /// Its keys are these bytes.
    pub keys_text: Option<String>,
}

/// A running issuer; it stops when this is dropped.
pub struct Issuer {
    pub url: String,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Shared {
    url: String,
    manner: Mutex<Manner>,
    published: Mutex<Vec<Value>>,
    asked: AtomicU64,
}

impl Issuer {
    /// One that publishes these keys.
    pub async fn start(keys: &[SigningKey]) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { url: url.clone(), ..Shared::default() });
        let serving = Arc::clone(&shared);
        let router = axum::Router::new().fallback(async move |request: Request| serving.answer(request.uri().path()));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        taskhold::lifecycle::spawn("issuer", async move {
            tokio::select! {
                ended = axum::serve(listener, router) => ended.unwrap(),
                () = stopped.cancelled() => {}
            }
        });
        let issuer = Self { url, shared, stop };
        issuer.publish(keys);
        issuer
    }

    pub fn publish(&self, keys: &[SigningKey]) {
        self.publish_raw(keys.iter().map(SigningKey::public).collect());
    }

    pub fn publish_raw(&self, keys: Vec<Value>) {
        *self.shared.published.lock().unwrap() = keys;
    }

    pub fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// How often it was asked for its keys, or would have been had it answered.
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::SeqCst)
    }

    /// The claims of a good token that ends at this time.
    pub fn claims(&self, subject: &str, ends_s: i64) -> Value {
        json!({
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": subject,
            "exp": ends_s,
            "client_id": "app",
            "org": "acme",
            "scope": "tasks:read tasks:write tools:call",
        })
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shared {
    fn answer(&self, path: &str) -> Response {
        let manner = self.manner.lock().unwrap().clone();
        let json = |text: String| ([(CONTENT_TYPE, "application/json")], text).into_response();
        // Whoever looks for the keys comes by here first, or goes straight to them.
        if path == KEYS || (manner.away && path == METADATA) {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        let metadata = if manner.openid { OPENID } else { METADATA };
        match path {
            _ if manner.away => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            KEYS if manner.redirects => (StatusCode::FOUND, [(LOCATION, "/elsewhere")]).into_response(),
            KEYS => {
                let published = self.published.lock().unwrap();
                json(manner.keys_text.unwrap_or_else(|| json!({ "keys": *published }).to_string()))
            }
            "/elsewhere" => json(json!({ "keys": *self.published.lock().unwrap() }).to_string()),
            path if path == metadata => {
                let issuer = manner.issuer.as_ref().unwrap_or(&self.url);
                json(json!({ "issuer": issuer, "jwks_uri": format!("{}{KEYS}", self.url) }).to_string())
            }
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    }
}
