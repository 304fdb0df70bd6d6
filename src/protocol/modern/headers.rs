//! Headers that repeat what the body says, so that a proxy can route by them (MOD-03): they have to say the same.

use std::borrow::Cow;

use data_encoding::BASE64;

use crate::domain::text::storable;

pub const VERSION_HEADER: &str = "mcp-protocol-version";
pub const METHOD_HEADER: &str = "mcp-method";
pub const NAME_HEADER: &str = "mcp-name";

const SENTINEL: (&str, &str) = ("=?base64?", "?=");

/// A header is missing, repeated, unreadable, or says something else than the body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("header mismatch: {header} is missing; it must repeat {field}")]
    Missing { header: String, field: String },
    #[error("header mismatch: {header} is there more than once")]
    Repeated { header: String },
    #[error("header mismatch: {header} holds bytes that are no visible ASCII, or a broken base64 text")]
    Unreadable { header: String },
    #[error("header mismatch: {header} says {said:?}, {field} says {expected:?}")]
    Different { header: String, said: String, field: String, expected: String },
    /// Neither value is shown: it is an argument.
    #[error("header mismatch: {header} and {field} differ")]
    Unlike { header: String, field: String },
    #[error("header mismatch: {header} is there, {field} is missing or has no value that it could repeat")]
    Unfounded { header: String, field: String },
}

/// Checks a header whose text stands for itself. `values` are those of the header, `field` names what it repeats.
///
/// # Errors
/// [`Mismatch`].
pub fn check_plain(header: &str, values: &[&[u8]], field: &str, expected: &str) -> Result<(), Mismatch> {
    let value = text(header, one(header, values, field)?)?;
    same(header, value, field, expected)
}

/// Checks a header that may be written in base64.
///
/// # Errors
/// [`Mismatch`].
pub fn check_encoded(header: &str, values: &[&[u8]], field: &str, expected: &str) -> Result<(), Mismatch> {
    let value = decoded(header, one(header, values, field)?)?;
    same(header, &value, field, expected)
}

/// The value of a header that stands for this text: the text itself where that is plain, else its base64.
#[must_use]
pub fn encoded(text: &str) -> Cow<'_, str> {
    let is_clean = text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    let is_trimmed = text.trim_matches([' ', '\t']).len() == text.len();
    let is_sentinel = text.starts_with(SENTINEL.0) && text.ends_with(SENTINEL.1);
    if is_clean && is_trimmed && !is_sentinel {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}{}{}", SENTINEL.0, BASE64.encode(text.as_bytes()), SENTINEL.1))
}

/// The only value of a header.
pub(super) fn one<'a>(header: &str, values: &[&'a [u8]], field: &str) -> Result<&'a [u8], Mismatch> {
    match values {
        [value] => Ok(value),
        [] => Err(Mismatch::Missing { header: header.to_owned(), field: field.to_owned() }),
        _ => Err(Mismatch::Repeated { header: header.to_owned() }),
    }
}

/// What a header stands for: its text, or what its base64 holds.
pub(super) fn decoded<'a>(header: &str, value: &'a [u8]) -> Result<Cow<'a, str>, Mismatch> {
    let plain = text(header, value)?;
    let Some(base64) = plain.strip_prefix(SENTINEL.0).and_then(|rest| rest.strip_suffix(SENTINEL.1)) else {
        return Ok(Cow::Borrowed(plain));
    };
    let bytes = BASE64.decode(base64.as_bytes()).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.map(Cow::Owned).ok_or_else(|| Mismatch::Unreadable { header: header.to_owned() })
}

fn text<'a>(header: &str, value: &'a [u8]) -> Result<&'a str, Mismatch> {
    let is_clean = value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    let text = std::str::from_utf8(value).ok().filter(|_| is_clean);
    text.map(|text| text.trim_matches([' ', '\t'])).ok_or_else(|| Mismatch::Unreadable { header: header.to_owned() })
}

fn same(header: &str, said: &str, field: &str, expected: &str) -> Result<(), Mismatch> {
    if said == expected {
        return Ok(());
    }
    Err(Mismatch::Different {
        header: header.to_owned(),
        said: storable(said, 128),
        field: field.to_owned(),
        expected: storable(expected, 128),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(values: &[&[u8]], expected: &str) -> Result<(), Mismatch> {
        check_encoded(NAME_HEADER, values, "params.name", expected)
    }

    // req: MOD-03
    #[test]
    fn a_header_says_what_the_body_says() {
        let plain = |values: &[&[u8]]| check_plain(METHOD_HEADER, values, "method", "tools/call");
        assert_eq!(plain(&[b"tools/call"]), Ok(()));
        assert_eq!(plain(&[b" tools/call\t"]), Ok(()), "white space around it is none of it");
        assert!(matches!(plain(&[]), Err(Mismatch::Missing { .. })));
        assert!(matches!(plain(&[b"tools/call", b"tools/call"]), Err(Mismatch::Repeated { .. })));
        assert!(matches!(plain(&[b"TOOLS/CALL"]), Err(Mismatch::Different { .. })), "values have a case");
        assert!(matches!(plain(&[b"tools\xc3\xa9"]), Err(Mismatch::Unreadable { .. })));
        let base64 = plain(&[b"=?base64?dG9vbHMvY2FsbA==?="]);
        assert!(matches!(base64, Err(Mismatch::Different { .. })), "names alone are encoded");
    }

    // req: MOD-03
    #[test]
    fn a_name_may_be_written_in_base64() {
        assert_eq!(encoded(&[b"us-west1"], "us-west1"), Ok(()));
        assert_eq!(encoded(&["=?base64?SGVsbG8sIOS4lueVjA==?=".as_bytes()], "Hello, 世界"), Ok(()));
        assert_eq!(encoded(&[b"=?base64?IHBhZGRlZCA=?="], " padded "), Ok(()));
        assert_eq!(encoded(&[b"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="], "=?base64?literal?="), Ok(()));
        for literal in ["=?base64?SGVsbG8=", "SGVsbG8=?=", "=?BASE64?SGVsbG8=?=", "=?base64?="] {
            assert_eq!(encoded(&[literal.as_bytes()], literal), Ok(()), "{literal} is no sentinel");
        }
        for broken in ["=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?=", "=?base64?/w==?=", "=?base64?SGVsbG8_?="] {
            assert!(matches!(encoded(&[broken.as_bytes()], "Hello"), Err(Mismatch::Unreadable { .. })), "{broken}");
        }
        assert!(encoded(&[b"=?base64?SGVsbG8=?="], "hello").is_err());
    }

    #[test]
    fn a_text_is_written_so_that_it_is_read_again() {
        for (text, written) in [
            ("us-west1", "us-west1"),
            ("a\tb c", "a\tb c"),
            ("", ""),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ("=?base64?half", "=?base64?half"),
        ] {
            assert_eq!(super::encoded(text), written);
            assert_eq!(encoded(&[written.as_bytes()], text), Ok(()), "{text:?}");
        }
    }

    #[test]
    fn a_long_value_is_cut_in_the_message() {
        let why = encoded(&[b"x"], &"y".repeat(10_000)).unwrap_err().to_string();
        assert!(why.len() < 300 && why.contains("params.name"), "{why}");
    }
}
