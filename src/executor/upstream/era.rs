//! Which era an upstream speaks, and what is known of it.

use std::sync::{Mutex, PoisonError};

/// A family of protocol revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// 2025-11-25 and older: `initialize` opens a session, the upstream sends requests.
    Legacy,
    /// 2026-07-28: each request stands alone, the upstream asks by results.
    Modern,
}

/// What is configured of an upstream's era.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// It is found out.
    #[default]
    Auto,
    /// 2025-11-25 or an older revision.
    Legacy,
    /// 2026-07-28.
    Modern,
}

impl Protocol {
    /// The words of the configuration.
    pub const WORDS: [&str; 3] = ["auto", "2025-11-25", "2026-07-28"];

    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        let all = [Self::Auto, Self::Legacy, Self::Modern];
        Self::WORDS.iter().position(|known| *known == word).map(|at| all[at])
    }
}

/// What is known of one upstream's era, by all its links: found out once, and again when it fails (EXEC-19).
#[derive(Debug, Default)]
pub(super) struct Eras {
    pub(super) protocol: Protocol,
    known: Mutex<Option<Era>>,
}

impl Eras {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self { protocol, known: Mutex::default() }
    }

    pub(super) fn known(&self) -> Option<Era> {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn learn(&self, era: Option<Era>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = era;
    }
}
