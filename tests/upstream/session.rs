//! How a session with a server on standard streams begins, goes on and ends. What is left of EXEC-17 is about HTTP.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taskhold::domain::ids::ContextId;
use taskhold::executor::Catalogue;
use taskhold::executor::upstream::UpstreamConfig;

use super::harness::{BINARY, World, is_running, pid_in, script, text, until};

/// A server that writes what it reads into `$DIR/read`, answers `initialize` after a while with `$VERSION`, then asks for
/// things as soon as it may.
const ASKING: &str = r#"
while IFS= read -r line; do
  printf '%s\n' "$line" >> "$DIR/read"
  id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) sleep 0.2; echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"'$VERSION'","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}' ;;
    *'"notifications/initialized"'*)
      echo 'on standard error, which means nothing' >&2
      echo '{"jsonrpc":"2.0","id":"p","method":"ping"}'
      echo '{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}'
      echo '{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}'
      echo '{"jsonrpc":"2.0","id":3,"method":"roots/list"}'
      echo '{"jsonrpc":"2.0","id":4,"method":"no/such/method"}' ;;
    *'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}}' ;;
  esac
done
"#;

fn asking(dir: &Path, version: &str) -> UpstreamConfig {
    let env = vec![("DIR".to_owned(), dir.display().to_string()), ("VERSION".to_owned(), version.to_owned())];
    UpstreamConfig { env, ..script("u", ASKING) }
}

fn read(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("read")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[tokio::test]
async fn a_session_is_initialized_before_anything_else_and_a_link_without_calls_serves_ping_only() {
    for version in ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"] {
        let dir = tempfile::tempdir().unwrap();
        let world = World::new(vec![asking(dir.path(), version)]).await;
        assert_eq!(world.tool_names(), ["t"], "{version}");
        until("all answers", || read(dir.path()).iter().filter(|line| line.get("method").is_none()).count() == 5).await;
        let lines = read(dir.path());
        let methods: Vec<_> = lines.iter().filter_map(|line| line["method"].as_str()).collect();
        assert_eq!(methods, ["initialize", "notifications/initialized", "tools/list"]);
        let initialize = &lines[0]["params"];
        assert_eq!(initialize["protocolVersion"], "2025-11-25");
        let declared = json!({
            "elicitation": { "form": {}, "url": {} }, "sampling": { "tools": {}, "context": {} }, "roots": {},
        });
        assert_eq!(initialize["capabilities"], declared);
        assert!(lines[1].get("id").is_none());
        let answer = |id: Value| lines.iter().find(|line| line.get("method").is_none() && line["id"] == id).unwrap();
        assert_eq!(*answer(json!("p")), json!({ "jsonrpc": "2.0", "id": "p", "result": {} }));
        for id in 1..=4 {
            let answer = answer(json!(id));
            // No call is in progress that it could be asked for.
            assert_eq!((&answer["error"]["code"], answer.get("result")), (&json!(-32601), None), "{answer}");
        }
        world.upstreams.stop().await;
    }
}

#[tokio::test]
async fn a_version_that_is_not_spoken_ends_the_link_with_a_clear_error() {
    for version in ["2026-07-28", "2024-10-07", ""] {
        let dir = tempfile::tempdir().unwrap();
        let world = World::new(vec![asking(dir.path(), version)]).await;
        let (_, status) = world.upstreams.status().remove(0);
        assert!(!status.connected && world.upstreams.tools().is_empty());
        let problem = status.problem.unwrap();
        assert!(problem.contains(&format!("{version:?}")) && problem.contains("2025-11-25"), "{problem}");
        world.upstreams.stop().await;
        let methods: Vec<_> = read(dir.path()).iter().map(|line| line["method"].clone()).collect();
        assert!(methods.iter().all(|method| method == "initialize"), "{methods:?}");
    }
}

/// A server that says into `$DIR` what happens to it: its input ends, SIGTERM comes. `after_input` is what it does when its
/// input has ended, `on_term` when SIGTERM comes.
fn ending(dir: &Path, after_input: &str, on_term: &str) -> UpstreamConfig {
    let mark = |what: &str| format!(r#"date +%s%N > "$DIR/{what}""#);
    let script_text = format!(
        r#"echo $$ > "$DIR/pid"
trap '{}; {on_term}' TERM
{BINARY} demo-server --test-tools
{}
{after_input}
"#,
        mark("term"),
        mark("input")
    );
    let env = vec![("DIR".to_owned(), dir.display().to_string())];
    let name = dir.file_name().unwrap().to_string_lossy().into_owned();
    UpstreamConfig { env, shared: true, ..script(&name, &script_text) }
}

#[tokio::test]
async fn a_session_ends_by_closed_input_then_sigterm_then_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let place = dir.path().join(name);
        std::fs::create_dir(&place).unwrap();
        place
    };
    let (polite, waiting, deaf) = (place("polite"), place("waiting"), place("deaf"));
    let stay = "while true; do sleep 0.05; done";
    let world = World::new(vec![
        ending(&polite, "exit 0", ""),
        UpstreamConfig { prefix: true, ..ending(&waiting, stay, "exit 0") },
        UpstreamConfig { prefix: true, ..ending(&deaf, stay, "") },
    ])
    .await;
    let context = ContextId::new();
    for tool in ["sleep", "waiting__sleep", "deaf__sleep"] {
        assert_eq!(text(&world.answer(context, tool, r#"{"ms":1}"#).await), "slept 1 ms");
    }
    let mut pids = Vec::new();
    for place in [&polite, &waiting, &deaf] {
        pids.push(pid_in(&place.join("pid")).await);
    }
    assert!(pids.iter().all(|&pid| is_running(pid)));
    let began = Instant::now();
    world.upstreams.stop().await;
    assert!(pids.iter().all(|&pid| !is_running(pid)), "{pids:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let moment = |place: &Path, what: &str| -> Option<u128> {
        std::fs::read_to_string(place.join(what)).ok().map(|text| text.trim().parse().unwrap())
    };
    assert!(moment(&polite, "input").is_some());
    assert_eq!(moment(&polite, "term"), None, "who ends by itself gets no signal");
    for place in [&waiting, &deaf] {
        let (input, term) = (moment(place, "input").unwrap(), moment(place, "term").unwrap());
        let given = Duration::from_nanos((term - input).try_into().unwrap());
        assert!(given > Duration::from_secs(1), "time to end by itself: {given:?}");
    }
}
