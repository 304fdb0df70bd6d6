//! The course of every scenario: load, a fault under it, recovery, the end of every task, and the verdict.

use std::time::{Duration, Instant};

use super::checker::{Allowed, judge};
use super::clients::People;
use super::fleet::{Fleet, FleetPlan};
use super::history::Pages;
use super::report::{Row, Speed, Times};
use super::work::Kind;
use crate::support::rng::Rng;

/// All that was told must have ended by then, when nothing is broken any more: the judge's four heartbeats, three attempts
/// and their pauses, on a machine that is busy.
const SETTLED: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(6);

/// How long, and how much.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    seed: u64,
    /// The whole load; a third of it before the fault, a third during it where it lasts, a third after it.
    seconds: Duration,
    /// A few seconds, and nothing is asserted of the speed.
    pub is_short: bool,
    /// Creations a second.
    rate: usize,
}

impl Plan {
    fn read(name: &str) -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
        let seconds = number("TASKHOLD_TEST_FAULT_SECONDS").map(Duration::from_secs);
        let any = || taskhold::domain::ids::TaskId::new().as_uuid().as_u64_pair().0;
        let seed = number("TASKHOLD_TEST_FAULT_SEED").unwrap_or_else(any);
        eprintln!("{name}: TASKHOLD_TEST_FAULT_SEED={seed}");
        let rate = number("TASKHOLD_TEST_FAULT_RATE").unwrap_or(if seconds.is_some() { 80 } else { 30 });
        Self {
            seed,
            seconds: seconds.unwrap_or(SHORT),
            is_short: seconds.is_none(),
            rate: usize::try_from(rate).unwrap(),
        }
    }

    /// How long a fault lasts that lasts.
    pub fn third(&self) -> Duration {
        self.seconds / 3
    }
}

/// What a scenario's fault has in hand.
pub struct Stage {
    pub plan: Plan,
    pub fleet: Fleet,
    pub rng: Rng,
    pub people: People,
    /// What is said in the report beside the counts.
    pub notes: Vec<String>,
}

impl Stage {
    /// Time under load, which is the point of it: no signal stands for it.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// The number of some node.
    pub fn any_node(&mut self) -> usize {
        usize::try_from(self.rng.below(self.fleet.len() as u64)).unwrap()
    }

    /// Some milliseconds from `least` on.
    pub fn moment(&mut self, least: u64, spread: u64) -> Duration {
        Duration::from_millis(least + self.rng.below(spread))
    }

    /// Polls until it is so.
    pub async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        until(what, SETTLED, &mut is_so).await;
    }

    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }
}

/// Breaks something again and again, for a third of the time and at least once.
pub async fn lasting(stage: &mut Stage, mut again: impl AsyncFnMut(&mut Stage)) {
    let over = Instant::now() + stage.plan.third();
    loop {
        again(stage).await;
        if Instant::now() >= over {
            return;
        }
    }
}

/// Polls until it is so, for so long at most.
pub async fn until(what: &str, bound: Duration, is_so: &mut impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + bound;
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs a scenario, and fails if anything that clients were told did not hold.
pub async fn play(name: &str, plan: FleetPlan, allowed: Allowed, fault: impl AsyncFnOnce(&mut Stage)) {
    let (database, schedule) = (plan.database.clone(), Plan::read(name));
    let mut rng = Rng::new(schedule.seed);
    let fleet = Fleet::start(plan).await;
    let charges = fleet.folder.path().join("charges");
    std::fs::create_dir(&charges).unwrap();
    let people = People::gather(&fleet.balancer.url, &database, charges).await;
    let load = people.work(schedule.rate, &mut rng);
    let history = people.history.clone();
    let mut stage = Stage { plan: schedule, fleet, rng, people, notes: Vec::new() };
    let window = if schedule.is_short { Duration::from_secs(1) } else { Duration::from_secs(5) };
    stage.pass(window.min(Duration::from_secs(3))).await;
    let even = history.now();
    stage.pass(schedule.third()).await;
    let broken = history.now();
    fault(&mut stage).await;
    let whole = history.now();
    stage.pass(schedule.third()).await;
    let measure = || {
        let times = Times { even, broken, whole, stopped: history.now(), window };
        Speed::measure(&history.read(), times)
    };
    // A recovery may take most of that: its speed can be told after some windows more.
    while !schedule.is_short
        && !measure().is_told_after(history.now() - whole, window)
        && history.now() < whole + SETTLED
    {
        stage.pass(window).await;
    }
    let stopped = history.now();
    load.stop().await;
    stage.fleet.launch_missing().await;
    stage.people.settle(SETTLED).await;
    stage.people.look_at_all(&stage.fleet.urls()).await;
    let (pages, runs) = (history.read(), stage.people.runs());
    let verdict = judge(&pages, &runs, allowed);
    let speed = Speed::measure(&pages, Times { even, broken, whole, stopped, window });
    let notes = stage.notes.iter().map(|note| format!("; {note}")).collect();
    let row = Row { name, verdict: &verdict, speed, notes };
    eprintln!("{row}");
    row.enter();
    let (log, ended_well) = stage.fleet.end().await;
    let complaint = verdict.complaint();
    if !complaint.is_empty() || !ended_well {
        eprintln!("{}", log.join("\n"));
    }
    assert!(complaint.is_empty(), "{name}:\n{complaint}");
    assert!(ended_well, "{name}: a node did not end well");
    assert!(!log.iter().any(|line| line.contains("panicked")), "{name}: a node panicked");
    assert_enough(&pages);
    assert!(schedule.is_short || speed.recovered.is_some(), "{name}: did not recover: {speed:?}");
    assert!(schedule.is_short || speed.ratio() >= 0.8, "{name}: too slow after the fault: {speed:?}");
}

/// A scenario in which little happened shows nothing.
fn assert_enough(pages: &Pages) {
    let made = pages.made();
    let of = |is: fn(Kind) -> bool| made.values().filter(|work| is(pages.works[**work].kind)).count();
    assert!(of(|kind| matches!(kind, Kind::Charge(_))) >= 3, "too few calls that must not be repeated");
    assert!(of(|kind| kind == Kind::Ask) >= 1, "too few calls that ask");
    assert!(of(|kind| matches!(kind, Kind::Echo | Kind::Sleep(_))) >= 5, "too few calls");
}
