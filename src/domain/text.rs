//! Decoded text on its way into a column: status messages, names, keys.

/// The text as every database can keep it: U+0000 becomes U+FFFD, and at most `limit` bytes remain, cut on a
/// character boundary (with an ellipsis when there is room for one).
///
/// Lone surrogates cannot be in a `str`; whoever decodes JSON escapes puts U+FFFD in their place.
#[must_use]
pub fn storable(text: &str, limit: usize) -> String {
    const ELLIPSIS: &str = "…";
    let clean = text.replace('\0', "\u{FFFD}");
    if clean.len() <= limit {
        return clean;
    }
    let (keep, tail) = if limit >= ELLIPSIS.len() { (limit - ELLIPSIS.len(), ELLIPSIS) } else { (limit, "") };
    format!("{}{tail}", &clean[..clean.floor_char_boundary(keep)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_on_a_character_boundary() {
        assert_eq!(storable("short", 512), "short");
        assert_eq!(storable("a\0b", 512), "a\u{FFFD}b");
        assert_eq!(storable("äöüäöü", 8), "äö…");
        assert_eq!(storable("äöü", 1), "");
        for limit in 0..40 {
            assert!(storable("日本語テキスト\0と絵文字🦀", limit).len() <= limit);
        }
    }
}
