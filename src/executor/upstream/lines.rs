//! Lines of bounded length from a child's output.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use crate::protocol::outline::{Meter, Outline};

/// Reads lines; one that is too long is skipped to its end and measured on the way, never held.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    limit: usize,
}

/// One line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    TooLong(Outline),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::jsonrpc::Id;
    use crate::protocol::outline::Named;

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
            // The spaces around a result are not stored with it.
            format!(r#"{{"jsonrpc":"2.0","result" :{0}{result}{0},"id": 71 }}"#, " \t ".repeat(100)),
            format!(r#"{{"id":71,"jsonrpc":"2.0","result":{0}{result}{0}}}"#, " ".repeat(100)),
        ] {
            let lines = read(&format!("one\n{message}\ntwo\n"), 64).await;
            let long = Outline {
                bytes: message.len(),
                id: Named::By(Id::from_number(71)),
                result: Some(result.len()),
                is_request: false,
                is_rpc: true,
            };
            assert_eq!(lines, [whole("one"), Line::TooLong(long), whole("two")]);
        }
    }

    #[tokio::test]
    async fn a_long_line_of_anything_is_skipped() {
        for noise in ["x", "]}", "\"", "{\"id\":\"7\",", "\\", "x{\"id\":7}"] {
            let lines = read(&format!("{}\nafter", noise.repeat(10_000)), 64).await;
            assert_eq!(lines.len(), 2);
            assert!(matches!(&lines[0], Line::TooLong(long) if long.id.number() != Some(7)), "{noise}");
            assert_eq!(lines[1], whole("after"));
        }
    }
}
