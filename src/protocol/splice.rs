//! Reading and changing single members of raw JSON objects, leaving the text of everything else as it is.
//!
//! Works on objects that the scanner accepted (alone or inside a message); on other text it finds nothing, and never
//! panics.

use crate::domain::json::RawJson;
use crate::domain::pieces::Pieces;
use crate::protocol::scan::key_is;

/// Bytes of a string that are looked at together.
const BLOCK: usize = 32;

/// The raw text of a top-level member; of several with one name the last, as most readers take it.
#[must_use]
pub fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    members(object).filter(|member| key_is(member.key, name)).last().map(|member| member.value)
}

/// The object with these members set, each last, and those of the same names and of `remove` taken out.
#[must_use]
pub fn set_members(object: &RawJson, set: &[(&str, &str)], remove: &[&str]) -> RawJson {
    let gone = |key: &str| remove.iter().chain(set.iter().map(|(name, _)| name)).any(|name| key_is(key, name));
    if set.is_empty() && !members(object.as_str()).any(|member| gone(member.key)) {
        return object.clone();
    }
    let mut writer =
        Writer::new(object.len() + set.iter().map(|(name, raw)| name.len() + raw.len() + 4).sum::<usize>());
    for kept in members(object.as_str()).filter(|member| !gone(member.key)) {
        writer.put(kept.whole);
    }
    for (name, raw) in set {
        writer.put_member(name, raw);
    }
    writer.finish()
}

/// The object with keys of its `_meta` set and removed: a `_meta` that is an object gets them last, same names removed;
/// where it is absent or no object, a new one takes its place.
#[must_use]
pub fn set_meta(object: &RawJson, set: &[(&str, &str)], remove: &[&str]) -> RawJson {
    const META: &str = "_meta";
    let meta = match member(object.as_str(), META) {
        Some(meta) if meta.starts_with('{') => set_members(&RawJson::trusted(meta), set, remove),
        _ if set.is_empty() => return object.clone(),
        _ => set_members(&RawJson::trusted("{}"), set, &[]),
    };
    replace_member(object, META, meta.as_str())
}

/// The object with one member set where it stands, or last if it is not there.
#[must_use]
pub fn replace_member(object: &RawJson, name: &str, raw: &str) -> RawJson {
    if member(object.as_str(), name) == Some(raw) {
        return object.clone();
    }
    let mut writer = Writer::new(object.len() + name.len() + raw.len() + 4);
    let mut placed = false;
    for kept in members(object.as_str()) {
        if !key_is(kept.key, name) {
            writer.put(kept.whole);
        } else if !placed {
            writer.put_with(&kept, raw);
            placed = true;
        }
    }
    if !placed {
        writer.put_member(name, raw);
    }
    writer.finish()
}

/// The members of these names, in their order.
#[must_use]
pub fn named<'a>(object: &'a str, names: &[&str]) -> Vec<RawMember<'a>> {
    members(object).filter(|member| names.iter().any(|name| key_is(member.key, name))).collect()
}

