//! The state of a round: what a caller that was asked by an answer gives back with its own (MOD-12). Opaque to clients,
//! authenticated, bound to the caller and to the request that it belongs to.
//!
//! That it is given back once the store sees to: the state names the round there. A round that was its upstream's own has
//! nothing there before it is spent: its state holds what the upstream gave.

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::clock::Timestamp;
use super::ids::{ContextId, InputId, TaskId};
use super::json::RawJson;

/// Which round of which stored call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundState {
    pub call: TaskId,
    /// Counted from 1 in the life of the call.
    pub round: u32,
}

/// A round that was its upstream's own: the retry is a new call of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedState {
    /// Names it when it is spent.
    pub id: TaskId,
    pub expires: Timestamp,
    /// Who asked: nobody else is given the answers.
    pub upstream: String,
    /// The upstream's own state, the JSON string that arrived; it may give none.
    pub theirs: Option<RawJson>,
}

/// What makes a retry the same request: equal for equal method, name and arguments, as they are written.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestDigest([u8; 32]);

impl RequestDigest {
    /// `of` is the name of what is called, or the URI of what is read.
    #[must_use]
    pub fn new(method: &str, of: &str, arguments: &str) -> Self {
        let mut hasher = Sha256::new();
        for part in [method, of, arguments] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        Self(hasher.finalize().into())
    }

    /// As it is stored.
    #[must_use]
    pub fn to_text(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }
}

impl std::fmt::Debug for RequestDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RequestDigest({})", self.to_text())
    }
}

/// The key that authenticates states, from `server_keys`.
#[derive(Clone)]
pub struct StateKey([u8; 32]);

/// Of a state, before the ids of what is asked.
const HEAD_BYTES: usize = 16 + 4;
/// No call asks so much at once that its state is longer.
const MOST_TEXT: usize = 256 << 10;
const MAC_BYTES: usize = 32;
/// What the state of a passed round begins with; no base64 has it.
const PASSED: &str = "p.";
/// What is authenticated before that of a parked call.
const PARKED: &str = "c.";
const PASSED_BODY_BYTES: usize = 16 + 8 + 8;

