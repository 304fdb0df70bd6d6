//! Starting and stopping what runs in the background, and work away from the async threads.

use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tracing::Instrument;

/// Starts background work under a name that its log lines carry.
pub fn spawn<F>(name: &'static str, work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "the one home of spawning")]
    tokio::spawn(work.instrument(tracing::debug_span!("background", work = name)))
}

/// Work on more bytes than this is done away from the async threads.
const ASIDE_BYTES: usize = 64 * 1024;

/// Does work on so many bytes where it holds nobody up. `None` if it panicked away from here.
pub async fn aside<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if bytes > ASIDE_BYTES { tokio::task::spawn_blocking(work).await.ok() } else { Some(work()) }
}

/// The signals that ask a process to stop.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// From now on they no longer end the process by themselves.
    ///
    /// # Errors
    /// If the system does not let them be watched.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name of the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
