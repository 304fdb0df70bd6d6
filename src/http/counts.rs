//! What is counted of requests for operators, since the start of the process.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct Counts {
    unnamed_task_requests: AtomicU64,
}

impl Counts {
    /// How many requests about a task came without `Mcp-Name` and were served none the less (EXT-10). Were the header a must,
    /// they would have been refused.
    #[must_use]
    pub fn unnamed_task_requests(&self) -> u64 {
        self.unnamed_task_requests.load(Ordering::Relaxed)
    }

    pub(in crate::http) fn unnamed_task_request(&self) {
        self.unnamed_task_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Says in the log what there is to say.
    pub fn log(&self) {
        let unnamed = self.unnamed_task_requests();
        if unnamed > 0 {
            tracing::info!(
                requests.unnamed = unnamed,
                "requests about tasks came without Mcp-Name; tasks.require_name_header would have refused them"
            );
        }
    }
}
