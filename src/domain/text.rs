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

/// Decoded JSON text, in which a lone surrogate stands as its three bytes of WTF-8: each becomes one U+FFFD.
#[must_use]
pub fn without_surrogates(mut wtf8: Vec<u8>) -> String {
    const REPLACEMENT: [u8; 3] = *b"\xEF\xBF\xBD";
    for at in 0..wtf8.len().saturating_sub(2) {
        // In UTF-8 no byte from 0xA0 on follows 0xED.
        if wtf8[at] == 0xED && wtf8[at + 1] >= 0xA0 {
            wtf8[at..at + 3].copy_from_slice(&REPLACEMENT);
        }
    }
    String::from_utf8(wtf8).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_surrogate_is_one_replacement_character() {
        let lone = b"a\xED\xA0\x80b\xED\xBF\xBF".to_vec();
        assert_eq!(without_surrogates(lone), "a\u{FFFD}b\u{FFFD}");
        assert_eq!(without_surrogates("\u{D7FF} 한글".into()), "\u{D7FF} 한글");
        assert_eq!(without_surrogates(b"\xED".to_vec()), "\u{FFFD}");
    }

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
