//! The text of an access token: `th_<id>_<secret>_<check>`.

use std::sync::LazyLock;

use data_encoding::{Encoding, Specification};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::SecretString;
use sha2::Sha256;
use uuid::Uuid;

use crate::domain::ids::TokenId;

pub const SECRET_BYTES: usize = 32;
const CHECK_BYTES: usize = 8;

/// Lower-case base32 without padding. Each value has exactly one text: spare bits must be zero.
static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = Specification::new();
    specification.symbols.push_str("abcdefghijklmnopqrstuvwxyz234567");
    specification.encoding().expect("32 different symbols make an encoding")
});

/// Makes and reads tokens of this installation. The check tells them from forged and mistyped ones before anything
/// expensive happens (AUTH-08).
#[derive(Clone)]
pub struct TokenKey([u8; 32]);

/// What a token says, its check being right.
pub struct Parsed {
    pub id: TokenId,
    pub secret: [u8; SECRET_BYTES],
}

impl TokenKey {
    #[must_use]
    pub const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    #[must_use]
    pub fn write(&self, id: TokenId, secret: &[u8; SECRET_BYTES]) -> SecretString {
        let check = self.check(id, secret).finalize().into_bytes();
        let parts = [id.as_uuid().as_bytes().as_slice(), secret, &check[..CHECK_BYTES]].map(|part| BASE32.encode(part));
        format!("th_{}", parts.join("_")).into()
    }

    /// `None` for every text that [`Self::write`] did not make with the same key.
    pub fn read(&self, text: &str) -> Option<Parsed> {
        let mut parts = text.strip_prefix("th_")?.split('_');
        let (id, secret, check) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let id = TokenId::from_uuid(Uuid::from_bytes(decode(id)?));
        let secret = decode(secret)?;
        let check: [u8; CHECK_BYTES] = decode(check)?;
        // In constant time.
        self.check(id, &secret).verify_truncated_left(&check).ok()?;
        Some(Parsed { id, secret })
    }

    fn check(&self, id: TokenId, secret: &[u8; SECRET_BYTES]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(id.as_uuid().as_bytes());
        mac.update(secret);
        mac
    }
}

fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    // Bounds the work before decoding starts.
    if text.len() != (N * 8).div_ceil(5) {
        return None;
    }
    BASE32.decode(text.as_bytes()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;
    use crate::domain::ids::random_bytes;

    #[test]
    fn tokens_have_the_documented_form() {
        let key = TokenKey::new([7; 32]);
        let id = TokenId::new();
        let secret = random_bytes();
        let token = key.write(id, &secret);
        let lengths: Vec<usize> = token.expose_secret().split('_').map(str::len).collect();
        assert_eq!(lengths, [2, 26, 52, 13]);
        assert!(token.expose_secret().bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7' | b'_')));
        let parsed = key.read(token.expose_secret()).unwrap();
        assert_eq!((parsed.id, parsed.secret), (id, secret));
        assert!(TokenKey::new([8; 32]).read(token.expose_secret()).is_none());
    }

    // req: AUTH-08
    #[test]
    fn every_mistyped_token_is_found_by_its_check() {
        let key = TokenKey::new([7; 32]);
        let token = key.write(TokenId::new(), &random_bytes());
        let token = token.expose_secret();
        for at in 0..token.len() {
            for symbol in ['a', 'b', 'z', '2', '7', '_', 'A', '='] {
                let mut typed = token.to_owned();
                typed.replace_range(at..=at, &symbol.to_string());
                assert!(typed == token || key.read(&typed).is_none(), "{at} {symbol}");
            }
            assert!(key.read(&token[..at]).is_none());
        }
        for other in [&format!("{token}a"), &format!("{token}_a"), &token.to_uppercase(), "", "th_", "th___"] {
            assert!(key.read(other).is_none(), "{other}");
        }
    }
}
