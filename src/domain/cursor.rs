//! Page cursors: opaque to clients, authenticated, bound to the caller and the method (TASK-18).
//!
//! A cursor carries the position itself, so a deleted anchor row is harmless (TASK-20) and a page costs the same at
//! any depth (TASK-21).

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

use super::clock::Timestamp;
use super::ids::{ContextId, TaskId};

/// The last row of a page: the next page starts after it, in the order (created descending, id descending).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub created: Timestamp,
    pub id: TaskId,
}

/// The key that authenticates cursors, from `server_keys`.
#[derive(Clone)]
pub struct CursorKey([u8; 32]);

/// The text is no cursor of ours, or was made for someone or something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown cursor")]
pub struct BadCursor;

const MAC_BYTES: usize = 16;
const BODY_BYTES: usize = 8 + 16;

impl CursorKey {
    #[must_use]
    pub const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    #[must_use]
    pub fn seal(&self, context: ContextId, method: &str, position: Position) -> String {
        let mut bytes = Vec::with_capacity(BODY_BYTES + MAC_BYTES);
        bytes.extend(position.created.micros().to_be_bytes());
        bytes.extend(position.id.as_uuid().as_bytes());
        let mac = self.mac(context, method, &bytes).finalize().into_bytes();
        bytes.extend(&mac[..MAC_BYTES]);
        BASE64URL_NOPAD.encode(&bytes)
    }

    /// # Errors
    /// [`BadCursor`] for any text that [`Self::seal`] did not make for the same context and method.
    pub fn open(&self, context: ContextId, method: &str, cursor: &str) -> Result<Position, BadCursor> {
        // Longer text cannot be one of ours; do not decode megabytes to find that out.
        if cursor.len() > 64 {
            return Err(BadCursor);
        }
        let bytes = BASE64URL_NOPAD.decode(cursor.as_bytes()).map_err(|_| BadCursor)?;
        let (body, mac) = bytes.split_at_checked(BODY_BYTES).ok_or(BadCursor)?;
        if mac.len() != MAC_BYTES {
            return Err(BadCursor);
        }
        self.mac(context, method, body).verify_truncated_left(mac).map_err(|_| BadCursor)?;
        let (created, id) = body.split_at(8);
        let created = i64::from_be_bytes(created.try_into().map_err(|_| BadCursor)?);
        let id = Uuid::from_slice(id).map_err(|_| BadCursor)?;
        Ok(Position { created: Timestamp::from_micros(created), id: TaskId::from_uuid(id) })
    }

    fn mac(&self, context: ContextId, method: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(context.as_uuid().as_bytes());
        mac.update(&(method.len() as u64).to_be_bytes());
        mac.update(method.as_bytes());
        mac.update(body);
        mac
    }
}

impl std::fmt::Debug for CursorKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CursorKey(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: TASK-18
    #[test]
    fn a_cursor_opens_only_for_its_maker() {
        let key = CursorKey::new([7; 32]);
        let context = ContextId::new();
        let position = Position { created: Timestamp::from_micros(42), id: TaskId::new() };
        let cursor = key.seal(context, "tasks/list", position);
        assert_eq!(key.open(context, "tasks/list", &cursor), Ok(position));
        assert_eq!(key.open(ContextId::new(), "tasks/list", &cursor), Err(BadCursor));
        assert_eq!(key.open(context, "tools/list", &cursor), Err(BadCursor));
        assert_eq!(CursorKey::new([8; 32]).open(context, "tasks/list", &cursor), Err(BadCursor));
    }

    // req: TASK-18
    #[test]
    fn every_changed_or_cut_cursor_is_refused() {
        let key = CursorKey::new([7; 32]);
        let context = ContextId::new();
        let cursor =
            key.seal(context, "tasks/list", Position { created: Timestamp::from_micros(42), id: TaskId::new() });
        for at in 0..cursor.len() {
            let mut changed = cursor.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(key.open(context, "tasks/list", &changed), Err(BadCursor), "{at}");
            assert_eq!(key.open(context, "tasks/list", &cursor[..at]), Err(BadCursor), "{at}");
        }
        for text in ["", "1", "garbage", "null", "=", &"A".repeat(10_000), &format!("{cursor}A"), &format!("{cursor}=")]
        {
            assert_eq!(key.open(context, "tasks/list", text), Err(BadCursor), "{text}");
        }
    }
}
