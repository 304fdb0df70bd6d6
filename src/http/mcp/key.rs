//! A call's idempotency key (KEEP-12): a header, or a key of `_meta` where headers cannot be set.

use axum::http::HeaderMap;

use crate::domain::json::RawJson;
use crate::protocol::legacy::InvalidParams;
use crate::protocol::scan::exact_string_value;
use crate::protocol::splice::member;

const HEADER: &str = "idempotency-key";
const META: &str = "io.taskhold/idempotencyKey";
const MOST_BYTES: usize = 255;

/// The key of a call, if it has one.
///
/// # Errors
/// If it is no text of 1 to 255 bytes, has control characters or half a surrogate pair, is there twice, or the two places differ.
pub(super) fn call_key(headers: &HeaderMap, params: Option<&RawJson>) -> Result<Option<String>, InvalidParams> {
    let wrong =
        |why: &str| InvalidParams(format!("the idempotency key (header Idempotency-Key, _meta[\"{META}\"]) {why}"));
    let mut values = headers.get_all(HEADER).iter();
    let in_header = match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => Some(value.to_str().map_err(|_| wrong("must be visible ASCII in a header"))?.to_owned()),
        (Some(_), Some(_)) => return Err(wrong("is there more than once")),
    };
    let meta = params.and_then(|params| member(params.as_str(), "_meta"));
    let in_meta = match meta.and_then(|meta| member(meta, META)) {
        None => None,
        Some(raw) if !raw.starts_with('"') => return Err(wrong("must be a string")),
        // Different ones would be the same key.
        Some(raw) => Some(exact_string_value(raw).ok_or_else(|| wrong("has an unpaired surrogate"))?.into_owned()),
    };
    let key = match (in_header, in_meta) {
        (Some(header), Some(meta)) if header != meta => return Err(wrong("differs in its two places")),
        (header, meta) => header.or(meta),
    };
    match key {
        Some(key) if key.is_empty() || key.len() > MOST_BYTES => Err(wrong("must have 1 to 255 bytes")),
        // Not every database keeps them.
        Some(key) if key.contains(char::is_control) => Err(wrong("must have no control characters")),
        key => Ok(key),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn key(headers: &[&str], meta: &str) -> Result<Option<String>, InvalidParams> {
        let mut map = HeaderMap::new();
        for value in headers {
            map.append(HEADER, HeaderValue::from_str(value).unwrap());
        }
        call_key(&map, Some(&RawJson::trusted(format!(r#"{{"_meta":{meta}}}"#))))
    }

    // req: KEEP-12
    #[test]
    fn a_key_comes_by_header_or_meta() {
        let meta = |value: &str| format!(r#"{{"{META}":{value}}}"#);
        let some = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(key(&[], "{}"), Ok(None));
        assert_eq!(key(&["a-1"], "{}"), some("a-1"));
        assert_eq!(key(&[], &meta(r#""\u00e9""#)), some("é"));
        assert_eq!(key(&[], &meta(r#""\ud83d\ude00""#)), some("\u{1f600}"));
        assert_eq!(key(&["same"], &meta(r#""same""#)), some("same"));
        let long = "x".repeat(256);
        for (headers, meta) in [
            (vec!["a", "a"], "{}".to_owned()),
            (vec!["a"], meta(r#""b""#)),
            (vec![], meta("7")),
            (vec![], meta(r#""""#)),
            (vec![], meta(r#""a\u0000b""#)),
            (vec![], meta(r#""a\nb""#)),
            (vec![], meta(r#""\u0085""#)),
            (vec!["a\tb"], "{}".to_owned()),
            (vec![], meta(r#""\ud800""#)),
            (vec![], meta(r#""\udc00\ud800""#)),
            (vec![long.as_str()], "{}".to_owned()),
        ] {
            assert!(key(&headers, &meta).unwrap_err().0.contains("idempotency key"), "{headers:?} {meta}");
        }
    }
}
