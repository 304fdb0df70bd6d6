//! What a message shows of itself that is too long to be held, or that cannot be parsed.

use serde::de::IgnoredAny;

use crate::protocol::jsonrpc::Id;

/// What is known of a message that was skipped, or that cannot be parsed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Its size.
    pub bytes: usize,
    pub id: Named,
    /// The size of the message's `result`.
    pub result: Option<usize>,
    /// Whether it has a `method`: its id is then the sender's own.
    pub is_request: bool,
    /// Whether it has `jsonrpc`, which other noise has not.
    pub is_rpc: bool,
}

/// The `id` of a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Named {
    /// It has none, or null.
    #[default]
    No,
    By(Id),
    /// It is too long, or neither a string nor an integer.
    Oddly,
}

impl Named {
    /// The id, if it is one that we gave.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::By(id) => id.as_raw().parse().ok(),
            Self::No | Self::Oddly => None,
        }
    }

    fn read(raw: Option<&[u8]>) -> Self {
        let Some(raw) = raw else { return Self::Oddly };
        match std::str::from_utf8(raw) {
            Ok("null") => Self::No,
            // The rest of the line need not be JSON; what is echoed must be.
            Ok(raw) if serde_json::from_str::<IgnoredAny>(raw).is_ok() => {
                Id::from_raw(raw).map_or(Self::Oddly, Self::By)
            }
            _ => Self::Oddly,
        }
    }
}

/// What a message shows that is no valid JSON or UTF-8, or no message of JSON-RPC.
#[must_use]
pub fn outline(line: &[u8]) -> Outline {
    let mut meter = Meter::default();
    meter.feed(line);
    meter.finish()
}

/// Finds `id` and the size of `result` in an object that passes by in pieces. What does not begin as an object is noise: a
/// server's log may quote whole messages.
#[derive(Default)]
pub struct Meter {
    seen: usize,
    /// Whether it is inside of the object, once a byte was seen that is no space.
    is_inside: Option<bool>,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Whether the outermost object is between a colon and the next comma.
    in_value: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    /// From where to where the value goes, without the spaces around it, which are not kept of it either.
    extent: Option<(usize, usize)>,
    found: Outline,
}

/// Longer keys are none of ours.
const MOST_KEY: usize = 32;
/// Longer ids are not echoed.
const MOST_ID: usize = 1024;

impl Meter {
    pub fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.is_inside.is_none() && !byte.is_ascii_whitespace() {
                self.is_inside = Some(byte == b'{');
            }
            if self.is_inside == Some(true) {
                self.byte(byte);
            }
            self.seen += 1;
        }
    }

    fn byte(&mut self, byte: u8) {
        let is_around =
            !self.in_string && (byte.is_ascii_whitespace() || (self.depth == 1 && matches!(byte, b',' | b'}' | b']')));
        if self.in_value && !is_around {
            let from = self.extent.map_or(self.seen, |(from, _)| from);
            self.extent = Some((from, self.seen + 1));
        }
        if self.in_string {
            if self.depth == 1 && (self.in_value || self.escaped || byte != b'"') {
                self.keep(byte);
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 && self.in_value {
                    self.keep(byte);
                }
            }
            b'{' | b'[' => {
                if self.depth == 1 && self.in_value {
                    self.keep(byte); // no id, and not the lack of one
                }
                self.depth += 1;
            }
            b'}' | b']' => {
                if self.depth == 1 {
                    self.end_value();
                    self.is_inside = Some(false);
                }
                self.depth = self.depth.saturating_sub(1);
            }
            b':' if self.depth == 1 => self.in_value = true,
            b',' if self.depth == 1 => self.end_value(),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ if self.depth == 1 && self.in_value => self.keep(byte),
            _ => {}
        }
    }

    fn keep(&mut self, byte: u8) {
        let (kept, most) = if self.in_value { (&mut self.value, MOST_ID) } else { (&mut self.key, MOST_KEY) };
        // One byte more tells that it is too long.
        if kept.len() <= most {
            kept.push(byte);
        }
    }

    fn end_value(&mut self) {
        match self.key.as_slice() {
            b"id" => self.found.id = Named::read(Some(&*self.value).filter(|id| id.len() <= MOST_ID)),
            b"method" => self.found.is_request = true,
            b"jsonrpc" => self.found.is_rpc = true,
            b"result" => self.found.result = Some(self.extent.map_or(0, |(from, to)| to - from)),
            _ => {}
        }
        self.key.clear();
        self.value.clear();
        self.extent = None;
        self.in_value = false;
    }

    #[must_use]
    pub fn finish(self) -> Outline {
        Outline { bytes: self.seen, ..self.found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_names_a_request_by_its_id() {
        let long = format!("\"{}\"", "x".repeat(MOST_ID - 2));
        for id in ["7", "-7", r#""7""#, r#""a\"b,}""#, r#""\ud800""#, &long] {
            for text in [
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":[1,{{"id":2}}]}}"#),
                format!(r#"{{"method":"m","params":"\"id\":3","jsonrpc":"2.0", "id" : {id} }}"#),
            ] {
                let outline = outline(text.as_bytes());
                assert_eq!(outline.id, Named::By(Id::from_raw(id).unwrap()), "{text}");
                assert!(outline.is_request && outline.is_rpc, "{text}");
            }
        }
        let longer = format!("\"{}\"", "x".repeat(MOST_ID - 1));
        for odd in ["1.5", "true", "{}", "[1]", r#""\q""#, "\"\t\"", "-", "", &longer] {
            assert_eq!(outline(format!(r#"{{"id":{odd},"method":"m"}}"#).as_bytes()).id, Named::Oddly, "{odd}");
        }
        for none in [r#"{"method":"m"}"#, r#"{"id":null,"method":"m"}"#, r#"{"params":{"id":7}}"#, "[1]", "\"id\":7"] {
            assert_eq!(outline(none.as_bytes()).id, Named::No, "{none}");
        }
    }

    #[test]
    fn a_message_that_a_line_only_quotes_is_not_outlined() {
        let quoted = r#"{"jsonrpc":"2.0","id":7,"method":"m","result":{}}"#;
        for noise in [format!("DEBUG received {quoted}"), format!("[{quoted}]"), format!("{{}} sent {quoted}")] {
            assert_eq!(outline(noise.as_bytes()), Outline { bytes: noise.len(), ..Outline::default() });
        }
        assert_eq!(outline(format!(" \t{quoted} x").as_bytes()).id.number(), Some(7));
    }
}
