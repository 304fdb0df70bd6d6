//! Calls and what becomes of them.

use std::time::{Duration, Instant};

use taskhold::domain::ids::ContextId;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::executor::{Attempt, Event};

use super::harness::{BINARY, World, error, script, settings, test_tools, text, until, within};

/// Far less than a call takes that nobody cancels, however busy the machine is.
const SOON: Duration = Duration::from_secs(5);

/// Answers `initialize` and `tools/list` as an upstream with one tool `t`, then runs `rest` for each call, whose id is
/// in `$id`. Reads one message a line with `sed`.
fn server(rest: &str) -> String {
    format!(
        r#"
while IFS= read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"s","version":"1"}}}}}}' ;;
    *'"tools/list"'*) echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"tools":[{{"name":"t","inputSchema":{{"type":"object"}}}}]}}}}' ;;
    *'"tools/call"'*) {rest} ;;
  esac
done
"#
    )
}

#[tokio::test]
async fn a_call_is_answered_and_the_tool_sees_its_arguments_verbatim() {
    let world = World::new(vec![test_tools("demo")]).await;
    let hostile =
        r#"{"z":1e400,"a":1.0,"big":18446744073709551615,"nul":"\u0000","half":"\ud800","u":"ü\u00fc","":[[]]}"#;
    let attempt = world.answer(ContextId::new(), "echo", hostile).await;
    let Attempt::Answered(Outcome::Result { json, is_error: false }) = &attempt else { panic!("{attempt:?}") };
    assert!(json.as_str().contains(&format!(r#""structuredContent":{hostile},"#)), "{}", json.as_str());
    world.upstreams.stop().await;
}

#[tokio::test]
async fn tool_errors_and_rpc_errors_are_outcomes_as_they_came() {
    let world = World::new(vec![test_tools("demo")]).await;
    let context = ContextId::new();
    let failed = world.answer(context, "fail_tool", r#"{"message":"no such city"}"#).await;
    assert!(matches!(&failed, Attempt::Answered(Outcome::Result { is_error: true, .. })));
    assert_eq!(text(&failed), "no such city");
    let refused = error(&world.answer(context, "fail_rpc", r#"{"code":-32011}"#).await);
    assert_eq!((&refused["code"], &refused["data"]["tool"]), (&(-32011).into(), &"fail_rpc".into()));
    world.upstreams.stop().await;
}

// req: EXEC-12
#[tokio::test]
async fn progress_comes_back_to_the_call_that_made_it() {
    let world = World::new(vec![test_tools("demo")]).await;
    let context = ContextId::new();
    let mut calls: Vec<_> = (1..=3).map(|n| world.call(context, "prog", &format!(r#"{{"n":{n}}}"#))).collect();
    for (call, n) in calls.iter_mut().zip(1_u32..) {
        for step in 1..=n {
            let event = within("progress", call.heard.events.recv()).await;
            let Some(Event::Progress { progress, total, message, params }) = event else { panic!("progress") };
            assert_eq!((progress, total), (f64::from(step), Some(f64::from(n))));
            assert_eq!(message.unwrap(), format!("step {step} of {n}"));
            assert!(params.as_str().contains(&format!(r#""message":"step {step} of {n}""#)));
        }
    }
    for call in calls {
        text(&call.end().await);
    }
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_cancelled_call_is_seen_by_its_upstream_and_no_other() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = file.path().display();
    let demo = format!("tee {log} | {BINARY} demo-server --test-tools");
    let world = World::new(vec![UpstreamConfig { shared: true, ..script("demo", &demo) }]).await;
    let context = ContextId::new();
    let other = world.call(context, "sleep", r#"{"ms":1500}"#);
    let cancelled = world.call(context, "sleep", r#"{"ms":60000}"#);
    let seen = |what: &str| std::fs::read_to_string(file.path()).unwrap().contains(what);
    until("the call to arrive", || seen("60000") && seen("1500")).await;
    let sent = std::fs::read_to_string(file.path()).unwrap();
    let call = sent.lines().find(|line| line.contains("60000")).unwrap();
    let id = serde_json::from_str::<serde_json::Value>(call).unwrap()["id"].clone();
    let started = Instant::now();
    cancelled.stop.cancel();
    assert_eq!(cancelled.end().await, Attempt::Stopped);
    until("the cancellation to arrive", || seen("notifications/cancelled")).await;
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert!(seen(&format!(r#""requestId":{id}"#)));
    assert_eq!(text(&other.end().await), "slept 1500 ms");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn the_late_answer_of_a_cancelled_call_is_ignored() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // The first call is answered when the second one comes, before that.
    let late = r#"
        case "$held" in
          '') held=$id; echo $id > "$LOG" ;;
          *) for each in $held $id; do
               echo '{"jsonrpc":"2.0","id":'$each',"result":{"content":[{"type":"text","text":"to '$each'"}]}}'
             done ;;
        esac"#;
    let env = vec![("LOG".to_owned(), file.path().display().to_string())];
    let world = World::new(vec![UpstreamConfig { env, ..script("late", &server(late)) }]).await;
    let context = ContextId::new();
    let mut deaf = world.call(context, "t", "{}");
    let first = || std::fs::read_to_string(file.path()).unwrap();
    until("the call to arrive", || first().ends_with('\n')).await;
    deaf.stop.cancel();
    assert_eq!(within("the events to end", deaf.heard.events.recv()).await, None);
    assert_eq!(deaf.end().await, Attempt::Stopped);
    for _ in 0..2 {
        let answer = text(&world.answer(context, "t", "{}").await);
        assert!(answer.starts_with("to "), "{answer}");
        assert_ne!(answer, format!("to {}", first().trim_end()));
    }
    world.upstreams.stop().await;
}

// req: EXEC-02
#[tokio::test]
async fn a_crash_loses_the_running_calls_and_the_next_call_works() {
    let world = World::new(vec![test_tools("demo"), UpstreamConfig { prefix: true, ..test_tools("other") }]).await;
    let context = ContextId::new();
    assert_eq!(text(&world.answer(context, "sleep", r#"{"ms":1}"#).await), "slept 1 ms");
    let neighbour = world.call(context, "other__sleep", r#"{"ms":1000}"#);
    let lost = world.call(context, "sleep", r#"{"ms":60000}"#);
    let Attempt::Lost { detail } = world.answer(context, "crash", "{}").await else { panic!("a crash loses the call") };
    assert!(detail.contains("exit code 3"), "{detail}");
    assert!(matches!(lost.end().await, Attempt::Lost { .. }));
    assert_eq!(text(&world.answer(context, "sleep", r#"{"ms":2}"#).await), "slept 2 ms");
    assert_eq!(text(&neighbour.end().await), "slept 1000 ms");
    world.upstreams.stop().await;
}

// req: EXEC-12
#[tokio::test]
async fn two_contexts_have_two_processes() {
    let world = World::new(vec![test_tools("demo")]).await;
    let (ours, theirs) = (ContextId::new(), ContextId::new());
    let running = world.call(theirs, "sleep", r#"{"ms":1500}"#);
    assert!(matches!(world.answer(ours, "crash", "{}").await, Attempt::Lost { .. }));
    assert_eq!(text(&running.end().await), "slept 1500 ms");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_shared_upstream_has_one_process() {
    let world = World::new(vec![UpstreamConfig { shared: true, ..test_tools("demo") }]).await;
    let (ours, theirs) = (ContextId::new(), ContextId::new());
    assert_eq!(text(&world.answer(theirs, "sleep", r#"{"ms":1}"#).await), "slept 1 ms");
    let running = world.call(theirs, "sleep", r#"{"ms":60000}"#);
    assert!(matches!(world.answer(ours, "crash", "{}").await, Attempt::Lost { .. }));
    assert!(matches!(running.end().await, Attempt::Lost { .. }));
    world.upstreams.stop().await;
}

// req: EXEC-14
#[tokio::test]
async fn noise_and_bad_lines_hurt_nobody() {
    let noise = r#"
        echo; echo 'debug: hello'; printf '\377\376 bytes\n'; echo '[1,2]'; echo '{"jsonrpc":"2.0","id":999,"result":{}}'
        echo '{"jsonrpc":"2.0","id":"x","result":{}}'; echo '{"jsonrpc":"2.0","method":"notifications/progress","params":7}'
        echo '{"jsonrpc":"2.0","id":5000,"method":"sampling/createMessage","params":{}}'
        head -c 70000 /dev/zero | tr '\0' 'x'; echo
        echo '{"level":"info","id":'$id',"msg":"took it"}'; echo '{"id":'$id',"method":"GET","result":"200","error":null}'
        printf '{"id":%s,"result":"' "$id"; head -c 70000 /dev/zero | tr '\0' 'x'; echo '"}'
        echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"fine"}]}}'"#;
    let mut small = settings();
    small.result_limit = 1000; // two of the lines are too long by that
    let world = World::with(small, vec![script("noisy", &server(noise))]).await;
    let context = ContextId::new();
    for _ in 0..3 {
        assert_eq!(text(&world.answer(context, "t", "{}").await), "fine");
    }
    world.upstreams.stop().await;
}

// req: EXEC-14
#[tokio::test]
async fn a_server_that_logs_what_it_reads_to_its_output_answers_its_calls() {
    // Were a line of the log taken for the request that it quotes, it would be answered, and the answer logged in turn.
    let logs = r#"
        printf 'DEBUG received {"jsonrpc":"2.0","id":%s,"error":{"code":-32700,"message":"m"}}\n' "$id"
        printf 'DEBUG sends {"jsonrpc":"2.0","id":%s,"result":' "$id"; head -c 70000 /dev/zero | tr '\0' 'x'; echo
        echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"fine"}]}}'"#;
    let logged = server(logs).replacen("id=$(", "printf 'DEBUG received %s\\n' \"$line\"\n  id=$(", 1);
    let mut small = settings();
    small.result_limit = 1000; // one of the lines is too long by that
    let world = World::with(small, vec![script("logs", &logged)]).await;
    let context = ContextId::new();
    for _ in 0..3 {
        assert_eq!(text(&world.answer(context, "t", "{}").await), "fine");
    }
    world.upstreams.stop().await;
}

// req: EXEC-14
#[tokio::test]
async fn a_bad_answer_ends_the_call_it_answers_and_no_other() {
    let bad = r#"
        case "$line" in
          *'"null"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":null}' ;;
          *'"twice"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{},"error":{"code":1,"message":"m"}}' ;;
          *'"broken"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"a":' ;;
          *'"bytes"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"a":"\377"}}\n' "$id" ;;
          *) echo '{"jsonrpc":"2.0","id":'$id',"result":{"task":{"taskId":"x"},"content":[{"type":"text","text":"fine"}]}}' ;;
        esac"#;
    let world = World::new(vec![script("bad", &server(bad))]).await;
    let context = ContextId::new();
    for kind in ["null", "twice", "broken", "bytes"] {
        let error = error(&world.answer(context, "t", &format!(r#"{{"kind":"{kind}"}}"#)).await);
        assert_eq!(error["data"]["reason"], "upstream_protocol", "{kind}: {error}");
        assert_eq!(text(&world.answer(context, "t", "{}").await), "fine");
    }
    world.upstreams.stop().await;
}

/// Runs `ask`, which writes a request, and gives the line that answers it as the call's result.
fn asking(ask: &str) -> String {
    server(&format!(
        r#"
        pad() {{ head -c "$1" /dev/zero | tr '\0' 'x'; }}
        {ask}
        IFS= read -r reply
        echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[],"structuredContent":'"$reply"'}}}}'"#
    ))
}

// req: EXEC-14
#[tokio::test]
async fn a_request_that_cannot_be_taken_is_answered() {
    let ask = r#"
        case "$line" in
          *'"list"'*) echo '{"jsonrpc":"2.0","id":"a-1","method":"roots/list","params":[1]}' ;;
          *'"text"'*) echo '{"jsonrpc":"2.0","id":-1,"method":"roots/list","params":"x"}' ;;
          *'"null"'*) echo '{"jsonrpc":"2.0","id":7,"method":"roots/list","params":null}' ;;
          *'"cut"'*) echo '{"jsonrpc":"2.0","id":"a\"b","method":"roots/list","params":{"a":' ;;
          *'"first"'*) echo '{"jsonrpc":"2.0","id":1,"method":"roots/list","params":{"a":"'$(pad 70000)'"}}' ;;
          *'"last"'*) echo '{"method":"roots/list","params":{"a":"'$(pad 70000)'"},"id":"00000000-0000-0000-0000-000000000000","jsonrpc":"2.0"}' ;;
        esac"#;
    let mut small = settings();
    small.result_limit = 1000;
    let world = World::with(small, vec![script("odd", &asking(ask))]).await;
    let context = ContextId::new();
    for (kind, id, code) in [
        ("list", r#""a-1""#, -32600),
        ("text", "-1", -32600),
        ("null", "7", -32600),
        ("cut", r#""a\"b""#, -32700),
        ("first", "1", -32602),
        ("last", r#""00000000-0000-0000-0000-000000000000""#, -32602),
    ] {
        let arguments = format!(r#"{{"kind":"{kind}"}}"#);
        let attempt = within("its end", world.answer(context, "t", &arguments)).await;
        let Attempt::Answered(Outcome::Result { json, .. }) = attempt else { panic!("{kind}: {attempt:?}") };
        let result: serde_json::Value = serde_json::from_str(json.as_str()).unwrap();
        let reply = &result["structuredContent"];
        assert_eq!(
            (reply["id"].to_string(), &reply["error"]["code"]),
            (id.to_owned(), &code.into()),
            "{kind}: {reply}"
        );
    }
    world.upstreams.stop().await;
}

// req: EXEC-14
#[tokio::test]
async fn a_request_without_an_id_to_answer_ends_the_calls_of_its_link() {
    let ask = r#"
        case "$line" in
          *'"odd"'*) echo '{"jsonrpc":"2.0","id":1.5,"method":"roots/list"}' ;;
          *'"long"'*) echo '{"jsonrpc":"2.0","id":"'$(pad 70000)'","method":"roots/list"}' ;;
          *) echo '{"jsonrpc":"2.0","id":null,"method":"m","params":[1]}'; echo '{"level":"info","id":1.5,"method":"GET"}'
             echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"fine"}]}}' ;;
        esac"#;
    let mut small = settings();
    small.result_limit = 1000;
    let world = World::with(small, vec![script("odd", &asking(ask))]).await;
    let context = ContextId::new();
    for kind in ["odd", "long"] {
        let arguments = format!(r#"{{"kind":"{kind}"}}"#);
        let attempt = within("its end", world.answer(context, "t", &arguments)).await;
        let Attempt::Lost { detail } = attempt else { panic!("{kind}: {attempt:?}") };
        assert!(detail.contains("whose id is too long"), "{kind}: {detail}");
    }
    assert_eq!(text(&world.answer(context, "t", "{}").await), "fine", "noise ends nothing");
    world.upstreams.stop().await;
}

// req: EXEC-12, EXEC-14
#[tokio::test]
async fn a_request_without_an_id_to_answer_ends_no_calls_of_several_callers() {
    // Asks when both calls are there, and answers them all the same.
    let asks = r#"
        case "$held" in
          '') held=$id ;;
          *) echo '{"jsonrpc":"2.0","id":1.5,"method":"roots/list"}'
             for each in $held $id; do
               echo '{"jsonrpc":"2.0","id":'$each',"result":{"content":[{"type":"text","text":"fine"}]}}'
             done ;;
        esac"#;
    let world = World::new(vec![UpstreamConfig { shared: true, ..script("odd", &server(asks)) }]).await;
    let calls = [ContextId::new(), ContextId::new()].map(|context| world.call(context, "t", "{}"));
    for call in calls {
        assert_eq!(text(&call.end().await), "fine");
    }
    world.upstreams.stop().await;
}

// req: EXEC-02, EXEC-14
#[tokio::test]
async fn an_upstream_that_closes_its_output_loses_its_calls_and_the_next_call_works() {
    let closes = r#"
        case "$line" in
          *'"close"'*) exec >&- ;;
          *) echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"fine"}]}}' ;;
        esac"#;
    let world = World::new(vec![script("mute", &server(closes))]).await;
    let context = ContextId::new();
    let Attempt::Lost { detail } = world.answer(context, "t", r#"{"kind":"close"}"#).await else {
        panic!("it is lost")
    };
    assert!(detail.contains("closed its output"), "{detail}");
    assert_eq!(text(&world.answer(context, "t", "{}").await), "fine");
    world.upstreams.stop().await;
}

// req: EXEC-14
#[tokio::test]
async fn a_huge_progress_message_is_cut_before_it_waits() {
    let notes = r#"
        printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":"' "$id"
        head -c 200000 /dev/zero | tr '\0' 'x'; echo '"}}'
        echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"fine"}]}}'"#;
    let world = World::new(vec![script("chatty", &server(notes))]).await;
    let mut call = world.call(ContextId::new(), "t", "{}");
    let note = within("a progress note", call.heard.events.recv()).await;
    let Some(Event::Progress { message: Some(message), .. }) = note else { panic!("a message") };
    assert!((100..10_000).contains(&message.len()), "{}", message.len());
    assert_eq!(text(&call.end().await), "fine");
    world.upstreams.stop().await;
}

