//! `requestState`: the answers so far, signed, bound to the request that asked.

use std::collections::BTreeMap;

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;

use crate::domain::ids::random_bytes;

/// Texts of answers by the keys of their questions.
pub(super) type Answers = BTreeMap<String, String>;

/// Signs states; one of another process is refused.
pub(super) struct Sealer {
    key: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Payload {
    answers: Answers,
    /// No two states are the same.
    nonce: String,
}

impl Sealer {
    pub(super) fn new() -> Self {
        Self { key: random_bytes() }
    }

    pub(super) fn seal(&self, tool: &str, arguments: &str, answers: Answers) -> String {
        let nonce = BASE64URL_NOPAD.encode(&random_bytes::<9>());
        // Only strings: this cannot fail.
        let payload = serde_json::to_vec(&Payload { answers, nonce }).unwrap_or_default();
        let payload = BASE64URL_NOPAD.encode(&payload);
        let mark = self.mark(tool, arguments, &payload).finalize().into_bytes();
        format!("{payload}.{}", BASE64URL_NOPAD.encode(&mark))
    }

    /// `None` if it was not given out by this process for the same call.
    pub(super) fn open(&self, tool: &str, arguments: &str, state: &str) -> Option<Answers> {
        let (payload, mark) = state.split_once('.')?;
        let mark = BASE64URL_NOPAD.decode(mark.as_bytes()).ok()?;
        self.mark(tool, arguments, payload).verify_slice(&mark).ok()?;
        let payload = BASE64URL_NOPAD.decode(payload.as_bytes()).ok()?;
        Some(serde_json::from_slice::<Payload>(&payload).ok()?.answers)
    }

    fn mark(&self, tool: &str, arguments: &str, payload: &str) -> Hmac<Sha256> {
        // A client may print the same arguments in another way.
        let arguments =
            serde_json::from_str::<Value>(arguments).map_or_else(|_| arguments.to_owned(), |it| it.to_string());
        let mut mark = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes a key of any length");
        for part in [tool, &arguments, payload] {
            mark.update(&(part.len() as u64).to_be_bytes());
            mark.update(part.as_bytes());
        }
        mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_opens_for_its_own_call_only() {
        let sealer = Sealer::new();
        let answers = Answers::from([("k".to_owned(), r#"{"n":1e400}"#.to_owned())]);
        let state = sealer.seal("t", r#"{"a": 1}"#, answers.clone());
        assert_eq!(sealer.open("t", r#"{"a":1}"#, &state), Some(answers.clone()));
        assert_eq!(sealer.open("u", r#"{"a":1}"#, &state), None);
        assert_eq!(sealer.open("t", r#"{"a":2}"#, &state), None);
        assert_eq!(sealer.open("t", r#"{"a":1}"#, &format!("{state}-TAMPERED")), None);
        assert_eq!(Sealer::new().open("t", r#"{"a":1}"#, &state), None);
        assert_ne!(sealer.seal("t", r#"{"a": 1}"#, answers), state);
    }
}
