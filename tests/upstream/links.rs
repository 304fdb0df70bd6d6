//! When call links start, wait, and end.

use std::path::Path;
use std::time::Duration;

use taskhold::domain::clock::{ManualClock, Timestamp};
use taskhold::domain::ids::ContextId;
use taskhold::executor::Attempt;
use taskhold::executor::upstream::UpstreamConfig;

use super::harness::{BINARY, World, is_running, script, settings, text, until};

/// The demo server, which writes its process id to `pids` first; the first one is the catalogue's.
fn recorded(pids: &Path) -> UpstreamConfig {
    script("u", &format!("echo $$ >> {}; exec {BINARY} demo-server --test-tools", pids.display()))
}

fn read(pids: &Path) -> Vec<i32> {
    std::fs::read_to_string(pids).unwrap().lines().map(|pid| pid.parse().unwrap()).collect()
}

#[tokio::test]
async fn an_idle_link_ends_after_a_minute_and_a_busy_one_does_not() {
    let pids = tempfile::NamedTempFile::new().unwrap();
    let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
    let world = World::at(clock.clone(), settings(), vec![recorded(pids.path())]).await;
    let (idle, busy) = (ContextId::new(), ContextId::new());
    let running = world.call(busy, "sleep", r#"{"ms":8000}"#);
    until("the busy one to start", || read(pids.path()).len() == 2).await;
    assert_eq!(text(&world.answer(idle, "sleep", r#"{"ms":1}"#).await), "slept 1 ms");
    assert_eq!(text(&world.answer(idle, "sleep", r#"{"ms":2}"#).await), "slept 2 ms");
    let started = read(pids.path());
    assert_eq!(started.len(), 3, "the second call used the same process");
    clock.advance(Duration::from_secs(61));
    until("the idle one to end", || !is_running(started[2])).await;
    assert_eq!(text(&running.end().await), "slept 8000 ms");
    assert_eq!(text(&world.answer(idle, "sleep", r#"{"ms":3}"#).await), "slept 3 ms");
    assert_eq!(read(pids.path()).len(), 4);
    world.upstreams.stop().await;
    assert!(read(pids.path()).into_iter().all(|pid| !is_running(pid)));
}

#[tokio::test]
async fn the_longest_idle_link_makes_room() {
    let pids = tempfile::NamedTempFile::new().unwrap();
    let world = World::new(vec![UpstreamConfig { max_links: 2, ..recorded(pids.path()) }]).await;
    let contexts = [ContextId::new(), ContextId::new(), ContextId::new()];
    for context in contexts {
        assert_eq!(text(&world.answer(context, "sleep", r#"{"ms":1}"#).await), "slept 1 ms");
    }
    let started = read(pids.path());
    assert_eq!(started.len(), 4);
    until("the first to end", || !is_running(started[1])).await;
    assert!(is_running(started[2]) && is_running(started[3]));
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_start_that_keeps_failing_is_held_back_and_says_why() {
    let starts = tempfile::NamedTempFile::new().unwrap();
    // Only the catalogue's link comes up.
    let failing = format!(
        "echo $$ >> {0}; [ $(wc -l < {0}) = 1 ] || exit 7; exec {BINARY} demo-server --test-tools",
        starts.path().display()
    );
    let world = World::new(vec![script("u", &failing)]).await;
    let context = ContextId::new();
    let mut held_back = false;
    // The waits between are 1, 2 and 4 s; the next one is longer than a call may wait.
    for _ in 0..8 {
        let Attempt::NotDispatched { detail } = world.answer(context, "echo", "{}").await else {
            panic!("nothing was sent")
        };
        assert!(detail.contains("exit code 7"), "{detail}");
        held_back = detail.contains("held back");
        if held_back {
            break;
        }
    }
    assert!(held_back);
    let count = read(starts.path()).len();
    assert!(matches!(world.answer(context, "echo", "{}").await, Attempt::NotDispatched { .. }));
    assert_eq!(read(starts.path()).len(), count, "not started again so soon");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_call_of_a_cold_upstream_can_be_stopped_and_others_get_its_link() {
    let gate = tempfile::tempdir().unwrap();
    // Only the catalogue's link comes up before the gate is opened.
    let cold = format!(
        "cd {}; if mkdir first 2>/dev/null; then :; else echo $$ > cold; until [ -e open ]; do sleep 0.05; done; fi
         exec {BINARY} demo-server --test-tools",
        gate.path().display()
    );
    let world = World::new(vec![script("u", &cold)]).await;
    let context = ContextId::new();
    let stopped = world.call(context, "sleep", r#"{"ms":1}"#);
    let patient = world.call(context, "sleep", r#"{"ms":2}"#);
    let pid = super::harness::pid_in(&gate.path().join("cold")).await;
    stopped.stop.cancel();
    assert_eq!(stopped.end().await, Attempt::Stopped);
    std::fs::write(gate.path().join("open"), "").unwrap();
    assert_eq!(text(&patient.end().await), "slept 2 ms");
    assert_eq!(super::harness::pid_in(&gate.path().join("cold")).await, pid, "one start for both");
    world.upstreams.stop().await;
}
