//! The one scanner that every message passes when it is accepted, from clients and from upstreams.
//!
//! It checks UTF-8 and the whole JSON grammar, bounds the depth, refuses duplicate keys where two readers could
//! understand one message differently (the envelope, `params`, `params._meta`, `params.arguments`), and puts the text
//! on one line. It interprets nothing else: any number token and any escape passes, lone surrogates too. It is
//! iterative and allocates nothing that grows with the depth.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use crate::domain::json::RawJson;
use crate::domain::text::without_surrogates;

/// The deepest nesting of arrays and objects that is accepted; `serde_json` refuses one level more.
pub const MAX_DEPTH: u32 = 127;

/// One JSON value that was accepted: the text on one line, and where the members of the outermost object are.
#[derive(Debug, Clone)]
pub struct Scanned<'a> {
    text: Cow<'a, str>,
    value: Range<usize>,
    members: Vec<Member>,
}

/// Where a member of the outermost object is: the key without its quotes, and the value.
#[derive(Debug, Clone)]
struct Member {
    key: Range<usize>,
    value: Range<usize>,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("not valid UTF-8 at byte {at}")]
    NotUtf8 { at: usize },
    #[error("not valid JSON at byte {at}")]
    Syntax { at: usize },
    #[error("nested deeper than {MAX_DEPTH} levels at byte {at}")]
    TooDeep { at: usize },
    #[error("duplicate key at byte {at}")]
    DuplicateKey { at: usize },
}

/// A message that was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct ScanError {
    pub fault: Fault,
    /// The raw text of the envelope's `id`, where it was read before the fault.
    pub id: Option<Box<str>>,
}

/// Accepts one JSON value with nothing around it but white space.
///
/// # Errors
/// [`ScanError`] says what is wrong and where. Duplicate keys are reported only when nothing else is wrong.
pub fn scan(bytes: &[u8]) -> Result<Scanned<'_>, ScanError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ScanError { fault: Fault::NotUtf8 { at: error.valid_up_to() }, id: None })?;
    let mut scanner = Scanner::new(text);
    let outcome = scanner.run().and_then(|value| scanner.duplicate.map_or(Ok(value), Err));
    match outcome {
        Ok(value) => Ok(Scanned { text: on_one_line(text), value, members: scanner.members }),
        Err(fault) => {
            let id = scanner.members.iter().find(|member| key_is(&text[member.key.clone()], "id"));
            Err(ScanError { fault, id: id.map(|member| text[member.value.clone()].into()) })
        }
    }
}

impl Scanned<'_> {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text[self.value.clone()]
    }

    #[must_use]
    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }

    #[must_use]
    pub fn is_array(&self) -> bool {
        self.as_str().starts_with('[')
    }

    /// The raw text of a member of the outermost object.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&str> {
        let member = self.members.iter().find(|member| key_is(&self.text[member.key.clone()], name))?;
        Some(&self.text[member.value.clone()])
    }

    #[must_use]
    pub fn to_raw(&self) -> RawJson {
        RawJson::trusted(self.as_str())
    }
}

/// Whether a key, as written between its quotes, stands for `name`.
#[must_use]
pub fn key_is(raw: &str, name: &str) -> bool {
    *unescape(raw) == *name.as_bytes()
}

/// A JSON string, with its quotes, as text; escapes that are no character become U+FFFD. `None` if it is no string.
#[must_use]
pub fn string_value(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    Some(Cow::Owned(without_surrogates(unescape(inner).into_owned())))
}

/// A JSON string, with its quotes, as text. `None` if it is no string, or an escape in it is no character.
#[must_use]
pub fn exact_string_value(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    match unescape(inner) {
        Cow::Borrowed(_) => Some(Cow::Borrowed(inner)),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

/// Line breaks stand only between tokens in accepted text, so they can all become spaces.
fn on_one_line(text: &str) -> Cow<'_, str> {
    if text.contains(['\n', '\r']) { Cow::Owned(text.replace(['\n', '\r'], " ")) } else { Cow::Borrowed(text) }
}

/// What is between the quotes of an accepted string, decoded; lone surrogates in the form of WTF-8, so that different
/// ones stay different.
fn unescape(raw: &str) -> Cow<'_, [u8]> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw.as_bytes());
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest.as_bytes()[at + 1..];
        let used = match escape.first() {
            Some(b'u') => {
                let first = hex4(escape.get(1..5)).unwrap_or(0xFFFD);
                let second = match (first, escape.get(5..7)) {
                    (0xD800..=0xDBFF, Some(b"\\u")) => hex4(escape.get(7..11)),
                    _ => None,
                };
                match second {
                    Some(low @ 0xDC00..=0xDFFF) => {
                        push_wtf8(&mut out, 0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00));
                        11
                    }
                    _ => {
                        push_wtf8(&mut out, first);
                        5
                    }
                }
            }
            Some(&byte) => {
                out.push(match byte {
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    other => other,
                });
                1
            }
            None => 0,
        };
        rest = rest.get(at + 1 + used..).unwrap_or("");
    }
    out.extend_from_slice(rest.as_bytes());
    Cow::Owned(out)
}

