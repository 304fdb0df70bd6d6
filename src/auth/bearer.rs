//! Reading the `Authorization` header (RFC 6750, AUTH-01).

use super::AuthRefusal;

/// Longer credentials are refused before anything looks at them.
const MOST_BYTES: usize = 8 * 1024;

/// The token of exactly one header `Bearer TOKEN`: the scheme in any case, one space, token68.
///
/// # Errors
/// [`AuthRefusal::Missing`] without a header, [`AuthRefusal::Malformed`] for anything else that is not exactly that.
pub fn bearer<'a>(authorization: &[&'a [u8]]) -> Result<&'a str, AuthRefusal> {
    let value = match authorization {
        [] => return Err(AuthRefusal::Missing),
        [value] if value.len() <= MOST_BYTES => value,
        _ => return Err(AuthRefusal::Malformed),
    };
    let text = std::str::from_utf8(value).map_err(|_| AuthRefusal::Malformed)?;
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("Bearer") && is_token68(token) => Ok(token),
        _ => Err(AuthRefusal::Malformed),
    }
}

fn is_token68(text: &str) -> bool {
    let bare = text.trim_end_matches('=');
    !bare.is_empty()
        && bare.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b'+' | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: AUTH-01
    #[test]
    fn exactly_one_bearer_token_is_read() {
        assert_eq!(bearer(&[]), Err(AuthRefusal::Missing));
        for good in ["Bearer th_a", "bearer th_a", "BEARER th_a"] {
            assert_eq!(bearer(&[good.as_bytes()]), Ok("th_a"), "{good}");
        }
        assert_eq!(bearer(&[b"Bearer aA0-._~+/=="]), Ok("aA0-._~+/=="));
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer  th_a",
            "Bearer th_a ",
            " Bearer th_a",
            "Bearer\tth_a",
            "Bearer th_a, Bearer th_b",
            "Bearer th_a th_b",
            "Bearer =",
            "Bearer a=b",
            "Bearer tö",
            "Basic dTpw",
            "th_a",
        ] {
            assert_eq!(bearer(&[bad.as_bytes()]), Err(AuthRefusal::Malformed), "{bad:?}");
        }
        assert_eq!(bearer(&[b"Bearer \xff"]), Err(AuthRefusal::Malformed));
        assert_eq!(bearer(&[b"Bearer a", b"Bearer a"]), Err(AuthRefusal::Malformed));
        assert_eq!(bearer(&[format!("Bearer {}", "a".repeat(10_000)).as_bytes()]), Err(AuthRefusal::Malformed));
    }
}
