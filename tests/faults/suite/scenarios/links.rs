//! Links to the database that break, fall silent or are slow, each node's on its own.

use std::time::{Duration, Instant};

use crate::faults::suite::checker::Allowed;
use crate::faults::suite::fleet::FleetPlan;
use crate::faults::suite::stage::{Stage, lasting, play};
use crate::support::database::{Backend, TestDatabase};
use crate::support::pgproxy::PgProxy;

/// A link that fell silent is given up by then (KEEP-17), and on a busy machine a new one is there soon after.
const NOTICED: Duration = Duration::from_secs(15);
/// Nothing that runs is lost with a link.
const OF_LINKS: Allowed = Allowed { hiccups: true, lost_runs: false };

/// Three nodes, each behind a proxy of its own.
async fn play_behind_proxies(name: &str, fault: impl AsyncFnOnce(&mut Stage, &[PgProxy])) {
    let database = TestDatabase::new(Backend::Postgres).await;
    let mut plan = FleetPlan::of_three(&database.url);
    let mut proxies = Vec::new();
    for url in &mut plan.urls {
        let (proxy, through) = PgProxy::before_url(url).await;
        proxies.push(proxy);
        *url = through;
    }
    play(name, plan, OF_LINKS, async |stage| fault(stage, &proxies).await).await;
}

// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_resets() {
    play_behind_proxies("link resets", async |stage, proxies| {
        let mut resets = 0;
        lasting(stage, async |stage| {
            proxies[stage.any_node()].reset_links();
            resets += 1;
            let pause = stage.moment(200, 600);
            stage.pass(pause).await;
        })
        .await;
        stage.note(format!("{resets} resets"));
    })
    .await;
}

/// No link is closed, and nothing passes on them any more: as a firewall that forgets connections does it.
// req: KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_links() {
    play_behind_proxies("half-open links", async |stage, proxies| {
        proxies[stage.any_node()].blackhole_links();
    })
    .await;
}

/// The same of the links alone on which nodes hear of each other.
// req: KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_listener() {
    play_behind_proxies("half-open listener", async |stage, proxies| {
        let before: Vec<usize> = proxies.iter().map(PgProxy::listening).collect();
        assert!(before.iter().all(|&listening| listening > 0), "each node listens: {before:?}");
        let silent = Instant::now();
        for proxy in proxies {
            proxy.blackhole_listeners();
        }
        let listen_again = async || proxies.iter().zip(&before).all(|(proxy, &before)| proxy.listening() > before);
        stage.until("every node to listen on another link", listen_again).await;
        let took = silent.elapsed();
        assert!(took < NOTICED, "noticed after {took:?}");
        stage.note(format!("noticed by all nodes within {:.1} s", took.as_secs_f64()));
        stage.pass(stage.plan.third().saturating_sub(took)).await;
    })
    .await;
}

// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_link() {
    play_behind_proxies("slow link", async |stage, proxies| {
        let slow = &proxies[stage.any_node()];
        slow.delay(Duration::from_millis(40));
        stage.pass(stage.plan.third()).await;
        slow.delay(Duration::ZERO);
    })
    .await;
}