/// `object`, which lies in the text of `json`, with some of its members given other values, or taken out where they are
/// given none, and with `last` added; everything else is shared, not copied. `changed` is in the order of the members.
#[must_use]
pub fn spliced(
    json: &RawJson,
    object: &str,
    changed: &[(RawMember<'_>, Option<Pieces>)],
    last: &[(&str, Pieces)],
) -> Pieces {
    let mut writer = PieceWriter { json, pieces: Pieces::default(), is_empty: true };
    if changed.is_empty() && last.is_empty() {
        writer.pieces.push_part(json, object);
        return writer.pieces;
    }
    let position = |part: &str| part.as_ptr().addr().saturating_sub(object.as_ptr().addr());
    let mut at = position(object.trim_start_matches(is_space)) + 1;
    writer.pieces.push_text("{");
    for (member, value) in changed {
        let start = position(member.whole);
        // Up to the comma before it.
        writer.put_kept(object.get(at..start.saturating_sub(1)).unwrap_or(""));
        if let Some(value) = value {
            let (before, after) = member.around();
            writer.put(before);
            writer.pieces.push(value);
            writer.pieces.push_part(json, after);
        }
        at = start + member.whole.len() + 1;
    }
    writer.put_kept(object.get(at..object.len().saturating_sub(1)).unwrap_or(""));
    for (name, value) in last {
        writer.put("");
        writer.pieces.push_text(&quoted(name));
        writer.pieces.push_text(":");
        writer.pieces.push(value);
    }
    writer.pieces.push_text("}");
    writer.pieces
}

struct PieceWriter<'a> {
    json: &'a RawJson,
    pieces: Pieces,
    is_empty: bool,
}

impl PieceWriter<'_> {
    /// Members that stand between two commas, or nothing.
    fn put_kept(&mut self, kept: &str) {
        if !kept.trim_start_matches(is_space).is_empty() {
            self.put(kept);
        }
    }

    fn put(&mut self, member: &str) {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.pieces.push_text(",");
        }
        if !member.is_empty() {
            self.pieces.push_part(self.json, member);
        }
    }
}

/// One member of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawMember<'a> {
    /// Between the quotes, as written.
    pub key: &'a str,
    pub value: &'a str,
    /// The member with the white space around it: all that is between two commas.
    pub whole: &'a str,
}

impl RawMember<'_> {
    /// What stands before the value and after it.
    fn around(&self) -> (&str, &str) {
        let whole = self.whole.trim_end_matches(is_space);
        let before = whole.len().saturating_sub(self.value.len());
        (&self.whole[..before], &self.whole[whole.len()..])
    }
}

/// The members of an object in their order; nothing if `object` is none.
pub fn members(object: &str) -> impl Iterator<Item = RawMember<'_>> {
    let start = skip_space(object.as_bytes(), 0);
    let mut at = if object.as_bytes().get(start) == Some(&b'{') { start + 1 } else { object.len() };
    std::iter::from_fn(move || {
        let member = next_member(object, at);
        at = member.as_ref().map_or(object.len(), |(_, next)| *next);
        member.map(|(member, _)| member)
    })
}

/// The raw items of an array in their order; nothing if `array` is none.
pub fn items(array: &str) -> impl Iterator<Item = &str> {
    let bytes = array.as_bytes();
    let start = skip_space(bytes, 0);
    let mut at = if bytes.get(start) == Some(&b'[') { start + 1 } else { array.len() };
    std::iter::from_fn(move || {
        let start = skip_space(bytes, at);
        let end = value_end(bytes, start);
        if end == start {
            return None;
        }
        at = after_comma(bytes, end);
        array.get(start..end)
    })
}

fn next_member(object: &str, at: usize) -> Option<(RawMember<'_>, usize)> {
    let bytes = object.as_bytes();
    let key_start = skip_space(bytes, at);
    if bytes.get(key_start) != Some(&b'"') {
        return None;
    }
    let key_end = value_end(bytes, key_start);
    let colon = skip_space(bytes, key_end);
    let start = skip_space(bytes, colon + 1);
    let end = value_end(bytes, start);
    let member = RawMember {
        key: object.get(key_start + 1..key_end.checked_sub(1)?)?,
        value: object.get(start..end)?,
        whole: object.get(at..skip_space(bytes, end))?,
    };
    Some((member, after_comma(bytes, end)))
}

fn after_comma(bytes: &[u8], at: usize) -> usize {
    let at = skip_space(bytes, at);
    if bytes.get(at) == Some(&b',') { at + 1 } else { at }
}

const fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// Where the value that starts at `at` ends; `at` itself if none starts there.
fn value_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                at += 1;
            }
            b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return at,
            _ => {
                at += 1;
                continue_scalar(bytes, &mut at);
            }
        }
        if depth == 0 {
            return at;
        }
    }
    at
}

