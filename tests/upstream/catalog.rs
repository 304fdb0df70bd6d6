//! The catalogue: what is listed, under which names, and what survives.

use std::time::{Duration, Instant};

use taskhold::domain::clock::SystemClock;
use taskhold::domain::ids::ContextId;
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::mode::TaskMode;
use taskhold::executor::Catalogue;
use taskhold::executor::upstream::{UpstreamConfig, Upstreams};

use crate::support::database::{Backend, TestDatabase};

use super::harness::{BINARY, World, legacy, script, settings, test_tools, text, until, within};

/// A server that lists the tools whose names are in `$FILE`, one a line, and says when that changes. It runs no other ones.
const LISTING: &str = r#"
list() { sed 's/.*/{"name":"&","inputSchema":{"type":"object"}}/' "$FILE" | paste -sd, -; }
while IFS= read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) old=$(cat "$FILE"); echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}}'
      ( while sleep 0.05; do new=$(cat "$FILE"); [ "$old" = "$new" ] || echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; old=$new; done ) & ;;
    *'"tools/call"'*)
      name=$(printf '%s\n' "$line" | sed -n 's/.*"name":"\([a-z]*\)".*/\1/p')
      if grep -qx "$name" "$FILE"; then echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"'$name'"}]}}'
      else echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32602,"message":"there is no tool '$name'"}}'; fi ;;
    *'"tools/list"'*) [ -z "$LOG" ] || echo listed >> "$LOG"; echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":['"$(list)"']}}' ;;
  esac
done
"#;

/// Writes the file at once: nobody reads a part of it.
pub fn write(file: &std::path::Path, text: &str) {
    let whole = file.with_extension("whole");
    std::fs::write(&whole, text).unwrap();
    std::fs::rename(&whole, file).unwrap();
}

pub fn listing(name: &str, file: &std::path::Path) -> UpstreamConfig {
    UpstreamConfig { env: vec![("FILE".to_owned(), file.display().to_string())], ..script(name, LISTING) }
}

// req: EXEC-13
// field case: F-GW-12
#[tokio::test]
async fn tools_are_offered_in_order_under_names_that_never_move() {
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let database = TestDatabase::new(backend).await;
        let start = |configs| Upstreams::start(configs, settings(), database.store.system(), SystemClock::new());
        let demo = UpstreamConfig::new("demo", [BINARY, "demo-server"].map(str::to_owned).into());
        let third = UpstreamConfig { prefix: true, ..test_tools("third") };
        let first = start(vec![demo.clone(), test_tools("tests"), third]).await;
        within("the upstreams to settle", first.settled()).await;
        let names = |upstreams: &Upstreams| -> Vec<String> {
            upstreams.tools().iter().map(|tool| tool.exposed.clone()).collect()
        };
        let mut expected = ["count_primes", "wait", "fail", "crash", "confirm_delete"].map(str::to_owned).to_vec();
        let tools = [
            "sleep",
            "echo",
            "reply",
            "fail_tool",
            "fail_rpc",
            "ask",
            "sample",
            "roots",
            "url_elicit",
            "log",
            "task_only",
            "big",
            "charge",
            "prog",
            "crash",
            "deaf",
        ];
        let own = |name: &str| if name == "crash" { "tests__crash".to_owned() } else { name.to_owned() };
        expected.extend(tools.iter().map(|name| own(name)));
        expected.extend(tools.iter().map(|name| format!("third__{name}")));
        assert_eq!(names(&first), expected);
        first.stop().await;
        // The other order, and the same names; a name of an upstream that is gone is free again.
        let again = start(vec![test_tools("tests"), demo]).await;
        expected.truncate(21);
        expected.rotate_left(5);
        assert_eq!(names(&again), expected, "before the servers are up");
        within("the upstreams to settle", again.settled()).await;
        assert_eq!(names(&again), expected);
        assert_eq!(again.tool("tests__crash").unwrap().upstream_tool, "crash");
        again.stop().await;
    }
}

