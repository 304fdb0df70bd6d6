//! Whose turn it is. Slots are shared fairly between authorization contexts (AUTH-15), within limits.
//!
//! A waiting task stands in a lane: its context's, or one beside it for a tool whose slots are limited. A lane goes oldest
//! first. A free slot goes to the context that has the fewest, and of those that have equally few to the one whose oldest task
//! has waited the longest; a context's lanes take turns.

use std::collections::BTreeMap;
use std::fmt;

use super::clock::Timestamp;
use super::ids::{ContextId, TaskId};

/// What a task's slot is counted for besides its context; empty where nothing limits that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Counted {
    pub tenant: String,
    /// By its exposed name.
    pub tool: String,
}

/// The most slots that may be held at once, on all nodes together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotLimits {
    /// Of each context.
    pub context: Option<u64>,
    pub tenants: BTreeMap<String, u64>,
    pub tools: BTreeMap<String, u64>,
}

/// A limit that holds a task back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotLimit {
    Context(u64),
    Tenant(u64),
    Tool(u64),
}

impl fmt::Display for SlotLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, most) = match self {
            Self::Context(most) => ("limits.slots", most),
            Self::Tenant(most) => ("tenants.slots", most),
            Self::Tool(most) => ("upstreams.tools.slots", most),
        };
        write!(f, "the limit {name} of {most} is reached")
    }
}

/// Tasks that wait, behind the first of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    pub context: ContextId,
    /// That of its first task.
    pub counted: Counted,
    /// When its first task began to wait.
    pub since: Timestamp,
    pub first: TaskId,
}

/// Slots that are held, on all nodes together. Who is not named holds none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    pub contexts: BTreeMap<ContextId, u64>,
    pub tenants: BTreeMap<String, u64>,
    pub tools: BTreeMap<String, u64>,
}

impl SlotLimits {
    /// Whether these lanes can be judged without knowing who holds how many slots.
    #[must_use]
    pub fn are_plain(&self, lanes: &[Lane]) -> bool {
        let mut contexts = lanes.iter().map(|lane| lane.context);
        let first = contexts.next();
        contexts.all(|context| Some(context) == first) && !lanes.iter().any(|lane| self.apply_to(&lane.counted))
    }

    /// Whether any of these limits may hold such a task back.
    #[must_use]
    pub fn apply_to(&self, counted: &Counted) -> bool {
        self.context.is_some() || self.tenants.contains_key(&counted.tenant) || self.tools.contains_key(&counted.tool)
    }

    #[must_use]
    pub fn hold_anything_back(&self) -> bool {
        self.context.is_some() || !self.tenants.is_empty() || !self.tools.is_empty()
    }

    /// The limit that holds a lane back while so many slots are held.
    #[must_use]
    pub fn reached(&self, lane: &Lane, held: &Held) -> Option<SlotLimit> {
        let Counted { tenant, tool } = &lane.counted;
        let over = |most: Option<u64>, held: Option<&u64>| most.filter(|&most| held.copied().unwrap_or(0) >= most);
        let by_tool = over(self.tools.get(tool).copied(), held.tools.get(tool)).map(SlotLimit::Tool);
        let by_context = || over(self.context, held.contexts.get(&lane.context)).map(SlotLimit::Context);
        let by_tenant = || over(self.tenants.get(tenant).copied(), held.tenants.get(tenant)).map(SlotLimit::Tenant);
        by_tool.or_else(by_context).or_else(by_tenant)
    }
}