fn continue_scalar(bytes: &[u8], at: &mut usize) {
    while matches!(bytes.get(*at), Some(b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'+' | b'-' | b'.')) {
        *at += 1;
    }
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    loop {
        // Most of a large text says nothing: this is as fast as it can be read.
        while let Some(block) = bytes.get(at..at + BLOCK)
            && !block.iter().fold(false, |found, &byte| found | (byte == b'"') | (byte == b'\\'))
        {
            at += BLOCK;
        }
        let rest = bytes.get(at..).unwrap_or_default();
        match rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            Some(more) if rest[more] == b'"' => return at + more + 1,
            Some(more) => at += more + 2,
            None => return bytes.len(),
        }
    }
}

struct Writer(String);

impl Writer {
    fn new(capacity: usize) -> Self {
        let mut text = String::with_capacity(capacity);
        text.push('{');
        Self(text)
    }

    fn put(&mut self, member: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(member);
    }

    /// A member as it stands, with another value.
    fn put_with(&mut self, member: &RawMember<'_>, raw: &str) {
        let (before, after) = member.around();
        self.put(before);
        self.0.push_str(raw);
        self.0.push_str(after);
    }

    fn put_member(&mut self, name: &str, raw: &str) {
        self.put(&quoted(name));
        self.0.push(':');
        self.0.push_str(raw);
    }

    fn finish(mut self) -> RawJson {
        self.0.push('}');
        RawJson::trusted(self.0)
    }
}