#[tokio::test]
async fn definitions_hints_and_checks_come_with_the_tools() {
    let command = [BINARY, "demo-server"].map(str::to_owned);
    let world = World::new(vec![UpstreamConfig::new("demo", command.into())]).await;
    let primes = world.upstreams.tool("count_primes").unwrap();
    assert_eq!((primes.mode, primes.restart), (TaskMode::Eager, RestartPolicy::Retry));
    assert!(primes.definition.as_str().contains(r#""outputSchema""#));
    assert_eq!(primes.arguments.check(&RawJson::trusted(r#"{"below":10}"#)), Ok(()));
    let why = primes.arguments.check(&RawJson::trusted(r#"{"below":"ten"}"#)).unwrap_err();
    assert!(why.contains("/below") && why.contains("integer"), "{why}");
    assert_eq!(world.upstreams.tool("crash").unwrap().restart, RestartPolicy::Fail);
    assert!(world.upstreams.tool("echo").is_none());
    world.upstreams.stop().await;
}

// req: EXEC-15
#[tokio::test]
async fn dead_and_hanging_upstreams_hide_nobody() {
    let missing = UpstreamConfig::new("missing", vec!["/no/such/program".to_owned(), "secret".to_owned()]);
    let configs = vec![script("hanging", "exec sleep 600"), missing, test_tools("good")];
    let database = TestDatabase::new(Backend::Sqlite).await;
    let started = Instant::now();
    let upstreams = Upstreams::start(configs, settings(), database.store.system(), SystemClock::new()).await;
    let mut changes = upstreams.changes();
    if upstreams.tools().is_empty() {
        within("the good tools", changes.changed()).await.unwrap();
    }
    assert!(upstreams.tool("echo").is_some());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let problem = || upstreams.status().into_iter().find(|(name, _)| name == "missing").unwrap().1;
    until("the failure to be noted", || problem().problem.is_some()).await;
    let status = problem();
    assert!(status.stderr.iter().any(|line| line.contains("/no/such/program")), "{status:?}");
    upstreams.stop().await;
}

#[tokio::test]
async fn the_list_follows_the_upstream() {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), "one\ntwo\n");
    let world = World::new(vec![listing("u", file.path())]).await;
    assert_eq!(world.tool_names(), ["one", "two"]);
    write(file.path(), "two\nthree\n");
    until("the new list", || world.tool_names() == ["two", "three"]).await;
    write(file.path(), "");
    until("the empty list", || world.tool_names().is_empty()).await;
    world.upstreams.stop().await;
}

// req: EXEC-03
#[tokio::test]
async fn the_list_follows_what_a_tool_says_on_its_own_link() {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), "one\n");
    // Nobody tells of the change but the process that runs the tool.
    let (before, after) = LISTING.split_once("      ( while").unwrap();
    let silent = format!("{before}      ;;{}", after.split_once(" & ;;").unwrap().1);
    let called = r#"*'"tools/call"'*)"#;
    let tells = r#"echo two > "$FILE"; echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'"#;
    let telling = silent.replacen(called, &format!("{called} {tells}"), 1);
    let world = World::new(vec![UpstreamConfig { env: listing("u", file.path()).env, ..script("u", &telling) }]).await;
    assert_eq!(world.tool_names(), ["one"]);
    let _ended = world.answer(ContextId::new(), "one", "{}").await;
    until("the new list", || world.tool_names() == ["two"]).await;
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_cursor_that_is_no_string_is_an_error_and_null_is_none() {
    for (cursor, problem) in [("2", Some("its tools/list gives a nextCursor that is no string")), ("null", None)] {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), "one\n");
        let paged = LISTING.replacen(r#"'"$(list)"']}"#, &format!(r#"'"$(list)"'],"nextCursor":{cursor}}}"#), 1);
        assert_ne!(paged, LISTING);
        let env = listing("u", file.path()).env;
        let world = World::new(vec![UpstreamConfig { env, ..script("u", &paged) }]).await;
        let status = &world.upstreams.status()[0].1;
        assert_eq!(status.problem.as_deref(), problem, "{cursor}");
        assert_eq!(world.tool_names().len(), usize::from(problem.is_none()));
        world.upstreams.stop().await;
    }
}

#[tokio::test]
async fn an_empty_list_after_a_start_replaces_no_good_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), "one\n");
    let world = World::new(vec![listing("u", file.path())]).await;
    world.upstreams.stop().await;
    write(file.path(), "");
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut config = listing("u", file.path());
    config.env.push(("LOG".to_owned(), log.path().display().to_string()));
    let again = Upstreams::start(vec![config], settings(), world.database.store.system(), SystemClock::new()).await;
    assert!(again.tool("one").is_some(), "known before its server is up");
    let names = || again.tools().iter().map(|tool| tool.exposed.clone()).collect::<Vec<_>>();
    // Asked again, so the first empty list has been taken in.
    let asked = || std::fs::read_to_string(log.path()).unwrap().lines().count();
    until("a second look at the list", || asked() >= 2).await;
    assert_eq!(names(), ["one"]);
    write(file.path(), "two\n");
    let mut seen = vec![names()];
    until("the warm list", || {
        seen.push(names());
        names() == ["two"]
    })
    .await;
    assert!(seen.iter().all(|names| !names.is_empty()), "{seen:?}");
    again.stop().await;
}

