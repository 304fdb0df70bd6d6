//! A message on its way to a client, in pieces that its readers share, and the body that sends it.

use std::any::Any;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::domain::pieces::Pieces;

/// The text of a message, and what is held until its receiver's connection has taken all of it.
#[derive(Debug)]
pub(super) struct Outgoing {
    text: Pieces,
    held: Option<Held>,
}

type Held = Arc<dyn Any + Send + Sync>;

/// A piece that holds it: the body that sends it is gone as soon as the connection knows what is to be written.
struct Piece {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Outgoing {
    pub(super) fn holding(self, held: impl Any + Send + Sync) -> Self {
        Self { held: Some(Arc::new(held)), ..self }
    }

    /// The same with another text.
    pub(super) fn map(self, text: impl FnOnce(&Pieces) -> Pieces) -> Self {
        Self { text: text(&self.text), held: self.held }
    }

    /// The pieces, each of which holds what is held.
    pub(super) fn into_pieces(self) -> Vec<Bytes> {
        let pieces = self.text.into_bytes();
        match self.held {
            None => pieces,
            Some(held) => {
                let hold = |bytes| Bytes::from_owner(Piece { bytes, _held: Arc::clone(&held) });
                pieces.into_iter().map(hold).collect()
            }
        }
    }

    /// A body of known length.
    pub(super) fn into_body(self) -> Body {
        let left = self.text.length() as u64;
        Body::new(Sending { pieces: self.into_pieces().into_iter(), left })
    }
}

impl From<String> for Outgoing {
    fn from(text: String) -> Self {
        Pieces::from(text).into()
    }
}

impl From<Pieces> for Outgoing {
    fn from(text: Pieces) -> Self {
        Self { text, held: None }
    }
}

struct Sending {
    pieces: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.next();
        self.left = self.left.saturating_sub(piece.as_ref().map_or(0, Bytes::len) as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::body::Body as _;

    use super::*;

    #[tokio::test]
    async fn a_body_has_the_length_of_its_text() {
        let body = Outgoing::from("{\"a\":1}".to_owned()).into_body();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(7), false));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "{\"a\":1}");
        assert!(Outgoing::from(String::new()).into_body().is_end_stream());
    }
}