/// Text as a JSON string.
#[must_use]
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::scan::scan;

    fn raw(text: &str) -> RawJson {
        RawJson::trusted(text)
    }

    #[test]
    fn members_are_found_by_their_decoded_name() {
        let object = r#" { "a" : 1.0 , "b":{"a":2,"c":"}\"]"},"\u0063":[1,[2]] , "d":"x","d":"y" } "#;
        assert_eq!(member(object, "a"), Some("1.0"));
        assert_eq!(member(object, "b"), Some(r#"{"a":2,"c":"}\"]"}"#));
        assert_eq!(member(object, "c"), Some("[1,[2]]"));
        assert_eq!(member(object, "d"), Some(r#""y""#));
        assert_eq!(member(object, "e"), None);
        assert_eq!(member("[1]", "a"), None);
        assert_eq!(items(r#"[ 1 ,"a,b",{"c":[2]}, [] ]"#).collect::<Vec<_>>(), ["1", r#""a,b""#, r#"{"c":[2]}"#, "[]"]);
        assert_eq!(items("[ ]").count() + items("{}").count(), 0);
    }

    // req: LIFE-11
    #[test]
    fn set_members_go_last_and_the_rest_stays() {
        let object = raw(r#"{"b":1e400,"a":"\u0000","x":18446744073709551615, "\ud800" : 1.0}"#);
        assert_eq!(
            set_members(&object, &[("a", "[]"), ("new \"key\"", "{}")], &["x"]).as_str(),
            r#"{"b":1e400, "\ud800" : 1.0,"a":[],"new \"key\"":{}}"#
        );
        assert_eq!(set_members(&raw("{}"), &[("a", "1")], &[]).as_str(), r#"{"a":1}"#);
        assert_eq!(set_members(&raw(r#"{"a":1,"\u0061":2}"#), &[], &["a"]).as_str(), "{}");
    }

    #[test]
    fn meta_is_merged_in_place() {
        let set = [("k", "1")];
        assert_eq!(
            set_meta(&raw(r#"{"_meta":{"x":1.0,"k":0,"y":2},"z":3}"#), &set, &["x"]).as_str(),
            r#"{"_meta":{"y":2,"k":1},"z":3}"#
        );
        assert_eq!(set_meta(&raw(r#"{"z":3}"#), &set, &[]).as_str(), r#"{"z":3,"_meta":{"k":1}}"#);
        assert_eq!(set_meta(&raw(r#"{"_meta":null,"z":3}"#), &set, &[]).as_str(), r#"{"_meta":{"k":1},"z":3}"#);
        assert_eq!(set_meta(&raw(r#"{"_meta":null,"z": 3}"#), &[], &["k"]).as_str(), r#"{"_meta":null,"z": 3}"#);
        assert_eq!(set_meta(&raw(r#"{ "_meta":{"a":1}}"#), &[], &["k"]).as_str(), r#"{ "_meta":{"a":1}}"#);
        assert_eq!(set_meta(&raw(r#"{"_meta":{ "a" : 1 }}"#), &[], &["k"]).as_str(), r#"{"_meta":{ "a" : 1 }}"#);
        assert_eq!(
            set_meta(&raw(r#"{ "x" : 1 , "_\u006deta" : { "a" : 1 } , "z" : 2 }"#), &set, &[]).as_str(),
            r#"{ "x" : 1 , "_\u006deta" : { "a" : 1 ,"k":1} , "z" : 2 }"#
        );
    }

    proptest! {
        // req: LIFE-11
        #[test]
        fn everything_else_stays_byte_equal(
            entries in prop::collection::vec((any::<String>(), prop::sample::select(vec![
                "1e400", "-0.0", "\"\\ud800\"", "\"\\\\\"", "{\"a\": [1, {}]}", "[]", "null", "\"]}{[,:\"",
            ])), 0..8),
            removed in 0_usize..8,
        ) {
            let texts: Vec<_> = entries.iter().map(|(name, value)| format!("{} :{value}", quoted(name))).collect();
            let texts: Vec<_> = texts.iter().map(|text| format!(" {text} ")).collect();
            let object = raw(&format!("{{{}}}", texts.join(",")));
            let gone = entries.get(removed).map_or("gone", |(name, _)| name.as_str());
            let mut expected: Vec<_> = texts.iter().zip(&entries).filter(|(_, (name, _))| name != gone && name != "set")
                .map(|(text, _)| text.clone()).collect();
            let done = set_members(&object, &[("set", "7")], &[gone]);
            expected.push("\"set\":7".to_owned());
            prop_assert_eq!(done.as_str(), format!("{{{}}}", expected.join(",")));
            prop_assert_eq!(member(done.as_str(), "set"), Some("7"));
            prop_assert_eq!(members(done.as_str()).map(|member| member.whole.to_owned()).collect::<Vec<_>>(), expected);
        }

        // req: LIFE-11
        #[test]
        fn pieces_are_the_same_text_as_a_whole(
            keys in prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "\\u0061"]), 0..8),
            spaces in "[ \t]{0,2}", sets in any::<bool>(), long in any::<bool>(),
        ) {
            let value = quoted(&"x".repeat(if long { 20_000 } else { 1 }));
            let texts: Vec<_> = keys.iter().map(|key| format!("{spaces}\"{key}\"{spaces}:{value}{spaces}")).collect();
            let object = raw(&format!("{{{}}}", texts.join(",")));
            let last = sets.then(|| ("a", Pieces::from(raw("[7]"))));
            let gone: Vec<_> = named(object.as_str(), &["a", "b"]).into_iter().map(|member| (member, None)).collect();
            let taken_out = spliced(&object, object.as_str(), &gone, last.as_slice());
            let expected = set_members(&object, if sets { &[("a", "[7]")] } else { &[] }, &["a", "b"]);
            prop_assert_eq!(taken_out.to_text(), expected.as_str());
            let found = named(object.as_str(), &["a"]);
            let value = |at| (at == 0).then(|| Pieces::from(raw("[7]")));
            let changed: Vec<_> = found.into_iter().enumerate().map(|(at, member)| (member, value(at))).collect();
            if !changed.is_empty() {
                let replaced = spliced(&object, object.as_str(), &changed, &[]);
                let expected = replace_member(&object, "a", "[7]");
                prop_assert_eq!(replaced.to_text(), expected.as_str());
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\]{}\":,a\\\\ é0]{0,24}") {
            let found = members(&text).count() + items(&text).count();
            prop_assert!(found <= text.len());
            prop_assert!(scan(text.as_bytes()).is_err() || member(&text, "a").is_none_or(|value| text.contains(value)));
        }
    }
}
