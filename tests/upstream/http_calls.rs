//! Calls by HTTP and what becomes of them, against a server that behaves as a test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use taskhold::domain::ids::ContextId;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::executor::{Attempt, Event};
use tokio::sync::Notify;

use super::harness::{World, error, legacy, settings, text, until, within};
use crate::support::remote::{Remote, Scenario, Seen, broken, event, events, scenario, status, stream, whole};
use crate::support::server::lasting_address;

/// The server as an upstream of the legacy era.
pub async fn world(remote: &Remote) -> World {
    World::new(vec![legacy(UpstreamConfig::at("remote", &remote.url))]).await
}

/// Answers calls so, and everything else politely.
fn calls<F>(answer: impl Fn(Seen) -> F + Send + Sync + 'static) -> Scenario
where
    F: Future<Output = Response> + Send + 'static,
{
    let answer = Arc::new(answer);
    scenario(move |seen| {
        let answer = Arc::clone(&answer);
        async move { if seen.is_call() { Some(answer(seen).await) } else { None } }
    })
}

// req: EXEC-01
#[tokio::test]
async fn answers_come_as_json_or_as_a_stream_and_progress_on_the_way() {
    let remote = Remote::start(calls(async |seen| {
        if seen.arguments()["how"] == "json" {
            return whole(&seen.text("by json").replace(',', ",\r\n  "));
        }
        let progress = json!({
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": { "progressToken": seen.body["params"]["_meta"]["progressToken"], "progress": 1, "message": "half" },
        });
        events(format!("\u{FEFF}: hi\n\n{}{}", event(&progress.to_string()), event(&seen.text("by stream"))))
    }))
    .await;
    let world = world(&remote).await;
    let context = ContextId::new();
    assert_eq!(text(&world.answer(context, "t", r#"{"how":"json"}"#).await), "by json");
    let mut call = world.call(context, "t", r#"{"how":"stream"}"#);
    let note = within("progress", call.heard.events.recv()).await;
    assert!(matches!(note, Some(Event::Progress { message: Some(message), .. }) if message == "half"));
    assert_eq!(text(&call.end().await), "by stream");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn what_is_no_answer_says_what_it_was_and_whether_the_call_may_have_run() {
    #[derive(Debug, PartialEq)]
    enum Fate {
        Unsent,
        Lost,
        Broken,
    }
    let remote = Remote::start(calls(async |seen| {
        let how = seen.arguments()["how"].as_str().unwrap().to_owned();
        let message = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not like this"}}"#;
        match how.as_str() {
            "accepted" => status(202, ""),
            "typeless" => Response::new(axum::body::Body::from(seen.text("?"))),
            "html" => ([("content-type", "text/html; charset=utf-8")], "<p>").into_response(),
            "other id" => whole(&seen.text("?").replace("\"id\":", "\"id\":9")),
            "no json" => whole("{\"jsonrpc\":\"2.0\",\"id\":"),
            "array" => whole("[]"),
            "null" => whole(&seen.response(&json!(null))),
            "bad event" => events(event(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":", seen.body["id"]))),
            "half" => events(format!("data: {}", seen.text("?"))),
            "empty" => events(""),
            "cut" => {
                let (say, response) = stream();
                say.send(Ok(seen.text("?"))).unwrap();
                say.send(broken()).unwrap();
                response
            }
            "moved" => (axum::http::StatusCode::FOUND, [("location", "/mcp")]).into_response(),
            "with words" => {
                (axum::http::StatusCode::BAD_REQUEST, [("content-type", "application/json")], message).into_response()
            }
            code => status(code.parse().unwrap(), "no"),
        }
    }))
    .await;
    let world = world(&remote).await;
    let context = ContextId::new();
    for (how, fate, words) in [
        ("accepted", Fate::Broken, "without an answer (HTTP 202)"),
        ("typeless", Fate::Broken, "without a content type"),
        ("html", Fate::Broken, "\"text/html\""),
        ("other id", Fate::Broken, "no message that answers the request"),
        ("no json", Fate::Broken, "no message that answers the request"),
        ("array", Fate::Broken, "no message that answers the request"),
        ("null", Fate::Broken, "not an object"),
        ("bad event", Fate::Broken, "cannot be read"),
        ("half", Fate::Lost, "broke off"),
        ("empty", Fate::Lost, "broke off"),
        ("cut", Fate::Lost, "broke off"),
        ("moved", Fate::Unsent, "redirects"),
        ("with words", Fate::Unsent, "HTTP 400 Bad Request: not like this"),
        ("401", Fate::Unsent, "HTTP 401 Unauthorized: it refuses access: check bearer_env and headers"),
        ("403", Fate::Unsent, "check bearer_env"),
        ("405", Fate::Unsent, "check the path"),
        ("429", Fate::Unsent, "no more requests"),
        ("408", Fate::Lost, "HTTP 408"),
        ("500", Fate::Lost, "HTTP 500"),
        ("502", Fate::Lost, "HTTP 502"),
        ("503", Fate::Lost, "HTTP 503"),
    ] {
        let attempt = world.answer(context, "t", &json!({ "how": how }).to_string()).await;
        let (found, said) = match &attempt {
            Attempt::NotDispatched { detail } => (Fate::Unsent, detail.clone()),
            Attempt::Lost { detail } => (Fate::Lost, detail.clone()),
            Attempt::Answered(_) => (Fate::Broken, error(&attempt)["message"].to_string().replace("\\\"", "\"")),
            Attempt::Stopped | Attempt::Asked => panic!("{how} was not stopped, and asks nothing"),
        };
        assert!(found == fate && said.contains(words), "{how}: {attempt:?} {said}");
    }
    // A JSON-RPC error that answers the request is its answer, whatever the status.
    let answered = Remote::start(calls(async |seen| {
        let error = json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": { "code": -32011, "message": "theirs", "data": 1.0 } });
        (axum::http::StatusCode::INTERNAL_SERVER_ERROR, [("content-type", "application/json")], error.to_string()).into_response()
    }))
    .await;
    let other = self::world(&answered).await;
    assert_eq!(error(&other.answer(context, "t", "{}").await)["message"], "theirs");
    world.upstreams.stop().await;
    other.upstreams.stop().await;
}

#[tokio::test]
async fn a_server_that_is_not_there_leaves_the_call_unsent() {
    let address = lasting_address().parse().unwrap();
    let remote = Remote::start_at(address, scenario(async |_| None)).await;
    let world = world(&remote).await;
    drop(remote);
    until("the port to be free", || std::net::TcpListener::bind(address).is_ok()).await;
    // A link of its own, so that no old connection helps.
    let Attempt::NotDispatched { detail } = world.answer(ContextId::new(), "t", "{}").await else {
        panic!("it is not sent")
    };
    assert!(detail.contains("it cannot be reached: Connection refused"), "{detail}");
    assert!(!detail.contains("http://"), "{detail}");
    world.upstreams.stop().await;
}

// req: EXEC-05
#[tokio::test]
async fn a_huge_answer_ends_its_call_with_both_sizes_however_it_comes() {
    const LIMIT: usize = 100_000;
    let remote = Remote::start(calls(async |seen| {
        let bytes = usize::try_from(seen.arguments()["bytes"].as_u64().unwrap()).unwrap();
        let text = seen.text(&"x".repeat(bytes));
        match seen.arguments()["how"].as_str().unwrap() {
            "json" => whole(&text),
            "events" => events(format!("{}{}", event(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#), event(&text))),
            _ => {
                assert!(seen.header("accept-encoding").unwrap().contains("gzip"));
                ([("content-type", "application/json"), ("content-encoding", "gzip")], gzip(&text)).into_response()
            }
        }
    }))
    .await;
    let mut small = settings();
    small.result_limit = LIMIT;
    let world = World::with(small, vec![UpstreamConfig::at("remote", &remote.url)]).await;
    let context = ContextId::new();
    let around = r#"{"content":[{"text":"","type":"text"}]}"#.len();
    for how in ["json", "events", "gzip"] {
        for over in [1, 200_000] {
            let arguments = json!({ "how": how, "bytes": LIMIT - around + over });
            let error = error(&world.answer(context, "t", &arguments.to_string()).await);
            let data = json!({ "reason": "result_too_large", "bytes": LIMIT + over, "limit": LIMIT });
            assert_eq!(error["data"], data, "{how}");
        }
        let fits = json!({ "how": how, "bytes": LIMIT - around });
        assert_eq!(text(&world.answer(context, "t", &fits.to_string()).await).len(), LIMIT - around, "{how}");
        // One that would not end is not read to its end.
        let arguments = json!({ "how": how, "bytes": 20_000_000 });
        assert_eq!(
            error(&world.answer(context, "t", &arguments.to_string()).await)["data"]["reason"],
            "result_too_large"
        );
    }
    world.upstreams.stop().await;
}

fn gzip(text: &str) -> Vec<u8> {
    use std::io::Write as _;
    let mut child = std::process::Command::new("gzip")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("gzip is there");
    let (mut input, text) = (child.stdin.take().unwrap(), text.to_owned());
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    output.stdout
}

// req: EXEC-17
#[tokio::test]
async fn a_broken_stream_goes_on_after_its_last_event_when_the_upstream_says() {
    let refused = Arc::new(AtomicUsize::new(0));
    let remote = Remote::start(scenario(move |seen| {
        let refused = Arc::clone(&refused);
        async move {
            if seen.is_call() {
                let id = seen.body["id"].to_string();
                let (say, response) = stream();
                // The id and the pause come first, as 2025-11-25 has it; then the connection is gone.
                say.send(Ok(format!("id: {id}/1\nretry: 400\ndata:\n\nid: {id}/2\ndata: "))).unwrap();
                if seen.arguments()["how"] == "break" {
                    say.send(broken()).unwrap();
                }
                return Some(response);
            }
            let last = seen.header("last-event-id").filter(|_| seen.method == Method::GET)?;
            let (id, step) = last.split_once('/').unwrap();
            Some(match step {
                "1" => events(format!("id: {id}/3\nretry: 20\ndata:\n\n")),
                "3" if refused.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) => status(503, "not now"),
                "3" => {
                    let result = json!({ "content": [{ "type": "text", "text": "late" }] });
                    let id: serde_json::Value = serde_json::from_str(id).unwrap();
                    events(event(&json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()))
                }
                _ => panic!("{last} was never sent whole"),
            })
        }
    }))
    .await;
    let world = world(&remote).await;
    let context = ContextId::new();
    for how in ["break", "end"] {
        let began = Instant::now();
        let attempt = world.answer(context, "t", &json!({ "how": how }).to_string()).await;
        assert_eq!(text(&attempt), "late", "{how}");
        assert!(began.elapsed() >= Duration::from_millis(420), "{how}: {:?}", began.elapsed());
    }
    let resumed: Vec<_> =
        remote.requests(&Method::GET).into_iter().filter(|seen| seen.headers.contains_key("last-event-id")).collect();
    assert!(resumed.iter().all(|seen| seen.header("accept") == Some("text/event-stream") && seen.session().is_some()));
    assert_eq!(remote.messages("tools/call").len(), 2, "a call is never sent again");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_broken_stream_that_cannot_go_on_loses_the_call() {
    let remote = Remote::start(calls(async |_| events("id: 1\nretry: 20\ndata:\n\n"))).await;
    let world = world(&remote).await;
    let Attempt::Lost { detail } = world.answer(ContextId::new(), "t", "{}").await else { panic!("it is lost") };
    assert!(detail.contains("broke off") && detail.contains("HTTP 405"), "{detail}");
    world.upstreams.stop().await;
}

// req: EXEC-12
#[tokio::test]
async fn a_cancelled_call_is_told_by_its_id_and_its_stream_is_left() {
    let release = Arc::new(Notify::new());
    let (say, response) = stream();
    let left = Arc::new(Notify::new());
    let held = std::sync::Mutex::new(Some(response));
    let remote = Remote::start(calls({
        let (release, held) = (Arc::clone(&release), Arc::new(held));
        move |seen| {
            let (release, held) = (Arc::clone(&release), Arc::clone(&held));
            async move {
                if seen.arguments()["how"] == "held" {
                    return held.lock().unwrap().take().unwrap();
                }
                release.notified().await;
                whole(&seen.text("unharmed"))
            }
        }
    }))
    .await;
    taskhold::lifecycle::spawn("watch", {
        let (say, left) = (say.clone(), Arc::clone(&left));
        async move {
            say.closed().await;
            left.notify_one();
        }
    });
    let world = world(&remote).await;
    let context = ContextId::new();
    let other = world.call(context, "t", r#"{"how":"other"}"#);
    let cancelled = world.call(context, "t", r#"{"how":"held"}"#);
    until("both calls to arrive", || remote.messages("tools/call").len() == 2).await;
    say.send(Ok(": under way\n\n".to_owned())).unwrap();
    let began = Instant::now();
    cancelled.stop.cancel();
    assert_eq!(cancelled.end().await, Attempt::Stopped);
    until("the cancellation to arrive", || remote.messages("notifications/cancelled").len() == 1).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let calls = remote.messages("tools/call");
    let call = calls.iter().find(|seen| seen.arguments()["how"] == "held").unwrap();
    let told = remote.messages("notifications/cancelled").remove(0);
    assert_eq!(told.body["params"]["requestId"], call.body["id"]);
    assert_eq!(told.session(), call.session());
    within("the stream to be left", left.notified()).await;
    release.notify_one();
    assert_eq!(text(&other.end().await), "unharmed");
    world.upstreams.stop().await;
}

// req: EXEC-17
#[tokio::test]
async fn what_the_upstream_asks_on_a_stream_is_answered_by_a_post_of_its_own() {
    let remote = Remote::start(calls(async |seen| {
        let (say, response) = stream();
        say.send(Ok(event(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#))).unwrap();
        say.send(Ok(event(r#"{"jsonrpc":"2.0","id":-4,"method":"no/such/method"}"#))).unwrap();
        say.send(Ok(event(&seen.text("asked")))).unwrap();
        response
    }))
    .await;
    let world = world(&remote).await;
    assert_eq!(text(&world.answer(ContextId::new(), "t", "{}").await), "asked");
    let answers =
        || remote.requests(&Method::POST).into_iter().filter(|seen| seen.rpc().is_empty()).collect::<Vec<_>>();
    until("both answers", || answers().len() == 2).await;
    let answer = |id: serde_json::Value| answers().into_iter().find(|seen| seen.body["id"] == id).unwrap();
    assert_eq!(answer(json!("p")).body, json!({ "jsonrpc": "2.0", "id": "p", "result": {} }));
    assert_eq!(answer(json!(-4)).body["error"]["code"], -32601);
    assert!(answer(json!("p")).session().is_some());
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_resumed_and_brings_nothing_is_not_asked_for_in_a_hurry() {
    let remote = Remote::start(scenario(async |seen: Seen| match (seen.is_call(), &seen.method) {
        (true, _) => Some(events("id: 1\nretry: 0\ndata:\n\n")),
        (_, &Method::GET) if seen.header("last-event-id").is_some() => Some(events(": nothing\n\n")),
        _ => None,
    }))
    .await;
    let world = world(&remote).await;
    let call = world.call(ContextId::new(), "t", "{}");
    let resumed = || remote.requests(&Method::GET).iter().filter(|seen| seen.header("last-event-id").is_some()).count();
    until("it to be resumed", || resumed() == 1).await;
    let began = Instant::now();
    until("it to be resumed again", || resumed() >= 3).await;
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    call.stop.cancel();
    assert_eq!(call.end().await, Attempt::Stopped);
    world.upstreams.stop().await;
}
