//! A stream of server-sent events, read within bounds.
//!
//! An event over the limit is skipped and measured on the way, never held.

use std::time::Duration;

use crate::protocol::outline::{Meter, Outline};

/// Takes a stream in pieces and gives its messages.
pub struct Parser {
    limit: usize,
    /// What has come of the current line.
    line: Vec<u8>,
    /// Set while the rest of a line that is too long passes by: whether it is data.
    skipping: Option<bool>,
    is_first_line: bool,
    /// The last piece ended with CR, so that an LF belongs to it.
    after_cr: bool,
    data: Vec<u8>,
    has_data: bool,
    /// Measures an event that is too long.
    meter: Option<Meter>,
    is_other: bool,
    next_id: Option<String>,
    last_id: Option<String>,
    retry: Option<Duration>,
}

/// One event of the default type.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Message(Vec<u8>),
    TooLong(Outline),
}

/// Longer ids are no ids: each reconnection carries one in a header.
const MOST_ID: usize = 1024;
const BOM: &[u8] = b"\xef\xbb\xbf";

impl Parser {
    /// `limit` is the most that the data of one event may have, in bytes; `last_id` is known from the stream before.
    #[must_use]
    pub fn new(limit: usize, last_id: Option<String>) -> Self {
        Self {
            limit,
            line: Vec::new(),
            skipping: None,
            is_first_line: true,
            after_cr: false,
            data: Vec::new(),
            has_data: false,
            meter: None,
            is_other: false,
            next_id: last_id.clone(),
            last_id,
            retry: None,
        }
    }

    /// The id of the last complete event, which a reconnection gives.
    #[must_use]
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long to wait before a reconnection, if the stream says so.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Takes a piece and adds the events that it completes.
    pub fn feed(&mut self, piece: &[u8], events: &mut Vec<Event>) {
        let mut rest = piece;
        if std::mem::take(&mut self.after_cr) {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend(&rest[..end]);
            self.end_line(events);
            let is_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if is_cr {
                self.after_cr = rest.is_empty();
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
        }
        self.extend(rest);
    }

    fn extend(&mut self, part: &[u8]) {
        if let Some(is_data) = self.skipping {
            if is_data && let Some(meter) = &mut self.meter {
                meter.feed(part);
            }
            return;
        }
        self.line.extend_from_slice(part);
        if self.line.len() + self.data.len() <= self.limit {
            return;
        }
        let line = std::mem::take(&mut self.line);
        let (field, value) = self.split(&line);
        let is_data = field == b"data";
        if is_data {
            self.measure(value);
        }
        self.skipping = Some(is_data);
    }

    fn end_line(&mut self, events: &mut Vec<Event>) {
        if self.skipping.take().is_some() {
            self.is_first_line = false;
            return;
        }
        let mut line = std::mem::take(&mut self.line);
        if line.is_empty() {
            self.end_event(events);
        } else {
            let (field, value) = self.split(&line);
            match field {
                b"data" if self.meter.is_some() => self.measure(value),
                b"data" => {
                    if self.has_data {
                        self.data.push(b'\n');
                    }
                    self.data.extend_from_slice(value);
                    self.has_data = true;
                }
                b"event" => self.is_other = !matches!(value, b"" | b"message"),
                b"id" if !value.contains(&0) => self.next_id = usable_id(value),
                b"retry" if value.iter().all(u8::is_ascii_digit) => {
                    let millis = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                    self.retry = millis.map(Duration::from_millis).or(self.retry);
                }
                // A comment has an empty name.
                _ => {}
            }
        }
        self.is_first_line = false;
        line.clear();
        self.line = line;
    }

    fn end_event(&mut self, events: &mut Vec<Event>) {
        self.last_id.clone_from(&self.next_id);
        let data = std::mem::take(&mut self.data);
        self.has_data = false;
        let meter = self.meter.take();
        if std::mem::take(&mut self.is_other) {
            return;
        }
        match meter {
            Some(meter) => events.push(Event::TooLong(meter.finish())),
            // An event without data only moves the id on.
            None if data.is_empty() => {}
            None => events.push(Event::Message(data)),
        }
    }

    fn measure(&mut self, value: &[u8]) {
        let data = std::mem::take(&mut self.data);
        let meter = self.meter.get_or_insert_default();
        meter.feed(&data);
        if self.has_data {
            meter.feed(b"\n");
        }
        meter.feed(value);
        self.has_data = true;
    }

    /// A line's name and value.
    fn split<'a>(&self, line: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let line = if self.is_first_line { line.strip_prefix(BOM).unwrap_or(line) } else { line };
        match line.iter().position(|&byte| byte == b':') {
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, b""),
        }
    }
}