impl StateKey {
    #[must_use]
    pub const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// The state of a round that asks these questions: no other one is answered with it.
    #[must_use]
    pub fn seal(&self, context: ContextId, request: &RequestDigest, state: RoundState, asked: &[InputId]) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + 16 * asked.len() + MAC_BYTES);
        bytes.extend(state.call.as_uuid().as_bytes());
        bytes.extend(state.round.to_be_bytes());
        for input in asked {
            bytes.extend(input.as_uuid().as_bytes());
        }
        let mac = self.mac(context, request, PARKED, &bytes).finalize().into_bytes();
        bytes.extend(mac);
        BASE64URL_NOPAD.encode(&bytes)
    }

    /// `None` for any text that [`Self::seal`] did not make for the same context and request: nothing tells why.
    #[must_use]
    pub fn open(&self, context: ContextId, request: &RequestDigest, text: &str) -> Option<(RoundState, Vec<InputId>)> {
        // Longer text cannot be one of ours; do not decode megabytes to find that out.
        if text.len() > MOST_TEXT {
            return None;
        }
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let (body, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        self.mac(context, request, PARKED, body).verify_slice(mac).ok()?;
        let (head, asked) = body.split_at_checked(HEAD_BYTES)?;
        let (call, round) = head.split_at(16);
        let call = TaskId::from_uuid(Uuid::from_slice(call).ok()?);
        let state = RoundState { call, round: u32::from_be_bytes(round.try_into().ok()?) };
        let asked =
            asked.chunks(16).map(|id| Uuid::from_slice(id).ok().map(InputId::from_uuid)).collect::<Option<_>>()?;
        Some((state, asked))
    }

    /// As [`Self::seal`], of a round that was passed on.
    #[must_use]
    pub fn seal_passed(&self, context: ContextId, request: &RequestDigest, state: &PassedState) -> String {
        let mut bytes = Vec::new();
        bytes.extend(state.id.as_uuid().as_bytes());
        bytes.extend(state.expires.micros().to_be_bytes());
        bytes.extend((state.upstream.len() as u64).to_be_bytes());
        bytes.extend(state.upstream.as_bytes());
        bytes.extend(state.theirs.as_ref().map_or("", RawJson::as_str).as_bytes());
        let mac = self.mac(context, request, PASSED, &bytes).finalize().into_bytes();
        bytes.extend(mac);
        format!("{PASSED}{}", BASE64URL_NOPAD.encode(&bytes))
    }

    /// Whether a text claims to be the state of a round that was passed on.
    #[must_use]
    pub fn is_passed(text: &str) -> bool {
        text.starts_with(PASSED)
    }

    /// As [`Self::open`], of a round that was passed on.
    #[must_use]
    pub fn open_passed(&self, context: ContextId, request: &RequestDigest, text: &str) -> Option<PassedState> {
        let bytes = BASE64URL_NOPAD.decode(text.strip_prefix(PASSED)?.as_bytes()).ok()?;
        let (body, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        self.mac(context, request, PASSED, body).verify_slice(mac).ok()?;
        let (head, theirs) = body.split_at_checked(PASSED_BODY_BYTES)?;
        let (id, head) = head.split_at(16);
        let (expires, upstream) = head.split_at(8);
        let upstream = usize::try_from(u64::from_be_bytes(upstream.try_into().ok()?)).ok()?;
        let (upstream, theirs) = std::str::from_utf8(theirs).ok()?.split_at_checked(upstream)?;
        Some(PassedState {
            id: TaskId::from_uuid(Uuid::from_slice(id).ok()?),
            expires: Timestamp::from_micros(i64::from_be_bytes(expires.try_into().ok()?)),
            upstream: upstream.to_owned(),
            theirs: (!theirs.is_empty()).then(|| RawJson::trusted(theirs)),
        })
    }

    /// `kind` keeps the two kinds of states apart.
    fn mac(&self, context: ContextId, request: &RequestDigest, kind: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(context.as_uuid().as_bytes());
        mac.update(&request.0);
        mac.update(kind.as_bytes());
        mac.update(body);
        mac
    }
}

impl std::fmt::Debug for StateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StateKey(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> (StateKey, ContextId, RequestDigest, (RoundState, Vec<InputId>), String) {
        let (key, context) = (StateKey::new([7; 32]), ContextId::new());
        let request = RequestDigest::new("tools/call", "t", "{}");
        let state = RoundState { call: TaskId::new(), round: 3 };
        let asked = vec![InputId::new(), InputId::new()];
        let text = key.seal(context, &request, state, &asked);
        (key, context, request, (state, asked), text)
    }

    #[test]
    fn a_state_opens_only_for_its_caller_and_its_request() {
        let (key, context, request, state, text) = sealed();
        assert_eq!(key.open(context, &request, &text), Some(state));
        assert_eq!(key.open(ContextId::new(), &request, &text), None);
        assert_eq!(StateKey::new([8; 32]).open(context, &request, &text), None);
        for [method, of, arguments] in [
            ["prompts/get", "t", "{}"],
            ["tools/call", "u", "{}"],
            ["tools/call", "t", r#"{"a":1}"#],
            ["tools/call", "", "t{}"],
            ["tools/callt", "", "{}"],
        ] {
            let other = RequestDigest::new(method, of, arguments);
            assert_eq!(key.open(context, &other, &text), None, "{method} {of} {arguments}");
        }
    }

    #[test]
    fn the_state_of_a_passed_round_holds_what_its_upstream_gave() {
        let (key, context, request, _, parked) = sealed();
        for theirs in [None, Some(RawJson::trusted(r#""s\u0000 é""#))] {
            let (expires, upstream) = (Timestamp::from_micros(7), "bücher".to_owned());
            let state = PassedState { id: TaskId::new(), expires, upstream, theirs };
            let text = key.seal_passed(context, &request, &state);
            assert_eq!(key.open_passed(context, &request, &text), Some(state));
            assert_eq!(key.open(context, &request, &text), None);
            assert_eq!(key.open_passed(ContextId::new(), &request, &text), None);
            assert_eq!(key.open_passed(context, &RequestDigest::new("tools/call", "u", "{}"), &text), None);
            assert_eq!(StateKey::new([8; 32]).open_passed(context, &request, &text), None);
            for at in PASSED.len()..text.len() {
                let mut changed = text.clone().into_bytes();
                changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(changed).unwrap();
                assert_eq!(key.open_passed(context, &request, &changed), None, "{at}");
                assert_eq!(key.open_passed(context, &request, &text[..at]), None, "{at}");
            }
        }
        assert_eq!(key.open_passed(context, &request, &format!("{PASSED}{parked}")), None);
        assert_eq!(key.open_passed(context, &request, PASSED), None);
    }

    #[test]
    fn every_changed_or_cut_state_is_refused() {
        let (key, context, request, _, text) = sealed();
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(key.open(context, &request, &changed), None, "{at}");
            assert_eq!(key.open(context, &request, &text[..at]), None, "{at}");
        }
        for other in [
            "",
            "1",
            "null",
            "=",
            &"A".repeat(10_000),
            &"A".repeat(300_000),
            &format!("{text}A"),
            &format!("{text}-TAMPERED"),
        ] {
            assert_eq!(key.open(context, &request, other), None, "{other}");
        }
    }
}