// req: EXEC-05, EXEC-14
#[tokio::test]
async fn a_result_over_the_limit_ends_its_call_with_both_sizes() {
    let mut small = settings();
    small.result_limit = 100_000;
    let world = World::with(small, vec![test_tools("demo")]).await;
    let context = ContextId::new();
    let other = world.call(context, "sleep", r#"{"ms":1000}"#);
    let around = r#"{"content":[{"text":"","type":"text"}]}"#.len();
    for over in [1, 50_000, 5_000_000] {
        let bytes = 100_000 - around + over;
        let error = error(&world.answer(context, "big", &format!(r#"{{"bytes":{bytes}}}"#)).await);
        assert_eq!(error["data"]["reason"], "result_too_large");
        assert_eq!(
            (error["data"]["bytes"].as_u64(), error["data"]["limit"].as_u64()),
            (Some(100_000 + over as u64), Some(100_000))
        );
    }
    let fits = world.answer(context, "big", &format!(r#"{{"bytes":{}}}"#, 100_000 - around)).await;
    assert_eq!(text(&fits).len(), 100_000 - around);
    assert_eq!(text(&other.end().await), "slept 1000 ms");
    world.upstreams.stop().await;
}

// req: EXEC-05
#[tokio::test]
async fn much_around_a_small_result_is_said_to_be_the_messages_size() {
    let mut small = settings();
    small.result_limit = 100_000;
    let padded = r#"printf '{"jsonrpc":"2.0",%200000s"id":%s,"result":{"content":[]}}\n' '' "$id" "#;
    let world = World::with(small, vec![script("padding", &server(padded))]).await;
    let error = error(&world.answer(ContextId::new(), "t", "{}").await);
    assert_eq!(error["data"]["reason"], "result_too_large");
    let (bytes, limit) = (error["data"]["bytes"].as_u64().unwrap(), error["data"]["limit"].as_u64().unwrap());
    assert!((200_001..200_100).contains(&bytes) && limit == 100_000 + (64 << 10), "{error}");
    let message = format!("the message has {bytes} bytes, more than the limit of {limit} bytes");
    assert_eq!(error["message"], message.as_str());
    world.upstreams.stop().await;
}

#[tokio::test]
async fn at_most_max_links_run_and_others_wait_their_turn() {
    let world = World::new(vec![UpstreamConfig { max_links: 1, ..test_tools("demo") }]).await;
    let (ours, theirs, third) = (ContextId::new(), ContextId::new(), ContextId::new());
    let first = world.call(ours, "sleep", r#"{"ms":500}"#);
    let second = world.call(theirs, "sleep", r#"{"ms":1}"#);
    let gives_up = world.call(third, "sleep", r#"{"ms":1}"#);
    gives_up.stop.cancel();
    assert_eq!(gives_up.end().await, Attempt::Stopped);
    assert_eq!(text(&first.end().await), "slept 500 ms");
    assert_eq!(text(&second.end().await), "slept 1 ms");
    assert_eq!(text(&world.answer(ours, "sleep", r#"{"ms":2}"#).await), "slept 2 ms");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn an_upstream_gets_the_opening_in_order_and_its_requests_answered() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let asks = r#"
        echo '{"jsonrpc":"2.0","id":"p","method":"ping"}'; IFS= read -r pong
        echo '{"jsonrpc":"2.0","id":-4,"method":"roots/list"}'; IFS= read -r roots
        echo "$pong" >> "$LOG"; echo "$roots" >> "$LOG"
        echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"asked"}]}}'"#;
    let log = ("LOG".to_owned(), file.path().display().to_string());
    let logged = server(asks).replacen("id=$(", "printf '%s\\n' \"$line\" >> \"$LOG\"\n  id=$(", 1);
    let world = World::new(vec![UpstreamConfig { env: vec![log], ..script("asking", &logged) }]).await;
    std::fs::write(file.path(), "").unwrap();
    assert_eq!(text(&world.answer(ContextId::new(), "t", "{}").await), "asked");
    let lines = std::fs::read_to_string(file.path()).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["method"], "initialize");
    assert_eq!(lines[0]["params"]["protocolVersion"], "2025-11-25");
    let declared = r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{},"context":{}},"roots":{}}"#;
    assert_eq!(lines[0]["params"]["capabilities"], serde_json::from_str::<serde_json::Value>(declared).unwrap());
    assert_eq!(lines[1]["method"], "notifications/initialized");
    assert_eq!(lines[2]["method"], "tools/call");
    assert_eq!((&lines[3]["id"], &lines[3]["result"]), (&"p".into(), &serde_json::json!({})));
    assert_eq!((&lines[4]["id"], &lines[4]["error"]["code"]), (&(-4).into(), &(-32601).into()));
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_version_that_is_not_spoken_ends_the_link_with_a_clear_error() {
    let future = server("true").replace("2025-11-25", "2031-01-01");
    let world = World::new(vec![script("future", &future)]).await;
    let (_, status) = world.upstreams.status().remove(0);
    let problem = status.problem.unwrap();
    assert!(problem.contains("2031-01-01") && problem.contains("2025-11-25"), "{problem}");
    assert!(!status.connected);
    world.upstreams.stop().await;
}
