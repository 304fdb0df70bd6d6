//! Signatures: the one place that knows the JWT library.
//!
//! What a token's header says chooses among our issuer's keys and nothing more. Only public-key algorithms are known here, so
//! that a public key can never pass for a shared secret; keys that a token brings along or points at (`jwk`, `jku`, `x5c`,
//! `x5u`) are not looked at.

use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The most keys that are kept of an issuer.
const MOST_KEYS: usize = 64;

/// What a token says of itself.
pub(super) type Claims = Map<String, Value>;

/// What its header says of how a token was signed.
pub(super) struct Signed {
    algorithm: Algorithm,
    kid: Option<String>,
    /// Whether it says that it is an access token, and not just a JWT.
    is_named: bool,
}

impl Signed {
    /// `None` for what is no JWT, is signed in a way that is not taken, or is a JWT of another kind than an access token.
    pub(super) fn read(token: &str) -> Option<Self> {
        let header = decode_header(token).ok()?;
        let is_taken = matches!(header.alg, Algorithm::RS256 | Algorithm::ES256 | Algorithm::EdDSA);
        // Many issuers say "JWT" or nothing of access tokens; other kinds name themselves.
        let typ = header.typ.as_deref();
        let is_named =
            typ.is_some_and(|typ| ["at+jwt", "application/at+jwt"].iter().any(|known| known.eq_ignore_ascii_case(typ)));
        let may_be_one = is_named || typ.is_none_or(|typ| typ.eq_ignore_ascii_case("JWT"));
        (is_taken && may_be_one).then_some(Self { algorithm: header.alg, kid: header.kid, is_named })
    }

    /// Whether its header says that it is an access token (RFC 9068).
    pub(super) const fn is_named_access_token(&self) -> bool {
        self.is_named
    }
}

/// A public key of the issuer, for one algorithm.
#[derive(Debug)]
pub(super) struct Key {
    kid: Option<String>,
    algorithm: Algorithm,
    jwk: AlgorithmParameters,
    decoding: DecodingKey,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        (&self.kid, self.algorithm, &self.jwk) == (&other.kid, other.algorithm, &other.jwk)
    }
}

impl Key {
    /// `None` for a key that is not for signatures of ours.
    fn read(jwk: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(jwk).ok()?;
        let (algorithm, named) = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                (Algorithm::ES256, KeyAlgorithm::ES256)
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
            }
            _ => return None,
        };
        let common = &jwk.common;
        let verifies = |operations: &Vec<KeyOperations>| operations.contains(&KeyOperations::Verify);
        let is_for_us = common.key_algorithm.is_none_or(|said| said == named)
            && common.public_key_use.as_ref().is_none_or(|used| *used == PublicKeyUse::Signature)
            && common.key_operations.as_ref().is_none_or(verifies);
        let decoding = DecodingKey::from_jwk(&jwk).ok().filter(|_| is_for_us)?;
        Some(Self { kid: jwk.common.key_id, algorithm, jwk: jwk.algorithm, decoding })
    }

    /// What the token says, if this key signed it.
    pub(super) fn verify(&self, token: &str) -> Option<Claims> {
        let mut validation = Validation::new(self.algorithm);
        // The library would judge times by the system's clock; all claims are judged in `claims.rs`.
        (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
        validation.required_spec_claims.clear();
        decode::<Claims>(token, &self.decoding, &validation).ok().map(|data| data.claims)
    }
}

/// The keys that an issuer publishes, each once.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<Arc<Key>>);

/// In whatever order: some issuers publish the same keys in another one each time.
impl PartialEq for KeySet {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().all(|key| other.0.contains(key))
    }
}

impl KeySet {
    /// Keys of other kinds are left out. There may be none left: an issuer can take back all that it had.
    ///
    /// # Errors
    /// If it is no JWK set.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let Document { keys } = serde_json::from_slice(text).map_err(|error| format!("it is no JWK set: {error}"))?;
        let mut known = Vec::new();
        for key in keys.into_iter().filter_map(Key::read).take(MOST_KEYS).map(Arc::new) {
            if !known.contains(&key) {
                known.push(key);
            }
        }
        Ok(Self(known))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The key that a token says it was signed with. One that names none is taken if there is one key that it can mean.
    pub(super) fn find(&self, signed: &Signed) -> Option<Arc<Key>> {
        let mut fitting = self.0.iter().filter(|key| key.algorithm == signed.algorithm);
        match &signed.kid {
            Some(kid) => fitting.find(|key| key.kid.as_ref() == Some(kid)).cloned(),
            None => fitting.next().filter(|_| fitting.next().is_none()).cloned(),
        }
    }
}
