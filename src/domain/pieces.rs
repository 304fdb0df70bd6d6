//! A text made of pieces: what is large is shared with where it came from, what is small is copied.
//!
//! Many readers of one large result are each sent the same bytes, between a few of their own.

use std::fmt;

use bytes::Bytes;

use super::json::RawJson;

/// From so many bytes on a part is shared; below, a copy costs less than one piece more.
const WORTH_SHARING: usize = 16 * 1024;

/// A text in pieces, in order. `Debug` shows the length only: results must not reach a log.
#[derive(Clone, Default)]
pub struct Pieces {
    done: Vec<Bytes>,
    /// The end of the text, if that was copied.
    last: Vec<u8>,
    length: usize,
}

impl Pieces {
    /// In bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Adds a copy.
    pub fn push_text(&mut self, text: &str) {
        self.length += text.len();
        self.last.extend_from_slice(text.as_bytes());
    }

    /// Adds `part`, which lies in the text of `json`, without a copy if it is large.
    pub fn push_part(&mut self, json: &RawJson, part: &str) {
        let text = json.as_str();
        let inside = part.as_ptr().addr().checked_sub(text.as_ptr().addr()).filter(|at| at + part.len() <= text.len());
        debug_assert!(inside.is_some(), "the part is of another text");
        match inside {
            Some(at) if part.len() >= WORTH_SHARING => {
                self.close();
                self.length += part.len();
                self.done.push(Bytes::from_owner(Shared(json.clone())).slice(at..at + part.len()));
            }
            _ => self.push_text(part),
        }
    }

    /// Adds another text, whose large pieces are shared.
    pub fn push(&mut self, other: &Self) {
        for piece in &other.done {
            if piece.len() >= WORTH_SHARING {
                self.close();
                self.done.push(piece.clone());
            } else {
                self.last.extend_from_slice(piece);
            }
        }
        self.last.extend_from_slice(&other.last);
        self.length += other.length;
    }

    /// The pieces themselves, none of them empty.
    #[must_use]
    pub fn into_bytes(mut self) -> Vec<Bytes> {
        self.close();
        self.done
    }

    /// What was copied becomes a piece of its own.
    fn close(&mut self) {
        if !self.last.is_empty() {
            self.done.push(Bytes::from(std::mem::take(&mut self.last)));
        }
    }

    /// The whole text, copied.
    #[cfg(test)]
    pub(crate) fn to_text(&self) -> String {
        let parts = self.done.iter().map(|piece| &piece[..]).chain([&self.last[..]]);
        String::from_utf8_lossy(&parts.collect::<Vec<_>>().concat()).into_owned()
    }
}

impl From<RawJson> for Pieces {
    fn from(json: RawJson) -> Self {
        let mut pieces = Self::default();
        pieces.push_part(&json, json.as_str());
        pieces
    }
}

impl From<String> for Pieces {
    fn from(text: String) -> Self {
        Self { done: Vec::new(), length: text.len(), last: text.into_bytes() }
    }
}

/// Equal if the texts are, however they are cut.
#[cfg(test)]
impl PartialEq for Pieces {
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length && self.to_text() == other.to_text()
    }
}

#[cfg(test)]
impl Eq for Pieces {}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pieces({} bytes)", self.length)
    }
}

struct Shared(RawJson);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_str().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_parts_are_shared_and_small_ones_are_gathered() {
        let json = RawJson::trusted(format!("[\"{}\",1]", "x".repeat(WORTH_SHARING)));
        let text = json.as_str();
        let mut pieces = Pieces::default();
        pieces.push_text("<");
        pieces.push_part(&json, &text[..1]);
        pieces.push_part(&json, &text[1..text.len() - 1]);
        pieces.push_part(&json, &text[text.len() - 1..]);
        let mut around = Pieces::from("(".to_owned());
        around.push(&pieces);
        around.push_text(")");
        assert_eq!((around.to_text(), around.length()), (format!("(<{text})"), text.len() + 3));
        let bytes = around.into_bytes();
        assert_eq!(bytes.iter().map(Bytes::len).collect::<Vec<_>>(), [3, text.len() - 2, 2]);
        assert_eq!(bytes[1].as_ptr(), text[1..].as_ptr(), "not a copy");
    }

    #[test]
    fn the_same_text_is_equal_however_it_is_cut() {
        let json = RawJson::trusted(format!("\"{}\"", "x".repeat(WORTH_SHARING)));
        assert_eq!(Pieces::from(json.clone()), Pieces::from(json.as_str().to_owned()));
        assert_ne!(Pieces::from("a".to_owned()), Pieces::from("b".to_owned()));
        assert!(Pieces::default().into_bytes().is_empty());
    }
}
