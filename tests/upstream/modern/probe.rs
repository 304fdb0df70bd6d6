//! How the era of an upstream is found out (EXEC-19).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use taskhold::domain::ids::ContextId;
use taskhold::executor::upstream::{Protocol, Settings, UpstreamConfig};

use super::peers::{discovered, discovered_as, refused};
use crate::support::remote::{Remote, Seen, scenario, status, whole};
use crate::upstream::harness::{PATIENCE, World, settings, text};

/// A server on standard streams that answers what a legacy one does, and the probe as its text says; it counts its starts.
const LEGACY: &str = r#"echo start >> "$DIR/starts"
say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
while IFS= read -r line; do
  printf '%s\n' "$line" >> "$DIR/read"
  id=$(printf '%s\n' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"server/discover"'*) PROBED ;;
    *'"method":"initialize"'*) INITIALIZE ;;
    *'"method":"tools/list"'*) say '"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*) say '"result":{"content":[{"type":"text","text":"fine"}]}' ;;
  esac
done"#;
const INITIALIZED: &str = r#"say '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}'"#;
const DISCOVERED: &str = r#"say '"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}'"#;

fn local(dir: &std::path::Path, probed: &str, initialize: &str) -> UpstreamConfig {
    let script = LEGACY.replace("PROBED", probed).replace("INITIALIZE", initialize);
    UpstreamConfig {
        env: vec![("DIR".to_owned(), dir.display().to_string())],
        shared: true,
        ..UpstreamConfig::new("u", vec!["sh".to_owned(), "-c".to_owned(), script])
    }
}

fn hasty() -> Settings {
    Settings { probe_timeout: Duration::from_millis(300), ..settings() }
}

/// The methods that it has read, and how often it was started.
fn history(dir: &std::path::Path) -> (Vec<String>, usize) {
    let read = std::fs::read_to_string(dir.join("read")).unwrap_or_default();
    let methods = read.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let methods = methods.map(|message| message["method"].as_str().unwrap_or("response").to_owned()).collect();
    (methods, std::fs::read_to_string(dir.join("starts")).unwrap_or_default().lines().count())
}

async fn is_called(world: &World) {
    assert_eq!(text(&world.answer(ContextId::new(), "t", "{}").await), "fine");
    world.upstreams.stop().await;
}

