//! Messages on their way to an upstream, whatever carries them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio_util::sync::CancellationToken;

use super::inbox::RELATED_TASK;
use crate::protocol::modern::meta;

/// Keys of a request's `_meta` that mean something to us alone: a task of ours, and what the caller said of its own connection.
pub(super) const NOT_PASSED_ON: [&str; 6] =
    [RELATED_TASK, ATTEMPT, meta::OF_CLIENT[0], meta::OF_CLIENT[1], meta::OF_CLIENT[2], meta::OF_CLIENT[3]];

/// The key of a call's `_meta` that says which attempt it is, from the second on (KEEP-08).
pub(super) const ATTEMPT: &str = "io.taskhold/attempt";

/// Messages that wait for the upstream to take them; beyond it requests wait, and notifications and answers are dropped.
pub(super) const QUEUE: usize = 256;

/// One message.
pub(super) struct Outgoing {
    pub(super) text: String,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Request(Departure),
    /// `notifications/initialized`, after which the negotiated version holds. Nothing overtakes it.
    Opened {
        version: String,
    },
    /// Not a message: the link goes on in a session from before, in which this version was negotiated.
    Resumed {
        session: String,
        version: String,
    },
    Notification,
    /// To a request of the upstream; at once, and worth nothing to who does not read.
    Response,
    /// To a question of the upstream, whose work waits for it.
    Answer,
}

/// A request that has not been answered yet, as its carrier sees it.
#[derive(Clone)]
pub(super) struct Departure {
    pub(super) number: u64,
    pub(super) gate: Arc<Gate>,
    /// Cancelled when nobody waits for the answer any more.
    pub(super) given_up: CancellationToken,
    /// What a proxy may route by, where the era has that: headers and their values.
    pub(super) heading: Arc<[(String, String)]>,
}

impl Departure {
    pub(super) fn new(number: u64, heading: Vec<(String, String)>) -> Self {
        Self { number, gate: Arc::default(), given_up: CancellationToken::new(), heading: heading.into() }
    }
}

/// Decides once whether a queued request goes out or is withdrawn.
#[derive(Default)]
pub(super) struct Gate(AtomicU8);

impl Gate {
    const OPENED: u8 = 1;
    const WITHDRAWN: u8 = 2;

    pub(super) fn open(&self) -> bool {
        self.0.compare_exchange(0, Self::OPENED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(super) fn withdraw(&self) -> bool {
        self.0.compare_exchange(0, Self::WITHDRAWN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Also true if a part of it may have gone out.
    pub(super) fn was_opened(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::OPENED
    }
}
