//! The service, and its upstreams, killed at random moments under load.
//!
//! What clients were told must hold in the end: no task is lost, no end changes, nothing is stuck, and work that must not
//! be repeated ran once at most. `scripts/crash` runs the long form with the release binary.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use self::load::{Load, Work};
use self::verdict::Verdict;
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::processes::Process;
use crate::support::rng::Rng;
use crate::support::server::{PATIENCE, Server, lasting_address};

mod load;
mod verdict;

/// All recovery together: the judge's four heartbeats, two repetitions and their pauses.
const RECOVERY: Duration = Duration::from_secs(90);

contract! {
    nothing_told_is_lost_when_the_service_is_killed,
    calls_end_and_the_next_one_works_when_upstreams_are_killed,
}

/// How much is done. The seed decides the moments of the kills and what the clients do, not how they interleave.
struct Plan {
    seed: u64,
    kills: usize,
    /// Between two rounds the dead are judged, and the service that recovers their tasks is killed at it.
    rounds: usize,
}

impl Plan {
    fn read(test: &str) -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
        let kills = number("TASKHOLD_TEST_CRASH_KILLS").map_or(50, |kills| usize::try_from(kills).unwrap());
        let rounds = number("TASKHOLD_TEST_CRASH_ROUNDS").map_or(1, |rounds| usize::try_from(rounds).unwrap());
        let any = || taskhold::domain::ids::TaskId::new().as_uuid().as_u64_pair().0;
        let seed = number("TASKHOLD_TEST_CRASH_SEED").unwrap_or_else(any);
        eprintln!("{test}: TASKHOLD_TEST_CRASH_SEED={seed}");
        Self { seed, kills, rounds }
    }
}

// req: LIFE-04, LIFE-06, KEEP-06, KEEP-07, HTTP-07
async fn nothing_told_is_lost_when_the_service_is_killed(database: TestDatabase) {
    let plan = Plan::read("service");
    let mut rng = Rng::new(plan.seed);
    let folder = tempfile::tempdir().unwrap();
    let address = lasting_address();
    let mut families = HashSet::new();
    let mut server = Server::start_at(&address, &database.url).await;
    let load = Load::start(&server.url, &database.url, folder.path(), &mut rng).await;
    let mut kills = 0;
    for round in 1..=plan.rounds {
        for _ in 0..plan.kills {
            under_load(&mut rng).await;
            server = kill_and_restart(server, &mut families, &address, &database).await;
            kills += 1;
        }
        if round < plan.rounds {
            silence_the_dead(&database).await;
            until("the dead to be judged", || async { unjudged(&database).await == 1 }).await;
            tokio::time::sleep(Duration::from_millis(rng.below(4_000))).await;
            server = kill_and_restart(server, &mut families, &address, &database).await;
            kills += 1;
        }
    }
    let books = load.stop().await;
    silence_the_dead(&database).await;
    until("every task to end", || async { live(&database).await == 0 }).await;
    until("every process of the dead to end", || async { !families.iter().any(Process::is_running) }).await;
    let verdict = Verdict::reach(books, &database).await;
    eprintln!("service, {:?}: {kills} kills: {verdict}", database.backend);
    verdict.assert_clean();
    no_panic(&server.kill().await);
}

// req: EXEC-14, EXEC-23, KEEP-07
async fn calls_end_and_the_next_one_works_when_upstreams_are_killed(database: TestDatabase) {
    let plan = Plan::read("upstreams");
    let mut rng = Rng::new(plan.seed);
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url).await;
    let load = Load::start(&server.url, &database.url, folder.path(), &mut rng).await;
    let (mut kills, mut refused) = (0, 0);
    while kills < plan.kills * plan.rounds {
        under_load(&mut rng).await;
        // Supervisors are children of the service, the servers themselves are theirs.
        let family = Process::family_of(server.pid());
        let Some(victim) = family.get(usize::try_from(rng.below(family.len().max(1) as u64)).unwrap()) else {
            continue;
        };
        let supervisor = victim.parent().filter(|parent| !parent.is(server.pid())).unwrap_or(*victim);
        if !victim.kill() {
            continue;
        }
        kills += 1;
        until("the killed to be gone", || async { !supervisor.is_there() }).await;
        for client in &load.one_of_each_context {
            refused += calls_until_one_works(client, &Work::Echo(kills as u64)).await;
        }
    }
    let books = load.stop().await;
    until("every task to end", || async { live(&database).await == 0 }).await;
    let verdict = Verdict::reach(books, &database).await;
    eprintln!("upstreams, {:?}: {kills} kills, {refused} first calls after them failed: {verdict}", database.backend);
    verdict.assert_clean();
    let family = Process::family_of(server.pid());
    no_panic(&server.kill().await);
    until("every process of the dead to end", || async { !family.iter().any(Process::is_running) }).await;
}

/// The time until a kill, which is the point of it: no signal stands for it.
async fn under_load(rng: &mut Rng) {
    tokio::time::sleep(Duration::from_millis(50 + rng.below(350))).await;
}

async fn kill_and_restart(
    server: Server,
    families: &mut HashSet<Process>,
    address: &str,
    database: &TestDatabase,
) -> Server {
    families.extend(Process::family_of(server.pid()));
    no_panic(&server.kill().await);
    Server::start_at(address, &database.url).await
}

fn no_panic(log: &[String]) {
    assert!(!log.iter().any(|line| line.contains("panicked")), "{}", log.join("\n"));
}

/// Calls plainly until the call gives what it should; answers how often it did not, and said so.
async fn calls_until_one_works(client: &Client, work: &Work) -> usize {
    let mut refused = 0;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = client.request("tools/call", work.params(false)).await.json();
        if work.gives(&answer) {
            return refused;
        }
        refused += 1;
        let reason = answer["error"]["data"]["reason"].as_str();
        assert!(matches!(reason, Some("outcome_unknown" | "upstream_unavailable")), "{answer}");
        assert!(Instant::now() < deadline, "no call works any more: {answer}");
    }
}

/// As if every node but the newest had been silent long enough to be judged, so that nothing waits for that here.
async fn silence_the_dead(database: &TestDatabase) {
    database.silence_nodes_but_the_newest(Duration::from_secs(30)).await;
}

async fn unjudged(database: &TestDatabase) -> i64 {
    database.number("SELECT COUNT(*) FROM nodes WHERE dead = 0").await
}

async fn live(database: &TestDatabase) -> i64 {
    database.number("SELECT COUNT(*) FROM task_live").await
}

async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let deadline = Instant::now() + RECOVERY;
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