/// Which lanes the next slots go to, one after the other: the places of the lanes in `lanes`. `has` says how many tasks a lane
/// has, as far as that is known.
#[must_use]
pub fn turns(
    lanes: &[Lane],
    mut held: Held,
    limits: &SlotLimits,
    has: impl Fn(usize) -> Option<usize>,
    slots: usize,
) -> Vec<usize> {
    let mut oldest: BTreeMap<ContextId, (Timestamp, TaskId)> = BTreeMap::new();
    for lane in lanes {
        let head = (lane.since, lane.first);
        oldest.entry(lane.context).and_modify(|first| *first = head.min(*first)).or_insert(head);
    }
    let mut taken = vec![0; lanes.len()];
    let mut turns = Vec::new();
    while turns.len() < slots {
        let open = (0..lanes.len())
            .filter(|&at| has(at).is_none_or(|count| taken[at] < count) && limits.reached(&lanes[at], &held).is_none());
        let next = open.min_by_key(|&at| {
            let lane = &lanes[at];
            let has = held.contexts.get(&lane.context).copied().unwrap_or(0);
            (has, oldest.get(&lane.context), taken[at], lane.since, lane.first)
        });
        let Some(next) = next else { break };
        let lane = &lanes[next];
        *held.contexts.entry(lane.context).or_default() += 1;
        *held.tenants.entry(lane.counted.tenant.clone()).or_default() += 1;
        *held.tools.entry(lane.counted.tool.clone()).or_default() += 1;
        taken[next] += 1;
        turns.push(next);
    }
    turns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lane(context: ContextId, tool: &str, since: i64) -> Lane {
        let counted = Counted { tenant: String::new(), tool: tool.to_owned() };
        Lane { context, counted, since: Timestamp::from_micros(since), first: TaskId::new() }
    }

    fn holding(context: ContextId, slots: u64) -> Held {
        Held { contexts: BTreeMap::from([(context, slots)]), ..Held::default() }
    }

    // req: AUTH-15
    #[test]
    fn a_slot_goes_to_who_has_least_and_then_to_who_waits_longest() {
        let (a, b, c) = (ContextId::new(), ContextId::new(), ContextId::new());
        let lanes = [lane(a, "", 1), lane(b, "", 3), lane(c, "", 2)];
        let next = |held, slots| turns(&lanes, held, &SlotLimits::default(), |_| None, slots);
        assert_eq!(next(Held::default(), 4), [0, 2, 1, 0]);
        assert_eq!(next(holding(a, 2), 6), [2, 1, 2, 1, 0, 2], "whoever waits the longest");
        assert_eq!(turns(&lanes, Held::default(), &SlotLimits::default(), |_| Some(1), 9), [0, 2, 1]);
    }

    #[test]
    fn what_a_limit_holds_back_lets_others_pass() {
        let (a, b) = (ContextId::new(), ContextId::new());
        let lanes = [lane(a, "slow", 1), lane(b, "slow", 2), lane(a, "", 3)];
        let limits = SlotLimits { tools: BTreeMap::from([("slow".to_owned(), 2)]), ..SlotLimits::default() };
        assert_eq!(turns(&lanes, Held::default(), &limits, |_| None, 5), [0, 1, 2, 2, 2]);
        let full = Held { tools: BTreeMap::from([("slow".to_owned(), 2)]), ..Held::default() };
        assert_eq!(turns(&lanes, full.clone(), &limits, |_| None, 2), [2, 2]);
        assert_eq!(limits.reached(&lanes[1], &full), Some(SlotLimit::Tool(2)));
        assert_eq!(limits.reached(&lanes[2], &full), None);
        let limits = SlotLimits { context: Some(1), ..SlotLimits::default() };
        assert_eq!(turns(&lanes, Held::default(), &limits, |_| None, 5), [0, 1]);
        let limits = SlotLimits { tenants: BTreeMap::from([(String::new(), 3)]), ..SlotLimits::default() };
        assert_eq!(turns(&lanes, Held::default(), &limits, |_| None, 5).len(), 3);
        assert_eq!(SlotLimit::Context(5).to_string(), "the limit limits.slots of 5 is reached");
    }

    #[test]
    fn one_context_without_limits_needs_no_counts() {
        let (a, b) = (ContextId::new(), ContextId::new());
        let limits = SlotLimits { tools: BTreeMap::from([("slow".to_owned(), 2)]), ..SlotLimits::default() };
        assert!(limits.are_plain(&[]) && limits.are_plain(&[lane(a, "", 1), lane(a, "other", 1)]));
        assert!(!limits.are_plain(&[lane(a, "slow", 1)]) && !limits.are_plain(&[lane(a, "", 1), lane(b, "", 1)]));
        assert!(!SlotLimits { context: Some(1), ..limits }.are_plain(&[lane(a, "", 1)]));
    }

    proptest! {
        // req: AUTH-15
        #[test]
        fn nobody_gets_a_second_slot_while_another_that_waits_has_fewer(
            sizes in prop::collection::vec((0_u64..6, 1_usize..20), 1..8), slots in 0_usize..64
        ) {
            let lanes: Vec<_> = sizes.iter().map(|_| lane(ContextId::new(), "", 0)).collect();
            let before: Vec<u64> = sizes.iter().map(|(held, _)| *held).collect();
            let held = Held { contexts: lanes.iter().map(|lane| lane.context).zip(before.clone()).collect(), ..Held::default() };
            let got = turns(&lanes, held, &SlotLimits::default(), |at| Some(sizes[at].1), slots);
            prop_assert_eq!(got.len(), slots.min(sizes.iter().map(|(_, has)| has).sum()));
            let mut holds = before;
            let mut left: Vec<_> = sizes.iter().map(|(_, has)| *has).collect();
            for at in got {
                let least = (0..lanes.len()).filter(|&other| left[other] > 0).map(|other| holds[other]).min();
                prop_assert_eq!(Some(holds[at]), least);
                holds[at] += 1;
                left[at] -= 1;
            }
        }
    }
}