// req: EXEC-19 (a server on standard streams)
#[tokio::test]
async fn a_process_that_does_not_know_the_probe_is_initialized() {
    let patient = Settings { probe_timeout: PATIENCE, ..settings() };
    for (probed, starts) in [
        (r#"say '"error":{"code":-32601,"message":"method not found"}'"#, 2),
        (r#"say '"error":{"code":-32000,"message":"not initialized"}'"#, 2),
        (r#"say '"result":{}'"#, 2),
        // Silence.
        (":", 2),
        // It dies of it, and is not asked again.
        ("exit 9", 3),
    ] {
        let dir = tempfile::tempdir().unwrap();
        // On a busy machine even an answer that comes at once takes its time.
        let settings = if probed == ":" { hasty() } else { patient.clone() };
        let world = World::with(settings, vec![local(dir.path(), probed, INITIALIZED)]).await;
        is_called(&world).await;
        let (methods, started) = history(dir.path());
        let count = |name: &str| methods.iter().filter(|method| *method == name).count();
        assert_eq!((count("server/discover"), count("initialize"), started), (1, 2, starts), "{probed}: {methods:?}");
        assert_eq!(methods[0], "server/discover");
        assert_eq!(count("tools/call"), 1);
    }
}

// req: EXEC-19
#[tokio::test]
async fn a_process_that_knows_the_probe_is_not_initialized() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(vec![local(dir.path(), DISCOVERED, "exit 9")]).await;
    is_called(&world).await;
    let (methods, started) = history(dir.path());
    assert!(!methods.contains(&"initialize".to_owned()) && started == 2, "{methods:?}");
    // One that was too slow for the probe and knows no other way is found all the same.
    let dir = tempfile::tempdir().unwrap();
    let slow = format!("sleep 1; {DISCOVERED}");
    let no_session = r#"say '"error":{"code":-32601,"message":"method not found"}'"#;
    let world = World::with(hasty(), vec![local(dir.path(), &slow, no_session)]).await;
    is_called(&world).await;
}

#[tokio::test]
async fn what_is_configured_is_not_asked() {
    let dir = tempfile::tempdir().unwrap();
    let config = UpstreamConfig { protocol: Protocol::Legacy, ..local(dir.path(), "exit 9", INITIALIZED) };
    is_called(&World::new(vec![config]).await).await;
    let dir = tempfile::tempdir().unwrap();
    let refuses = r#"say '"error":{"code":-32601,"message":"method not found"}'"#;
    let config = UpstreamConfig { protocol: Protocol::Modern, ..local(dir.path(), refuses, INITIALIZED) };
    let world = World::new(vec![config]).await;
    let problem = world.upstreams.status().remove(0).1.problem.unwrap();
    assert!(problem.contains("server/discover") && problem.contains("2026-07-28"), "{problem}");
    world.upstreams.stop().await;
    assert!(!history(dir.path()).0.contains(&"initialize".to_owned()));
}

// req: EXEC-19 (a server by URL)
#[tokio::test]
async fn a_server_by_url_is_asked_by_a_modern_request() {
    type Says = fn(&Seen) -> axum::response::Response;
    let cases: [(Says, bool); 8] = [
        (|seen| discovered(seen), true),
        (|seen| refused(seen, 200, &json!({ "code": -32601, "message": "no" })), false),
        (|seen| refused(seen, 404, &json!({ "code": -32601, "message": "no" })), false),
        (|_| status(400, "Bad Request: Missing session ID"), false),
        (|_| status(405, ""), false),
        (|_| status(500, "oops"), false),
        (|seen| whole(&seen.response(&json!({ "tools": [] }))), false),
        (|seen| discovered_as(seen, &json!(["2027-01-01", "2025-11-25"])), false),
    ];
    for (number, (answer, is_modern)) in cases.into_iter().enumerate() {
        let remote =
            Remote::start(scenario(
                move |seen| async move { (seen.rpc() == "server/discover").then(|| answer(&seen)) },
            ))
            .await;
        let world = World::new(vec![UpstreamConfig::at("u", &remote.url)]).await;
        is_called(&world).await;
        assert_eq!(remote.messages("initialize").is_empty(), is_modern, "case {number}");
        let seen = remote.seen();
        assert_eq!(seen[0].rpc(), "server/discover");
        assert_eq!(seen[0].header("mcp-protocol-version"), Some("2026-07-28"));
        assert_eq!(seen[0].header("mcp-method"), Some("server/discover"));
        for opening in remote.messages("initialize") {
            assert_eq!((opening.header("mcp-protocol-version"), opening.header("mcp-method")), (None, None));
        }
    }
}

#[tokio::test]
async fn of_a_server_that_answers_nothing_all_is_named_that_it_was_asked() {
    // Nobody listens there, and nobody else is given the port.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let url = format!("http://{}/mcp", socket.local_addr().unwrap());
    let world = World::new(vec![UpstreamConfig::at("u", &url)]).await;
    let problem = world.upstreams.status().remove(0).1.problem.unwrap();
    assert!(problem.contains("it did not answer server/discover or initialize: "), "{problem}");
    world.upstreams.stop().await;
}

// req: EXEC-19
#[tokio::test]
async fn a_server_of_that_era_which_does_not_speak_with_us_is_not_initialized() {
    for (error, named) in [
        (
            json!({ "code": -32022, "message": "no", "data": { "supported": ["2027-01-01"], "requested": "x" } }),
            "2027-01-01",
        ),
        (json!({ "code": -32020, "message": "bad header" }), "bad header"),
        (json!({ "code": -32021, "message": "lacking", "data": { "requiredCapabilities": { "x": {} } } }), "lacking"),
    ] {
        let remote = Remote::start(scenario(move |seen| {
            let error = error.clone();
            async move { Some(refused(&seen, 400, &error)) }
        }))
        .await;
        let world = World::new(vec![UpstreamConfig::at("u", &remote.url)]).await;
        let problem = world.upstreams.status().remove(0).1.problem.unwrap();
        assert!(problem.contains(named), "{problem}");
        world.upstreams.stop().await;
        assert!(remote.messages("initialize").is_empty());
    }
    // One that names a version of the other era is spoken to in that.
    let supported = json!({ "supported": ["2027-01-01", "2025-06-18"], "requested": "2026-07-28" });
    let remote = Remote::start(scenario(move |seen| {
        let error = json!({ "code": -32022, "message": "no", "data": supported });
        async move { (seen.rpc() == "server/discover").then(|| refused(&seen, 400, &error)) }
    }))
    .await;
    is_called(&World::new(vec![UpstreamConfig::at("u", &remote.url)]).await).await;
}

// req: EXEC-19
#[tokio::test]
async fn the_era_is_kept_and_asked_for_again_when_it_fails() {
    let is_modern = Arc::new(AtomicBool::new(false));
    let probes = Arc::new(AtomicUsize::new(0));
    let (now, count) = (Arc::clone(&is_modern), Arc::clone(&probes));
    let remote = Remote::start(scenario(move |seen| {
        let (is_modern, count) = (now.load(Ordering::SeqCst), Arc::clone(&count));
        async move {
            match seen.rpc() {
                "server/discover" => {
                    count.fetch_add(1, Ordering::SeqCst);
                    Some(if is_modern { discovered(&seen) } else { status(400, "no session") })
                }
                // A server of one era refuses what is of the other.
                "initialize" if is_modern => Some(status(400, "a header is missing")),
                "tools/call" if is_modern != seen.header("mcp-method").is_some() => {
                    Some(status(404, "no such session"))
                }
                _ => None,
            }
        }
    }))
    .await;
    let world = World::new(vec![UpstreamConfig::at("u", &remote.url)]).await;
    let context = ContextId::new();
    assert_eq!(text(&world.answer(context, "t", "{}").await), "fine");
    assert_eq!(probes.load(Ordering::SeqCst), 1, "the catalogue's link has found it out for all");
    for turn in [true, false, true] {
        is_modern.store(turn, Ordering::SeqCst);
        assert_eq!(text(&world.answer(context, "t", "{}").await), "fine", "a call goes out again in the other era");
    }
    world.upstreams.stop().await;
}
