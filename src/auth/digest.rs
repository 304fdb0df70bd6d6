//! By what tokens are remembered: a digest that means nothing outside this process.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::domain::ids::random_bytes;

pub(super) type Digest = [u8; 32];

pub(super) struct DigestKey([u8; 32]);

impl DigestKey {
    pub(super) fn new() -> Self {
        Self(random_bytes())
    }

    pub(super) fn of(&self, token: &str) -> Digest {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(token.as_bytes());
        mac.finalize().into_bytes().into()
    }
}
