//! The way to end what is at the other end of a link, and to see its end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Ends a link's process or session and sees its end; cheap to clone. Holding it does not keep the link.
#[derive(Clone)]
pub(super) struct Control {
    /// Cancelled to bring the end about; whoever carries the link's messages acts on it.
    pub(super) ending: CancellationToken,
    exit: watch::Receiver<Option<Exit>>,
    stderr: Tail,
}

/// Says once how it ended.
pub(super) type ExitSender = watch::Sender<Option<Exit>>;

/// The last lines of standard error; empty where there is none.
#[derive(Clone, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<String>>>);

/// How a process or session ended.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    pub(super) how: String,
    /// Whether this service brought it about.
    pub(super) asked: bool,
}

const TAIL_LINES: usize = 100;

impl Control {
    pub(super) fn new() -> (Self, ExitSender) {
        let (exited, exit) = watch::channel(None);
        (Self { ending: CancellationToken::new(), exit, stderr: Tail::default() }, exited)
    }

    /// Completes when it is gone.
    pub(super) async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        let exit = exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
        exit.unwrap_or_else(|| Exit { how: "its end was not seen".to_owned(), asked: false })
    }

    /// The last lines of standard error.
    pub(super) fn stderr(&self) -> Vec<String> {
        self.stderr.lock().iter().cloned().collect()
    }

    pub(super) fn tail(&self) -> Tail {
        self.stderr.clone()
    }
}

impl Tail {
    pub(super) fn push(&self, line: String) {
        let mut lines = self.lock();
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
