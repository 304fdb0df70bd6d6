//! Who may have a slot, and who may wait for one.
//!
//! Slots are counted where they are given, in the database, when a node claims: what is limited is never run at once where it
//! is made. How many wait is counted now and then, and in between each node adds what it has made itself: a limit may be overrun
//! by what the other nodes make meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::runner::Slot;
use super::{Caller, Engine, Refusal};
use crate::domain::ids::ContextId;
use crate::domain::queue::{Counted, SlotLimits};
use crate::executor::Tool;
use crate::store::StoreError;

/// The configured limits of what runs and waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRules {
    /// Slots of one context, on all nodes together.
    pub slots: Option<u64>,
    /// Tasks of one context that wait for a slot.
    pub queued: u64,
    pub tenants: BTreeMap<String, TenantRules>,
}

/// The same of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantRules {
    pub slots: Option<u64>,
    pub queued: Option<u64>,
}

/// How long a count is believed that leaves room.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long one is believed that leaves none, for each task of it: the longer, the more it costs to count again.
const FULL_BELIEVED: Duration = Duration::from_micros(10);
/// Counts that are remembered before old ones are forgotten.
const REMEMBERED: usize = 1024;
/// When a caller that was refused may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How many tasks wait, as far as this node knows.
#[derive(Default)]
pub(super) struct Backlog {
    counts: Mutex<HashMap<Whose, Count>>,
    /// Held while one counts for all.
    counting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Context(ContextId),
    Tenant(String),
}

struct Count {
    waiting: u64,
    at: Instant,
}

impl Backlog {
    /// Whether one more may wait, which counts from then on; `None` if that has to be counted first.
    fn add(&self, whose: &Whose, most: u64) -> Option<bool> {
        let mut counts = self.counts();
        let count = counts.get_mut(whose)?;
        let is_full = count.waiting >= most;
        let believed = if is_full { FULL_BELIEVED * most.try_into().unwrap_or(u32::MAX) } else { BELIEVED };
        if count.at.elapsed() > believed.min(BELIEVED) {
            return None;
        }
        count.waiting += u64::from(!is_full);
        Some(!is_full)
    }

    fn counted(&self, whose: Whose, waiting: u64) {
        let mut counts = self.counts();
        if counts.len() >= REMEMBERED {
            counts.retain(|_, count| count.at.elapsed() <= BELIEVED);
        }
        counts.insert(whose, Count { waiting, at: Instant::now() });
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Whose, Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Whether a new call runs at once, by a free slot that nobody waits for, or waits.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] if it would wait, and too many do.
    pub(super) async fn slot_or_queue(&self, caller: &Caller, tool: &Tool) -> Result<Option<Slot>, Refusal> {
        let rules = &self.rules.queue;
        let tenant = caller.auth.tenant().and_then(|name| rules.tenants.get(name)?.slots);
        // Whether it may run is seen when it is claimed.
        let is_limited = rules.slots.or(tenant).or(tool.slots).is_some();
        let slot = if is_limited { None } else { self.runner.take_slot_if_nobody_waits() };
        if slot.is_none() {
            self.may_wait(caller).await?;
        }
        Ok(slot)
    }

    async fn may_wait(&self, caller: &Caller) -> Result<(), Refusal> {
        let rules = &self.rules.queue;
        self.one_more("limits.queued", Whose::Context(caller.auth.id()), rules.queued).await?;
        let tenant = caller.auth.tenant().and_then(|name| Some((name, rules.tenants.get(name)?.queued?)));
        if let Some((name, most)) = tenant {
            self.one_more("tenants.queued", Whose::Tenant(name.to_owned()), most).await?;
        }
        Ok(())
    }

    async fn one_more(&self, limit: &'static str, whose: Whose, most: u64) -> Result<(), Refusal> {
        let mut may = self.backlog.add(&whose, most);
        if may.is_none() {
            let _counting = self.backlog.counting.lock().await;
            may = self.backlog.add(&whose, most);
            if may.is_none() {
                let waiting = self.count_waiting(&whose, most).await?;
                self.backlog.counted(whose.clone(), waiting);
                may = Some(waiting < most && self.backlog.add(&whose, most).unwrap_or(true));
            }
        }
        if may == Some(true) { Ok(()) } else { Err(Refusal::LimitReached { limit, most, retry_after: RETRY_AFTER }) }
    }

    async fn count_waiting(&self, whose: &Whose, most: u64) -> Result<u64, StoreError> {
        let store = self.store.system();
        match whose {
            Whose::Context(context) => store.waiting(*context, most).await,
            Whose::Tenant(name) => store.waiting_of_tenant(name, most).await,
        }
    }

    /// What a call's slot is counted for.
    pub(super) fn counted(&self, caller: &Caller, tool: Option<&Tool>) -> Counted {
        let tenant = caller.auth.tenant().filter(|name| self.rules.queue.tenants.contains_key(*name));
        let tool = tool.filter(|tool| tool.slots.is_some());
        Counted {
            tenant: tenant.unwrap_or_default().to_owned(),
            tool: tool.map(|tool| tool.exposed.clone()).unwrap_or_default(),
        }
    }

    pub(super) fn slot_limits(&self) -> SlotLimits {
        let rules = &self.rules.queue;
        let of_tenant = |(name, rules): (&String, &TenantRules)| Some((name.clone(), rules.slots?));
        let tools = self.catalogue.tools();
        SlotLimits {
            context: rules.slots,
            tenants: rules.tenants.iter().filter_map(of_tenant).collect(),
            tools: tools.iter().filter_map(|tool| Some((tool.exposed.clone(), tool.slots?))).collect(),
        }
    }
}