fn hex4(digits: Option<&[u8]>) -> Option<u32> {
    digits?.iter().try_fold(0, |value, &digit| Some(value << 4 | char::from(digit).to_digit(16)?))
}

fn push_wtf8(out: &mut Vec<u8>, code: u32) {
    if let Some(character) = char::from_u32(code) {
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        // A surrogate: the three-byte pattern with its bits.
        let [.., high, low] = code.to_be_bytes();
        out.extend([0xE0 | high >> 4, 0x80 | (high & 0x0F) << 2 | low >> 6, 0x80 | low & 0x3F]);
    }
}

/// How many nested objects, from the envelope inwards, may have their keys compared.
const TRACKED: usize = 3;

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    /// One bit a level: set for an object, clear for an array.
    objects: u128,
    /// For each of the outer levels, whether its keys are compared, and those seen.
    tracked: [bool; TRACKED],
    keys: [HashSet<Cow<'a, [u8]>>; TRACKED],
    /// Whether the keys of the object that comes next are compared.
    track_next: bool,
    /// The key and the start of the value that is being read in the outermost object.
    open: Option<(Range<usize>, usize)>,
    members: Vec<Member>,
    duplicate: Option<Fault>,
}

enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    CommaOrEnd,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: 0,
            depth: 0,
            objects: 0,
            tracked: [false; TRACKED],
            keys: Default::default(),
            track_next: true,
            open: None,
            members: Vec::new(),
            duplicate: None,
        }
    }

    /// Walks the whole text; answers where its value is.
    fn run(&mut self) -> Result<Range<usize>, Fault> {
        self.skip_space();
        let start = self.at;
        let mut expect = Expect::Value;
        loop {
            self.skip_space();
            let byte = self.peek()?;
            expect = match (expect, byte) {
                (Expect::ValueOrEnd, b']') | (Expect::KeyOrEnd, b'}') => self.close(),
                (Expect::CommaOrEnd, b']') if !self.in_object() => self.close(),
                (Expect::CommaOrEnd, b'}') if self.in_object() => self.close(),
                (Expect::CommaOrEnd, b',') => {
                    self.at += 1;
                    if self.in_object() { Expect::Key } else { Expect::Value }
                }
                (Expect::Key | Expect::KeyOrEnd, b'"') => self.key()?,
                (Expect::Value | Expect::ValueOrEnd, b'{' | b'[') => self.enter(byte == b'{')?,
                (Expect::Value | Expect::ValueOrEnd, _) => {
                    self.scalar(byte)?;
                    self.value_ended();
                    Expect::CommaOrEnd
                }
                _ => return Err(self.syntax()),
            };
            if self.depth == 0 {
                let end = self.at;
                self.skip_space();
                return if self.at == self.bytes.len() { Ok(start..end) } else { Err(self.syntax()) };
            }
        }
    }

    fn enter(&mut self, object: bool) -> Result<Expect, Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::TooDeep { at: self.at });
        }
        if let Some(tracked) = self.tracked.get_mut(self.depth as usize) {
            *tracked = object && self.track_next;
            self.keys[self.depth as usize].clear();
        }
        self.track_next = false;
        self.objects = self.objects & !(1 << self.depth) | u128::from(object) << self.depth;
        self.depth += 1;
        self.at += 1;
        Ok(if object { Expect::KeyOrEnd } else { Expect::ValueOrEnd })
    }

    fn close(&mut self) -> Expect {
        self.depth -= 1;
        self.at += 1;
        self.value_ended();
        Expect::CommaOrEnd
    }

    fn key(&mut self) -> Result<Expect, Fault> {
        let start = self.at;
        let key = self.string()?;
        let level = self.depth as usize - 1;
        if level < TRACKED && self.tracked[level] {
            let name = unescape(&self.text[key.clone()]);
            self.track_next = match level {
                0 => *name == *b"params",
                1 => *name == *b"_meta" || *name == *b"arguments",
                _ => false,
            };
            if !self.keys[level].insert(name) && self.duplicate.is_none() {
                self.duplicate = Some(Fault::DuplicateKey { at: start });
            }
        }
        self.skip_space();
        if self.peek()? != b':' {
            return Err(self.syntax());
        }
        self.at += 1;
        self.skip_space();
        if level == 0 {
            self.open = Some((key, self.at));
        }
        Ok(Expect::Value)
    }

    fn value_ended(&mut self) {
        self.track_next = false;
        if self.depth == 1
            && let Some((key, start)) = self.open.take()
        {
            self.members.push(Member { key, value: start..self.at });
        }
    }

    fn scalar(&mut self, byte: u8) -> Result<(), Fault> {
        match byte {
            b'"' => self.string().map(drop),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => Err(self.syntax()),
        }
    }

    fn word(&mut self, word: &str) -> Result<(), Fault> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.syntax());
        }
        self.at += word.len();
        Ok(())
    }

    /// Reads a string; answers what is between its quotes.
    fn string(&mut self) -> Result<Range<usize>, Fault> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(start..self.at - 1);
                }
                b'\\' => {
                    self.at += 1;
                    match self.peek()? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
                        b'u' if hex4(self.bytes.get(self.at + 1..self.at + 5)).is_some() => self.at += 5,
                        _ => return Err(self.syntax()),
                    }
                }
                0..0x20 => return Err(self.syntax()),
                _ => self.at += 1,
            }
        }
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.syntax()) } else { Ok(()) }
    }

    const fn in_object(&self) -> bool {
        self.depth > 0 && self.objects >> (self.depth - 1) & 1 == 1
    }

    fn skip_space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Result<u8, Fault> {
        self.bytes.get(self.at).copied().ok_or_else(|| self.syntax())
    }

    const fn syntax(&self) -> Fault {
        Fault::Syntax { at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(text: &str) -> Option<Fault> {
        scan(text.as_bytes()).err().map(|error| error.fault)
    }

    fn serde_accepts(text: &str) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    }

    #[test]
    fn the_grammar_is_the_whole_of_json_and_no_more() {
        let good = [
            "null",
            " true ",
            "-0",
            "0.5e+10",
            "1e400",
            "18446744073709551616",
            r#""\ud800""#,
            r#""\u0000\/""#,
            "[]",
            "{}",
            r#"{"a":[1,{"b":null}],"":""}"#,
            "\t[1 , 2]\r\n",
        ];
        let bad = [
            "",
            " ",
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "+1",
            "nul",
            "tru e",
            "[1,]",
            "[,]",
            "{,}",
            r#"{"a":1,}"#,
            r#"{"a"}"#,
            r#"{a:1}"#,
            r#"{"a":1 "b":2}"#,
            "[1 2]",
            "[1}",
            r#"{"a":1]"#,
            r#""\x""#,
            r#""\u12g4""#,
            r#""\u12""#,
            "\"a",
            "\"a\nb\"",
            "1 2",
            "{}{}",
            "\u{FEFF}{}",
            "NaN",
            "'a'",
            "[",
            "{",
            r#"{"a":"#,
            "]",
            "/**/1",
        ];
        for text in good {
            assert_eq!(fault(text), None, "{text}");
            assert!(serde_accepts(text), "{text}");
        }
        for text in bad {
            assert!(matches!(fault(text), Some(Fault::Syntax { .. })), "{text}");
            assert!(!serde_accepts(text), "{text}");
        }
        assert_eq!(scan(b"\"\xff\"").unwrap_err().fault, Fault::NotUtf8 { at: 1 });
    }

    // req: HTTP-11
    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(fault(&nested(127)), None);
        assert!(serde_json::from_str::<serde_json::Value>(&nested(127)).is_ok());
        assert_eq!(fault(&nested(128)), Some(Fault::TooDeep { at: 127 }));
        assert!(serde_json::from_str::<serde_json::Value>(&nested(128)).is_err());
        assert_eq!(fault(&"[".repeat(1_000_000)), Some(Fault::TooDeep { at: 127 }));
        assert_eq!(fault(&"{\"a\":".repeat(1_000_000)), Some(Fault::TooDeep { at: 5 * 127 }));
    }

    #[test]
    fn duplicate_keys_are_refused_where_they_could_mislead() {
        let refused = [
            r#"{"id":1,"id":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"params":{"a":1,"a":1}}"#,
            r#"{"\u0070arams":{"a":1,"a":1}}"#,
            r#"{"params":{"_meta":{"a":1,"a":1}}}"#,
            r#"{"params":{"x":{},"arguments":{"a":{},"b":[],"a":1}}}"#,
            r#"{"a":"\n","\ud83d\ude00":1,"😀":1}"#,
        ];
        let accepted = [
            r#"{"result":{"a":1,"a":1}}"#,
            r#"{"params":{"arguments":{"deep":{"a":1,"a":1}}}}"#,
            r#"{"params":{"other":{"a":1,"a":1}}}"#,
            r#"{"params":[{"a":1,"a":1}]}"#,
            r#"{"x":{"params":{"a":1,"a":1}}}"#,
            r#"[{"a":1,"a":1}]"#,
            r#"{"\ud800":1,"\ud801":2}"#,
            r#"{"params":{"_meta":{"a":1},"arguments":{"a":1},"a":1},"a":1}"#,
        ];
        for text in refused {
            assert!(matches!(fault(text), Some(Fault::DuplicateKey { .. })), "{text}");
        }
        for text in accepted {
            assert_eq!(fault(text), None, "{text}");
        }
        assert!(matches!(fault(r#"{"a":1,"a":2"#), Some(Fault::Syntax { .. })));
    }

    #[test]
    fn a_refusal_knows_the_id_it_has_read() {
        let error = scan(br#"{"id": "x\u0041" ,"params":{"a":1,"a":2}}"#).unwrap_err();
        assert_eq!(error.id.as_deref(), Some(r#""x\u0041""#));
        let error = scan(br#"{"params":{"a":1,"a":2},"id":7}"#).unwrap_err();
        assert_eq!(error.id.as_deref(), Some("7"));
        assert_eq!(scan(br#"{"params":{"id":1},"#).unwrap_err().id, None);
    }

    // req: EXEC-21
    #[test]
    fn line_breaks_between_tokens_become_spaces() {
        let scanned = scan(b"\r\n{\n\"a\"\r:\n[1,\n2 ]}\n").unwrap();
        assert_eq!(scanned.as_str(), "{ \"a\" : [1, 2 ]}");
        assert_eq!(scanned.member("a"), Some("[1, 2 ]"));
        let untouched = r#"{"a":"x\ny\u2028 "}"#;
        assert!(matches!(scan(untouched.as_bytes()).unwrap().text, Cow::Borrowed(text) if text == untouched));
    }

    #[test]
    fn members_are_raw() {
        let scanned = scan(br#" {"\u0069d" : 1.0 , "params":{"a":[]}, "x":"\u0000"} "#).unwrap();
        assert_eq!(scanned.member("id"), Some("1.0"));
        assert_eq!(scanned.member("params"), Some(r#"{"a":[]}"#));
        assert_eq!(scanned.member("x"), Some(r#""\u0000""#));
        assert_eq!(scanned.member("a"), None);
        assert!(scanned.is_object() && !scanned.is_array());
        assert_eq!(scan(br#"[{"id":1}]"#).unwrap().member("id"), None);
    }

    #[test]
    fn strings_are_decoded_as_text() {
        assert_eq!(string_value(r#""a\u00e4\ud83d\ude00\n\/""#).unwrap(), "aä😀\n/");
        assert!(string_value(r#""a\ud800b""#).unwrap().contains('\u{FFFD}'));
        assert_eq!(string_value("7"), None);
    }

    prop_compose! {
        /// Text that is nearly JSON: tokens in any order.
        fn token_soup()(tokens in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"\\u0061\"", "\"\\ud800\"", "\"", "\\", "0", "1", "-", ".", "e", "E", "+",
            "null", "true", "false", " ", "\n", "\t", "\"params\"", "\u{1}", "ä",
        ]), 0..12)) -> String {
            tokens.concat()
        }
    }

    fn any_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(6, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::hash_map(any::<String>(), inner, 0..6).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_scanner_agrees_with_serde_json(text in token_soup()) {
            let accepted = !matches!(fault(&text), Some(Fault::Syntax { .. }));
            prop_assert_eq!(accepted, serde_accepts(&text), "{}", text);
        }

        #[test]
        fn whatever_serde_json_writes_is_accepted(value in any_value()) {
            let text = value.to_string();
            let scanned = scan(text.as_bytes()).unwrap();
            prop_assert_eq!(scanned.as_str(), &text);
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            let scanned = scan(pretty.as_bytes()).unwrap();
            prop_assert!(!scanned.as_str().contains(['\n', '\r']));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(scanned.as_str()).unwrap(),
                serde_json::from_str::<serde_json::Value>(&text).unwrap());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let accepted = scan(&bytes).is_ok();
            prop_assert!(!accepted || std::str::from_utf8(&bytes).is_ok_and(serde_accepts));
        }
    }
}
