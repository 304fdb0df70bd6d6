//! Ids of events and of questions that a node must know again which it never made: opaque to clients, authenticated, bound
//! to the caller (HTTP-09, INPUT-14). Nothing is stored for them.

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

use super::ids::{ContextId, InputId, SessionId, StreamId, TaskId};

/// Which stream an event belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamKind {
    /// A session's own stream, opened by GET.
    Session,
    /// The answer of a `tasks/result`.
    Result { task: TaskId, request: String },
    /// The answer of a call that is no task.
    Call { request: String },
}

/// What the id of an event says: where its stream goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    pub session: SessionId,
    pub stream: StreamId,
    pub kind: StreamKind,
    /// Grows along the stream, on whichever node it is.
    pub count: i64,
}

/// The key that authenticates these ids, from `server_keys`.
#[derive(Clone)]
pub struct EventKey([u8; 32]);

/// Longer JSON-RPC ids are not carried: their streams cannot be resumed.
const MOST_REQUEST: usize = 512;
const MAC_BYTES: usize = 16;
const BODY_BYTES: usize = 1 + 16 + 16 + 16 + 8;
/// Marks the id of a question that no row knows.
const QUESTION: &str = "c-";
const TAG_BYTES: usize = 10;
const ID_CHARS: usize = 36;

impl EventKey {
    #[must_use]
    pub const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// `None` if the request's JSON-RPC id is too long to be carried.
    #[must_use]
    pub fn seal(&self, context: ContextId, id: &EventId) -> Option<String> {
        let (kind, task, request) = match &id.kind {
            StreamKind::Session => (0, Uuid::nil(), ""),
            StreamKind::Result { task, request } => (1, task.as_uuid(), request.as_str()),
            StreamKind::Call { request } => (2, Uuid::nil(), request.as_str()),
        };
        if request.len() > MOST_REQUEST {
            return None;
        }
        let mut bytes = Vec::with_capacity(BODY_BYTES + request.len() + MAC_BYTES);
        bytes.push(kind);
        bytes.extend(id.session.as_uuid().as_bytes());
        bytes.extend(id.stream.as_uuid().as_bytes());
        bytes.extend(task.as_bytes());
        bytes.extend(id.count.to_be_bytes());
        bytes.extend(request.as_bytes());
        let mac = self.mac("event", context, &bytes).finalize().into_bytes();
        bytes.extend(&mac[..MAC_BYTES]);
        Some(BASE64URL_NOPAD.encode(&bytes))
    }