#[tokio::test]
async fn a_store_that_is_down_delays_new_tools_only() {
    let database = TestDatabase::new(Backend::Sqlite).await;
    database.sql("ALTER TABLE upstream_catalogs RENAME TO away").await;
    let store = database.store.system();
    let upstreams = Upstreams::start(vec![test_tools("demo")], settings(), store.clone(), SystemClock::new()).await;
    until("the upstream to be connected", || upstreams.status()[0].1.connected).await;
    database.sql("ALTER TABLE away RENAME TO upstream_catalogs").await;
    within("the upstreams to settle", upstreams.settled()).await;
    assert!(upstreams.tool("echo").is_some());
    // All its tools, and what it declares.
    assert_eq!(store.catalog().await.unwrap().len(), upstreams.tools().len() + 1);
    upstreams.stop().await;
}

// req: EXEC-13
// field case: F-GW-12
#[tokio::test]
async fn unsafe_names_are_offered_safely_and_map_back() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let long = "n".repeat(120);
    // The last looks like the prefixed form of the one before.
    std::fs::write(file.path(), format!("files.read/all\n{long}\n名前\nfiles_read_all\n9lives\nu__9lives\n")).unwrap();
    let world = World::new(vec![listing("u", file.path())]).await;
    let tools = world.upstreams.tools();
    let safe = |name: &str| name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    assert!(tools.iter().all(|tool| safe(&tool.exposed)), "{:?}", world.tool_names());
    let back: Vec<_> = tools.iter().map(|tool| tool.upstream_tool.as_str()).collect();
    assert_eq!(back, ["files.read/all", &long, "名前", "files_read_all", "9lives", "u__9lives"]);
    let names = world.tool_names();
    assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 6, "{names:?}");
    for tool in tools.iter() {
        assert_eq!(world.upstreams.tool(&tool.exposed).unwrap().upstream_tool, tool.upstream_tool);
    }
    world.upstreams.stop().await;
    // The same names after a restart, in another order, too.
    std::fs::write(file.path(), format!("u__9lives\n9lives\nfiles_read_all\n名前\n{long}\nfiles.read/all\n")).unwrap();
    let store = world.database.store.system();
    let again = Upstreams::start(vec![listing("u", file.path())], settings(), store, SystemClock::new()).await;
    within("the upstreams to settle", again.settled()).await;
    until("the other order", || again.tools().first().is_some_and(|tool| tool.upstream_tool == "u__9lives")).await;
    let reversed: Vec<_> = again.tools().iter().rev().map(|tool| tool.exposed.clone()).collect();
    assert_eq!(reversed, names);
    again.stop().await;
}

#[tokio::test]
async fn fixtures_are_served_in_their_order() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let fixtures = r#"{"tools":[
        {"name":"greet","description":"d","inputSchema":{"type":"object","required":["name"]},"task":"forbidden",
         "steps":[{"sleepMs":1},{"progress":[1,2]},{"result":{"content":[{"type":"text","text":"Hello, {name}!"}]}}]},
        {"name":"broken","description":"d","inputSchema":{"type":"object"},"task":"required",
         "steps":[{"protocolError":{"code":-32603,"message":"on purpose"}}]},
        {"name":"asking","description":"d","inputSchema":{"type":"object"},"task":"optional",
         "steps":[{"input":{"k":{"method":"elicitation/create","params":{}}}},{"result":{}}]}]}"#;
    std::fs::write(file.path(), fixtures).unwrap();
    let command = [BINARY, "demo-server", "--fixtures", &file.path().display().to_string()].map(str::to_owned);
    let world = World::new(vec![legacy(UpstreamConfig::new("fixtures", command.into()))]).await;
    assert_eq!(world.tool_names(), ["greet", "broken", "asking"]);
    let modes: Vec<_> = world.upstreams.tools().iter().map(|tool| tool.mode).collect();
    assert_eq!(modes, [TaskMode::Never, TaskMode::Always, TaskMode::Eager]);
    let context = ContextId::new();
    assert_eq!(text(&world.answer(context, "greet", r#"{"name":"Ann"}"#).await), "Hello, Ann!");
    assert_eq!(super::harness::error(&world.answer(context, "broken", "{}").await)["message"], "on purpose");
    assert!(text(&world.answer(context, "asking", "{}").await).contains("no usable answer"));
    world.upstreams.stop().await;
}
