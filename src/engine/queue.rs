//! Who may have a slot, and who may wait for one.
//!
//! Slots are counted where they are given, in the database, when a node claims: what is limited is never run at once where it
//! is made. How many wait is counted now and then, and in between each node adds what it has made itself: a limit may be overrun
//! by what the other nodes make meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// How long a creation waits for a count. While the database is away its own commit says so, and says it sooner.
const COUNTED_WITHIN: Duration = Duration::from_secs(1);

/// How many tasks wait, as far as this node knows.
#[derive(Default)]
pub(super) struct Backlog {
    known: Mutex<HashMap<Whose, Known>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Context(ContextId),
    Tenant(String),
}

#[derive(Default)]
struct Known {
    count: Option<Count>,
    /// Held while one counts for all who want the same count.
    counting: Arc<tokio::sync::Mutex<()>>,
}

struct Count {
    waiting: u64,
    at: Instant,
    /// Whether it could not be counted again since.
    is_old: bool,
}

/// Whether one more may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Left,
    Full,
    /// It was full once, and nobody knows what it is now.
    Unknown,
}

impl Known {
    fn is_needed(&self) -> bool {
        Arc::strong_count(&self.counting) > 1 || self.count.as_ref().is_some_and(|count| count.at.elapsed() <= BELIEVED)
    }
}

impl Backlog {
    /// Whether one more may wait, which counts from then on; `None` if that has to be counted first.
    fn add(&self, whose: &Whose, most: u64) -> Option<Room> {
        let mut known = self.known();
        let count = known.get_mut(whose)?.count.as_mut()?;
        let is_full = count.waiting >= most;
        let full_believed = FULL_BELIEVED * most.try_into().unwrap_or(u32::MAX);
        let believed = if is_full && !count.is_old { full_believed.min(BELIEVED) } else { BELIEVED };
        if count.at.elapsed() > believed {
            return None;
        }
        Some(match (is_full, count.is_old) {
            (false, _) => {
                count.waiting += 1;
                Room::Left
            }
            (true, false) => Room::Full,
            (true, true) => Room::Unknown,
        })
    }

    /// To be held by who counts.
    fn counting(&self, whose: &Whose) -> Arc<tokio::sync::Mutex<()>> {
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.retain(|_, known| known.is_needed());
        }
        Arc::clone(&known.entry(whose.clone()).or_default().counting)
    }

    fn counted(&self, whose: &Whose, waiting: u64) {
        let count = Count { waiting, at: Instant::now(), is_old: false };
        self.known().entry(whose.clone()).or_default().count = Some(count);
    }

    /// There is no new count: the old one is believed once more, with what was made here since.
    fn not_counted(&self, whose: &Whose) {
        let mut known = self.known();
        let known = known.entry(whose.clone()).or_default();
        let waiting = known.count.as_ref().map_or(0, |count| count.waiting);
        known.count = Some(Count { waiting, at: Instant::now(), is_old: true });
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Whose, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
        let room = match self.backlog.add(&whose, most) {
            Some(room) => room,
            None => self.count_for_all(&whose, most).await?,
        };
        match room {
            Room::Left => Ok(()),
            Room::Full => Err(Refusal::LimitReached { limit, most, retry_after: RETRY_AFTER }),
            Room::Unknown => Err(StoreError::Unavailable("the tasks that wait cannot be counted".into()).into()),
        }
    }

    /// One counts, and all others that want this count wait for its end, whatever that is: while the database is away each
    /// would else wait in vain after the other.
    async fn count_for_all(&self, whose: &Whose, most: u64) -> Result<Room, StoreError> {
        let counting = self.backlog.counting(whose);
        let _counting = counting.lock().await;
        if let Some(room) = self.backlog.add(whose, most) {
            return Ok(room);
        }
        match tokio::time::timeout(COUNTED_WITHIN, self.count_waiting(whose, most)).await {
            Ok(Ok(waiting)) => {
                self.backlog.counted(whose, waiting);
                if waiting >= most {
                    return Ok(Room::Full);
                }
            }
            Ok(Err(StoreError::Unavailable(_))) | Err(_) => self.backlog.not_counted(whose),
            Ok(Err(error)) => return Err(error),
        }
        Ok(self.backlog.add(whose, most).unwrap_or(Room::Left))
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
