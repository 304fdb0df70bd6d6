//! Hints: what a node says to the others after its commits, so that they look at once. To lose one costs a poll interval.

use std::collections::HashSet;

use data_encoding::BASE64URL_NOPAD as BASE64;
use uuid::Uuid;

use crate::domain::ids::{InputId, NodeId, SessionId, TaskId, TokenId};

/// PostgreSQL takes less than 8,000 bytes.
const MOST_BYTES: usize = 7_900;
/// Says how the rest is written. What begins otherwise is not understood, and not needed.
const FORM: &str = "1";
/// Characters of an id.
const ID: usize = 22;
/// By which a store knows what it said itself.
pub(super) type Origin = NodeId;

/// Where to look. It carries no state: that is in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A task was made, changed, asked or ended; with the legacy session that made it, if there is one.
    Task(TaskId, Option<SessionId>),
    /// A question is not open any more.
    Input(InputId),
    /// A legacy session ended.
    SessionEnded(SessionId),
    /// A token was revoked, or its expiry brought forward.
    Token(TokenId),
    /// There are new signals.
    Signals,
    /// A task waits to be run.
    Waiting,
    /// Anything may have happened.
    Anything,
}

impl Hint {
    fn write(self, text: &mut String) {
        let (kind, ids) = match self {
            Self::Task(task, session) => ('t', [Some(task.as_uuid()), session.map(SessionId::as_uuid)]),
            Self::Input(input) => ('i', [Some(input.as_uuid()), None]),
            Self::SessionEnded(session) => ('e', [Some(session.as_uuid()), None]),
            Self::Token(token) => ('r', [Some(token.as_uuid()), None]),
            Self::Signals => ('s', [None; 2]),
            Self::Waiting => ('w', [None; 2]),
            Self::Anything => ('a', [None; 2]),
        };
        text.push(',');
        text.push(kind);
        for id in ids.into_iter().flatten() {
            BASE64.encode_append(id.as_bytes(), text);
        }
    }

    /// `None` for a kind of a newer version's.
    fn read(text: &str) -> Option<Self> {
        let ids = text.as_bytes().get(1..)?.chunks(ID).map(read_id);
        let ids = ids.collect::<Option<Vec<_>>>()?;
        Some(match (text.chars().next()?, &ids[..]) {
            ('t', [task]) => Self::Task(TaskId::from_uuid(*task), None),
            ('t', [task, session]) => Self::Task(TaskId::from_uuid(*task), Some(SessionId::from_uuid(*session))),
            ('i', [input]) => Self::Input(InputId::from_uuid(*input)),
            ('e', [session]) => Self::SessionEnded(SessionId::from_uuid(*session)),
            ('r', [token]) => Self::Token(TokenId::from_uuid(*token)),
            ('s', []) => Self::Signals,
            ('w', []) => Self::Waiting,
            ('a', []) => Self::Anything,
            _ => return None,
        })
    }
}

/// As few notifications as carry all of these. One without hints says only that its node is there.
pub(super) fn write(origin: Origin, hints: impl IntoIterator<Item = Hint>) -> Vec<String> {
    let mut head = FORM.to_owned();
    BASE64.encode_append(origin.as_uuid().as_bytes(), &mut head);
    let mut texts = vec![head.clone()];
    for hint in hints {
        let mut one = String::new();
        hint.write(&mut one);
        match texts.last_mut() {
            Some(text) if text.len() + one.len() <= MOST_BYTES => text.push_str(&one),
            _ => texts.push(format!("{head}{one}")),
        }
    }
    texts
}

/// Who says it, and what. `None` for what is no notification of ours.
pub(super) fn read(text: &str) -> Option<(Origin, HashSet<Hint>)> {
    let mut parts = text.strip_prefix(FORM)?.split(',');
    let origin = NodeId::from_uuid(read_id(parts.next()?.as_bytes())?);
    Some((origin, parts.filter_map(Hint::read).collect()))
}

fn read_id(text: &[u8]) -> Option<Uuid> {
    Uuid::from_slice(&BASE64.decode(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> HashSet<Hint> {
        HashSet::from([
            Hint::Task(TaskId::new(), None),
            Hint::Task(TaskId::new(), Some(SessionId::new())),
            Hint::Input(InputId::new()),
            Hint::SessionEnded(SessionId::new()),
            Hint::Token(TokenId::new()),
            Hint::Signals,
            Hint::Waiting,
            Hint::Anything,
        ])
    }

    #[test]
    fn what_is_written_is_read() {
        let (origin, hints) = (NodeId::new(), every_kind());
        let texts = write(origin, hints.clone());
        assert_eq!(texts.len(), 1);
        assert_eq!(read(&texts[0]), Some((origin, hints)));
        assert_eq!(
            write(origin, []).iter().map(|text| read(text)).collect::<Vec<_>>(),
            [Some((origin, HashSet::new()))]
        );
    }

    // field case: F-SQL-09
    #[test]
    fn a_thousand_ends_fit_into_few_notifications_below_the_limit() {
        let hints: HashSet<_> = (0..1_000).map(|_| Hint::Task(TaskId::new(), Some(SessionId::new()))).collect();
        let texts = write(NodeId::new(), hints.clone());
        assert!(texts.len() <= 6, "{}", texts.len());
        assert!(texts.iter().all(|text| text.len() < 8_000));
        let read: HashSet<_> = texts.iter().flat_map(|text| read(text).unwrap().1).collect();
        assert_eq!(read, hints);
    }

    #[test]
    fn what_a_newer_version_says_is_left_out() {
        let origin = NodeId::new();
        let text = &write(origin, [Hint::Waiting])[0];
        let newer = format!("{text},x,zAAAAAAAAAAAAAAAAAAAAAA,t,t!,s");
        assert_eq!(read(&newer), Some((origin, HashSet::from([Hint::Waiting, Hint::Signals]))));
        for foreign in ["", "2", "hello", "1", "1,w", &text.replacen('1', "2", 1)] {
            assert_eq!(read(foreign), None, "{foreign:?}");
        }
    }
}