    /// `None` for any text that [`Self::seal`] did not make for this context.
    #[must_use]
    pub fn open(&self, context: ContextId, text: &str) -> Option<EventId> {
        // Longer text cannot be one of ours; do not decode megabytes to find that out.
        if text.len() > (BODY_BYTES + MOST_REQUEST + MAC_BYTES).div_ceil(3) * 4 {
            return None;
        }
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let (body, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        self.mac("event", context, body).verify_truncated_left(mac).ok()?;
        let (head, request) = body.split_at_checked(BODY_BYTES)?;
        let uuid = |at: usize| Uuid::from_slice(head.get(at..at + 16)?).ok();
        let request = String::from_utf8(request.to_vec()).ok()?;
        let kind = match head[0] {
            0 => StreamKind::Session,
            1 => StreamKind::Result { task: TaskId::from_uuid(uuid(33)?), request },
            2 => StreamKind::Call { request },
            _ => return None,
        };
        Some(EventId {
            session: SessionId::from_uuid(uuid(1)?),
            stream: StreamId::from_uuid(uuid(17)?),
            kind,
            count: i64::from_be_bytes(head[49..].try_into().ok()?),
        })
    }

    /// A new JSON-RPC id for a question of a call that is no task: no row knows it, its node alone waits for the answer.
    #[must_use]
    pub fn question_id(&self, context: ContextId) -> String {
        let id = InputId::new().to_string();
        let tag = BASE64URL_NOPAD.encode(&self.tag(context, &id));
        format!("{QUESTION}{id}-{tag}")
    }

    /// Whether [`Self::question_id`] made this for this context, on whichever node.
    #[must_use]
    pub fn is_question_id(&self, context: ContextId, text: &str) -> bool {
        let Some((id, tag)) = text.strip_prefix(QUESTION).and_then(|rest| rest.split_at_checked(ID_CHARS)) else {
            return false;
        };
        let Some(tag) = tag.strip_prefix('-').and_then(|tag| BASE64URL_NOPAD.decode(tag.as_bytes()).ok()) else {
            return false;
        };
        tag.len() == TAG_BYTES && self.mac("question", context, id.as_bytes()).verify_truncated_left(&tag).is_ok()
    }

    fn tag(&self, context: ContextId, id: &str) -> [u8; TAG_BYTES] {
        let mac = self.mac("question", context, id.as_bytes()).finalize().into_bytes();
        std::array::from_fn(|at| mac[at])
    }

    fn mac(&self, purpose: &str, context: ContextId, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(context.as_uuid().as_bytes());
        mac.update(&(purpose.len() as u64).to_be_bytes());
        mac.update(purpose.as_bytes());
        mac.update(body);
        mac
    }
}

impl std::fmt::Debug for EventKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventKey(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<EventId> {
        let of = |kind, count| EventId { session: SessionId::new(), stream: StreamId::new(), kind, count };
        vec![
            of(StreamKind::Session, 0),
            of(StreamKind::Result { task: TaskId::new(), request: "\"ä\"".to_owned() }, i64::MAX),
            of(StreamKind::Call { request: "-1".to_owned() }, 7),
        ]
    }

    // req: HTTP-09
    #[test]
    fn an_event_id_names_its_stream_to_its_own_context_alone() {
        let (key, context) = (EventKey::new([7; 32]), ContextId::new());
        for id in ids() {
            let text = key.seal(context, &id).unwrap();
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')), "{text}");
            assert_eq!(key.open(context, &text), Some(id.clone()));
            assert_eq!(key.open(ContextId::new(), &text), None);
            assert_eq!(EventKey::new([8; 32]).open(context, &text), None);
        }
        let long = EventId { kind: StreamKind::Call { request: "9".repeat(MOST_REQUEST + 1) }, ..ids().remove(0) };
        assert_eq!(key.seal(context, &long), None);
        let most = EventId { kind: StreamKind::Call { request: "9".repeat(MOST_REQUEST) }, ..long };
        assert_eq!(key.open(context, &key.seal(context, &most).unwrap()), Some(most));
    }

    // req: HTTP-09
    #[test]
    fn every_changed_or_cut_event_id_is_unknown() {
        let (key, context) = (EventKey::new([7; 32]), ContextId::new());
        for id in ids() {
            let text = key.seal(context, &id).unwrap();
            for at in 0..text.len() {
                let mut changed = text.clone().into_bytes();
                changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
                assert_eq!(key.open(context, &String::from_utf8(changed).unwrap()), None, "{at}");
                assert_eq!(key.open(context, &text[..at]), None, "{at}");
            }
            assert_eq!(key.open(context, &format!("{text}A")), None);
        }
        for text in ["", "0", "garbage", "=", "ä", &"A".repeat(10_000)] {
            assert_eq!(key.open(context, text), None, "{text}");
        }
    }

    // req: INPUT-14
    #[test]
    fn a_plain_calls_question_is_known_on_every_node_to_its_own_context() {
        let (key, context) = (EventKey::new([7; 32]), ContextId::new());
        let id = key.question_id(context);
        assert_ne!(id, key.question_id(context));
        assert!(EventKey::new([7; 32]).is_question_id(context, &id));
        assert!(!key.is_question_id(ContextId::new(), &id));
        assert!(!EventKey::new([8; 32]).is_question_id(context, &id));
        for at in 0..id.len() {
            let mut changed = id.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(!key.is_question_id(context, &String::from_utf8(changed).unwrap()), "{at}");
            assert!(!key.is_question_id(context, &id[..at]), "{at}");
        }
        for text in
            ["c-", "", &InputId::new().to_string(), &format!("{id}A"), "c-ääääääääääääääääääääääääääääääääääää-AA"]
        {
            assert!(!key.is_question_id(context, text), "{text}");
        }
    }
}
