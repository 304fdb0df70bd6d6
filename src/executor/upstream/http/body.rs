//! The body of an answer, read within bounds. What is counted is the size after decompression.

use reqwest::Response;

use crate::protocol::outline::{Meter, Outline};

/// How many times the limit is read to tell the size of an answer that is over it.
const MEASURED: usize = 8;

/// A body.
pub(super) enum Body {
    Whole(Vec<u8>),
    TooLong(Outline),
}

/// Reads a body of at most `limit` bytes; a longer one is measured and not held.
///
/// # Errors
/// If it breaks off.
pub(super) async fn read(response: &mut Response, limit: usize) -> Result<Body, reqwest::Error> {
    let mut held = Vec::new();
    let mut meter: Option<Meter> = None;
    let mut seen: usize = 0;
    while let Some(piece) = response.chunk().await? {
        seen = seen.saturating_add(piece.len());
        if seen > limit {
            let meter = meter.get_or_insert_with(|| {
                let mut meter = Meter::default();
                meter.feed(&std::mem::take(&mut held));
                meter
            });
            meter.feed(&piece);
            if seen > limit.saturating_mul(MEASURED) {
                break;
            }
        } else {
            held.extend_from_slice(&piece);
        }
    }
    Ok(meter.map_or(Body::Whole(held), |meter| Body::TooLong(meter.finish())))
}