/// `None` also for one that no header could carry: going on from an older event would repeat later ones.
fn usable_id(value: &[u8]) -> Option<String> {
    let id = std::str::from_utf8(value).ok()?;
    let fits = !id.is_empty() && id.len() <= MOST_ID && !id.contains(char::is_control);
    fits.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::jsonrpc::Id;
    use crate::protocol::outline::Named;

    fn read(parser: &mut Parser, pieces: &[&[u8]]) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, &mut events);
        }
        events
    }

    fn message(text: &str) -> Event {
        Event::Message(text.into())
    }

    #[test]
    fn events_are_read_whatever_ends_their_lines() {
        for end in ["\n", "\r", "\r\n"] {
            let stream =
                "\u{FEFF}: hello\nid: 7\nretry: 250\ndata:\n\nevent: message\ndata:{\"a\":\ndata: 1}\nid: 8\n\n\
                          event: ping\ndata: x\n\ndata\n\ndata:  two\nretry: soon\nother: x\n\ndata: never ended"
                    .replace('\n', end);
            for size in [1, 2, 3, 7, 1000] {
                let mut parser = Parser::new(100, None);
                let pieces: Vec<_> = stream.as_bytes().chunks(size).collect();
                assert_eq!(read(&mut parser, &pieces), [message("{\"a\":\n1}"), message(" two")], "{end:?} {size}");
                assert_eq!((parser.last_id(), parser.retry()), (Some("8"), Some(Duration::from_millis(250))));
            }
        }
    }

    #[test]
    fn an_id_counts_once_its_event_is_complete() {
        let mut parser = Parser::new(100, Some("old".to_owned()));
        read(&mut parser, &[b"id: new\ndata: x\n"]);
        assert_eq!(parser.last_id(), Some("old"));
        read(&mut parser, &[b"\n"]);
        assert_eq!(parser.last_id(), Some("new"));
        read(&mut parser, &[b"id: a\0b\n\n"]);
        assert_eq!(parser.last_id(), Some("new"), "an id with NUL is ignored");
        read(&mut parser, &[b"id\n\n"]);
        assert_eq!(parser.last_id(), None);
        let long = format!("id: x\n\nid: {}\n\n", "y".repeat(MOST_ID + 1));
        read(&mut Parser::new(10_000, None), &[long.as_bytes()]);
        assert_eq!(parser.last_id(), None);
    }

    #[test]
    fn an_event_over_the_limit_is_measured_and_hurts_no_other() {
        let result = format!(r#"{{"a":"{}"}}"#, "x".repeat(5000));
        let long = format!(r#"{{"jsonrpc":"2.0","id":71,"result":{result}}}"#);
        let (half, other) = long.split_at(3000);
        let two_lines = format!("data: one\n\ndata: {half}\ndata: {other}\n\ndata: two\n\n");
        let one_line = format!("data: one\n\ndata: {long}\n\ndata: two\n\n");
        for (stream, extra) in [(one_line, 0), (two_lines, 1)] {
            for size in [1, 64, 100_000] {
                let pieces: Vec<_> = stream.as_bytes().chunks(size).collect();
                let events = read(&mut Parser::new(1000, None), &pieces);
                let measured = Outline {
                    bytes: long.len() + extra,
                    id: Named::By(Id::from_number(71)),
                    result: Some(result.len() + extra),
                    is_request: false,
                    is_rpc: true,
                };
                assert_eq!(events, [message("one"), Event::TooLong(measured), message("two")], "{size}");
            }
        }
        let noise = format!("junk{}\n\n: {}\ndata: fine\n\n", "x".repeat(5000), "y".repeat(5000));
        assert_eq!(read(&mut Parser::new(1000, None), &[noise.as_bytes()]), [message("fine")]);
    }

    proptest! {
        #[test]
        fn how_a_stream_is_cut_makes_no_difference(
            stream in "(data: ?[a-z]{0,9}|id: [0-9]|event: [a-z]|:x|retry: [0-9]|)?(\r|\n|\r\n|\n\n){1,3}.{0,40}",
            cut in 0_usize..80,
        ) {
            let bytes = stream.as_bytes();
            let cut = cut.min(bytes.len());
            let (mut whole, mut pieces) = (Parser::new(30, None), Parser::new(30, None));
            prop_assert_eq!(read(&mut whole, &[bytes]), read(&mut pieces, &[&bytes[..cut], &bytes[cut..]]));
            prop_assert_eq!(whole.last_id(), pieces.last_id());
        }
    }
}
