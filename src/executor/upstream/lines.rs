//! Lines of bounded length from a child's output.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// Reads lines; one that is too long is skipped to its end and measured on the way, never held.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    limit: usize,
}

/// One line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    TooLong(Oversize),
}

/// What is known of a line that was skipped.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Oversize {
    /// The beginning, as much as was held.
    pub(super) bytes: usize,
    /// The raw text of the message's `id`.
    pub(super) id: Option<String>,
    /// The size of the message's `result`.
    pub(super) result: Option<usize>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// `limit` is the longest line that is handed out, in bytes.
    pub(super) fn new(reader: R, limit: usize) -> Self {
        Self { reader: BufReader::with_capacity(32 << 10, reader), limit }
    }

    /// The next line; `None` at the end. Not to be dropped half way: what was read of a line would be lost.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Vec::new();
        let most = u64::try_from(self.limit).unwrap_or(u64::MAX).saturating_add(1);
        (&mut self.reader).take(most).read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
            return Ok(Some(Line::Whole(line)));
        }
        if line.len() <= self.limit {
            return Ok(Some(Line::Whole(line)));
        }
        let mut meter = Meter::default();
        meter.feed(&line);
        drop(line);
        loop {
            let chunk = self.reader.fill_buf().await?;
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(chunk.len());
            meter.feed(&chunk[..taken]);
            let done = end.is_some() || chunk.is_empty();
            self.reader.consume(taken + usize::from(end.is_some()));
            if done {
                return Ok(Some(Line::TooLong(meter.finish())));
            }
        }
    }
}

/// The raw text of the `id` of a message that is no valid JSON or UTF-8, if its outline still shows one.
pub(super) fn id_of_broken(line: &[u8]) -> Option<String> {
    let mut meter = Meter::default();
    meter.feed(line);
    meter.finish().id
}

/// Finds `id` and the size of `result` in an object that passes by in pieces.
#[derive(Default)]
struct Meter {
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Whether the outermost object is between a colon and the next comma.
    in_value: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    value_start: usize,
    found: Oversize,
}

/// Longer keys are none of ours, longer ids none that we gave.
const MOST_KEPT: usize = 32;

impl Meter {
    fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.byte(byte);
            self.seen += 1;
        }
    }

    fn byte(&mut self, byte: u8) {
        if self.in_string {
            if self.depth == 1 && (self.escaped || byte != b'"') {
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
                    self.keep(byte); // an id that is a string is none of ours, and must not look like a number
                }
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                if self.depth == 1 {
                    self.end_value();
                }
                self.depth = self.depth.saturating_sub(1);
            }
            b':' if self.depth == 1 => {
                self.in_value = true;
                self.value_start = self.seen + 1;
            }
            b',' if self.depth == 1 => self.end_value(),
            b' ' | b'\t' | b'\r' => {}
            _ if self.depth == 1 && self.in_value => self.keep(byte),
            _ => {}
        }
    }

    fn keep(&mut self, byte: u8) {
        let kept = if self.in_value { &mut self.value } else { &mut self.key };
        if kept.len() < MOST_KEPT {
            kept.push(byte);
        }
    }

    fn end_value(&mut self) {
        match self.key.as_slice() {
            b"id" => self.found.id = String::from_utf8(std::mem::take(&mut self.value)).ok(),
            b"result" => self.found.result = Some(self.seen - self.value_start),
            _ => {}
        }
        self.key.clear();
        self.value.clear();
        self.in_value = false;
    }

    fn finish(self) -> Oversize {
        Oversize { bytes: self.seen, ..self.found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &str, limit: usize) -> Vec<Line> {
        let mut lines = Lines::new(text.as_bytes(), limit);
        let mut read = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            read.push(line);
        }
        read
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.into())
    }

    #[tokio::test]
    async fn lines_are_read_whole_up_to_the_limit() {
        assert_eq!(read("a\n\nbcd\nlast", 4).await, [whole("a"), whole(""), whole("bcd"), whole("last")]);
        assert_eq!(read("", 4).await, []);
    }

    #[tokio::test]
    async fn a_long_line_is_measured_and_hurts_no_other() {
        let result = format!(r#"{{"a":"{}","id":1,"result":[{{}}]}}"#, "\\\"{".repeat(50_000));
        for message in [
            format!(r#"{{"jsonrpc":"2.0","id":71,"result":{result}}}"#),
            format!(r#"{{"jsonrpc":"2.0","result":{result},"id": 71 }}"#),
        ] {
            let lines = read(&format!("one\n{message}\ntwo\n"), 64).await;
            let long = Oversize { bytes: message.len(), id: Some("71".to_owned()), result: Some(result.len()) };
            assert_eq!(lines, [whole("one"), Line::TooLong(long), whole("two")]);
        }
    }

    #[tokio::test]
    async fn a_long_line_of_anything_is_skipped() {
        for noise in ["x", "]}", "\"", "{\"id\":\"7\",", "\\"] {
            let lines = read(&format!("{}\nafter", noise.repeat(10_000)), 64).await;
            assert_eq!(lines.len(), 2);
            assert!(matches!(&lines[0], Line::TooLong(long) if long.id.as_deref() != Some("7")), "{noise}");
            assert_eq!(lines[1], whole("after"));
        }
    }
}
