//! Starting and stopping what runs in the background.

use std::future::Future;

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
