//! A call's hold on its link.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Links, Slot, jitter};
use crate::domain::lease::backoff;
use crate::domain::log_level::LogLevel;
use crate::executor::upstream::link::Link;
use crate::executor::upstream::relay::set_level;
use crate::protocol::splice::member;

/// A link in use. Dropping it lets the link become idle.
pub(in crate::executor::upstream) struct Lease {
    pub(in crate::executor::upstream) link: Arc<Link>,
    pub(super) slot: Arc<Slot>,
    pub(super) links: Arc<Links>,
}

impl Lease {
    /// Brings the link to the log level that is wanted of it, before it is used.
    pub(in crate::executor::upstream) async fn prepare(&self) {
        // In the other era each request says it.
        if self.link.is_modern()
            || self.wanted_level().is_none()
            || member(self.link.capabilities.as_str(), "logging").is_none()
        {
            return;
        }
        let _turn = self.slot.leveling.lock().await;
        if let Some(level) = self.wanted_level()
            && set_level(&self.link, level).await
        {
            let mut state = self.slot.lock();
            state.level_set = Some(state.level_set.map_or(level, |set| set.min(level)));
        }
    }

    /// From which level on its context's requests ask for log messages. Without one that was set, what most servers send by
    /// themselves in the legacy era; callers that want none are not told.
    pub(in crate::executor::upstream) fn log_level(&self) -> LogLevel {
        self.slot.lock().level.unwrap_or(LogLevel::Info)
    }

    /// The level that the link is still to be asked for.
    fn wanted_level(&self) -> Option<LogLevel> {
        let state = self.slot.lock();
        let is_ours = state.link.as_ref().is_some_and(|link| Arc::ptr_eq(link, &self.link));
        let is_set = |level| state.level_set.is_some_and(|set| set <= level);
        state.level.filter(|level| is_ours && !is_set(*level))
    }

    /// Notes that the upstream has answered: a later end of the link is no failed start.
    pub(in crate::executor::upstream) fn answered(&self) {
        self.slot.lock().failures = 0;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.slot.lock();
        state.calls -= 1;
        let ours = state.link.as_ref().is_some_and(|link| Arc::ptr_eq(link, &self.link));
        if ours && self.link.is_closed() {
            // The first restart is free; one that ends again before any answer is held back.
            state.link = None;
            let hold = if state.failures > 0 { backoff(state.failures, jitter()) } else { Duration::ZERO };
            state.not_before = self.links.clock.boot() + hold;
            state.failures += 1;
            state.last_error = self.link.why_closed();
        }
        state.idle_since = self.links.clock.boot();
        let idle = state.calls == 0;
        drop(state);
        if idle && self.links.waiting.load(Ordering::Acquire) > 0 {
            self.links.make_room();
        }
    }
}
