//! How token secrets are stored: argon2id (AUTH-06).
//!
//! A 256-bit secret needs no stretching, so the parameters are small; the hash is there so that a stolen database holds
//! no token.

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};

use super::format::SECRET_BYTES;
use crate::domain::ids::random_bytes;

/// The hash in PHC form. Takes a few milliseconds.
pub(super) fn hash(secret: &[u8; SECRET_BYTES]) -> String {
    let salt = random_bytes::<16>();
    let hash: PasswordHash =
        argon2().hash_password_with_salt(secret, &salt).expect("32 bytes and a salt of 16 can be hashed");
    hash.to_string()
}

/// Whether the hash is of this secret. Takes a few milliseconds; a hash that cannot be read is of no secret.
pub(super) fn verify(hash: &str, secret: &[u8; SECRET_BYTES]) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| argon2().verify_password(secret, &hash).is_ok())
}

fn argon2() -> Argon2<'static> {
    let params = Params::new(4 * 1024, 1, 1, None).expect("4 MiB, one pass and one lane are within argon2's limits");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: AUTH-06
    #[test]
    fn what_is_stored_is_an_argon2id_hash() {
        let secret = random_bytes();
        let stored = hash(&secret);
        assert!(stored.starts_with("$argon2id$v=19$m=4096,t=1,p=1$"), "{stored}");
        assert_ne!(stored, hash(&secret), "each has a salt of its own");
        assert!(verify(&stored, &secret));
        assert!(!verify(&stored, &random_bytes()));
        assert!(!verify("", &secret) && !verify("$argon2id$", &secret));
    }
}
