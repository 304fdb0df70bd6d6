//! Modern servers by URL that behave as a test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::Method;
use axum::response::Response;
use serde_json::{Value, json};
use taskhold::domain::ids::ContextId;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::executor::{Attempt, Catalogue as _, Executor as _, Relay, Said, Wanted};
use tokio_util::sync::CancellationToken;

use super::{PREFIX, accept, asked, modern, params};
use crate::support::host::listener;
use crate::support::remote::{Remote, Seen, broken, event, scenario, stream, whole};
use crate::upstream::harness::{World, error, text, until, within};

/// Answers the probe.
pub fn discovered(seen: &Seen) -> Response {
    discovered_as(seen, &json!(["2026-07-28", "2025-11-25"]))
}

pub fn discovered_as(seen: &Seen, versions: &Value) -> Response {
    let capabilities = json!({ "tools": { "listChanged": true }, "resources": { "subscribe": true } });
    whole(&seen.response(&json!({
        "resultType": "complete", "supportedVersions": versions, "capabilities": capabilities,
        "ttlMs": 0, "cacheScope": "private",
    })))
}

/// An error with a status.
pub fn refused(seen: &Seen, code: u16, error: &Value) -> Response {
    let mut response = whole(&json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": error }).to_string());
    *response.status_mut() = axum::http::StatusCode::from_u16(code).unwrap();
    response
}

/// A server of the modern era, whose calls are answered so, and everything else politely.
pub async fn peer<F>(answer: impl Fn(Seen) -> F + Send + Sync + 'static) -> (Remote, World)
where
    F: Future<Output = Option<Response>> + Send + 'static,
{
    let answer = Arc::new(answer);
    let remote = Remote::start(scenario(move |seen| {
        let answer = Arc::clone(&answer);
        async move {
            if let Some(answered) = answer(seen.clone()).await {
                return Some(answered);
            }
            match seen.rpc() {
                "server/discover" => Some(discovered(&seen)),
                "tools/list" => None,
                "resources/list" => Some(whole(&seen.response(&json!({ "resources": [] })))),
                "tools/call" => Some(whole(&seen.text("fine"))),
                _ => Some(refused(&seen, 404, &json!({ "code": -32601, "message": "method not found" }))),
            }
        }
    }))
    .await;
    let world = World::new(vec![modern(UpstreamConfig::at("remote", &remote.url))]).await;
    (remote, world)
}

fn ask(state: Option<&Value>, keys: &[&str]) -> Value {
    let question = |key: &&str| {
        let form = json!({ "type": "object", "properties": { "answer": { "type": "string" } } });
        let params = json!({ "message": *key, "requestedSchema": form });
        ((*key).to_owned(), json!({ "method": "elicitation/create", "params": params }))
    };
    let mut result = json!({ "resultType": "input_required" });
    if !keys.is_empty() {
        result["inputRequests"] = Value::Object(keys.iter().map(question).collect());
    }
    if let Some(state) = state {
        result["requestState"] = state.clone();
    }
    result
}

// req: EXEC-18 (headers, sessions and what is never sent), EXEC-22
#[tokio::test]
async fn requests_have_headers_of_their_own_and_no_session() {
    let (remote, world) = peer(async |seen| {
        let mut response = match seen.rpc() {
            "tools/list" => whole(&seen.response(&json!({ "tools": [{
                "name": "t", "inputSchema": { "type": "object", "properties": {
                    "region": { "type": "string", "x-mcp-header": "Region" },
                    "n": { "type": "integer", "x-mcp-header": "N" },
                    "free": { "type": "string" },
                } },
            }, {
                "name": "bad", "inputSchema": { "type": "object", "properties": {
                    "a": { "type": "number", "x-mcp-header": "A" },
                } },
            }] }))),
            "tools/call" => whole(&seen.text("fine")),
            _ => return None,
        };
        response.headers_mut().insert("mcp-session-id", "theirs".parse().unwrap());
        Some(response)
    })
    .await;
    let names: Vec<_> = world.upstreams.tools().iter().map(|tool| tool.exposed.clone()).collect();
    assert_eq!(names, ["t"], "nobody could call the other one (EXEC-22)");
    let left_out = world.upstreams.status().remove(0).1.left_out;
    assert!(left_out.iter().any(|one| one.name == "bad" && one.why.contains("x-mcp-header")), "{left_out:?}");
    let arguments = r#"{"region":"é ","n":42.0,"free":"x"}"#;
    assert_eq!(text(&world.answer(ContextId::new(), "t", arguments).await), "fine");
    assert_eq!(text(&world.answer(ContextId::new(), "t", r#"{"region":null}"#).await), "fine");
    world.upstreams.stop().await;
    for seen in remote.seen() {
        assert_eq!((&seen.method, seen.session()), (&Method::POST, None), "{seen:?}");
        assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
        assert_eq!(seen.header("mcp-method"), Some(seen.rpc()));
        assert_eq!(seen.header("accept"), Some("application/json, text/event-stream"));
        assert!(seen.body["id"].is_u64() && seen.rpc() != "notifications/cancelled", "{seen:?}");
    }
    let calls = remote.messages("tools/call");
    let headers = |call: &Seen| {
        ["mcp-name", "mcp-param-region", "mcp-param-n", "mcp-param-free"]
            .map(|name| call.header(name).map(str::to_owned))
    };
    let said = |name: &str| Some(name.to_owned());
    assert_eq!(headers(&calls[0]), [said("t"), said("=?base64?w6kg?="), said("42"), None]);
    assert_eq!(headers(&calls[1]), [said("t"), None, None, None]);
}

// req: EXEC-18 (the retry)
#[tokio::test]
async fn a_retry_has_a_new_id_and_the_exact_state_or_none() {
    let rounds = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&rounds);
    let (remote, world) = peer(move |seen| {
        let counted = Arc::clone(&counted);
        async move {
            if seen.rpc() != "tools/call" {
                return None;
            }
            let state = json!("opaque \u{1F980} \"quoted\"\\");
            let answer = match counted.fetch_add(1, Ordering::SeqCst) {
                0 => ask(None, &["a", "b"]),
                1 => ask(None, &["c"]),
                2 => ask(Some(&state), &["a"]),
                // Nothing is asked: it only wants to be called again.
                3 => ask(Some(&state), &[]),
                _ => return Some(whole(&seen.text("done"))),
            };
            Some(whole(&seen.response(&answer)))
        }
    })
    .await;
    let mut call = world.call(ContextId::new(), "t", r#"{"x":1}"#);
    let (first, second) = (asked(&mut call).await, asked(&mut call).await);
    for (question, answer) in [first, second] {
        answer.send(accept(params(&question)["message"].as_str().unwrap())).unwrap();
    }
    for expected in ["c", "a"] {
        let (question, answer) = asked(&mut call).await;
        assert_eq!(params(&question)["message"], expected);
        answer.send(accept("again")).unwrap();
    }
    assert_eq!(text(&call.end().await), "done");
    world.upstreams.stop().await;
    let calls = remote.messages("tools/call");
    let ids: std::collections::HashSet<_> = calls.iter().map(|call| call.body["id"].to_string()).collect();
    assert_eq!(ids.len(), 5, "each request has an id of its own");
    let keys = |at: usize| -> Vec<String> {
        let responses = calls[at].body["params"]["inputResponses"].as_object();
        responses.map(|all| all.keys().cloned().collect()).unwrap_or_default()
    };
    let state = |at: usize| calls[at].body["params"].get("requestState").cloned();
    assert_eq!((keys(0), state(0)), (vec![], None));
    assert_eq!((keys(1), state(1)), (vec!["a".to_owned(), "b".to_owned()], None));
    assert_eq!(
        (keys(2), state(2)),
        (vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], None),
        "nobody else remembers"
    );
    let exact = Some(json!("opaque \u{1F980} \"quoted\"\\"));
    assert_eq!((keys(3), state(3)), (vec!["a".to_owned()], exact.clone()));
    assert_eq!((keys(4), state(4)), (vec![], exact));
    for call in &calls {
        assert_eq!(call.arguments(), &json!({ "x": 1 }));
        assert_eq!(call.body["params"]["_meta"]["progressToken"], calls[0].body["id"]);
    }
}

// req: EXEC-18 (what breaks the protocol)
#[tokio::test]
async fn results_that_nobody_can_understand_are_errors() {
    let (_remote, world) = peer(async |seen| {
        let how = seen.arguments()["how"].as_str()?.to_owned();
        let task = |more: Value| {
            let mut task = json!({ "resultType": "task", "taskId": "x", "status": "working" });
            task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            task
        };
        let result = match how.as_str() {
            "absent" => json!({ "content": [{ "type": "text", "text": "old" }] }),
            "unknown" => json!({ "resultType": "partial", "content": [] }),
            "no input" => json!({ "resultType": "input_required" }),
            "bad state" => json!({ "resultType": "input_required", "requestState": 7 }),
            "bad kind" => {
                json!({ "resultType": "input_required", "inputRequests": { "a": { "method": "tools/call" } } })
            }
            "no id" => task(json!({ "taskId": null })),
            "too many" => {
                let keys: Vec<_> = (0..40).map(|n| n.to_string()).collect();
                ask(None, &keys.iter().map(String::as_str).collect::<Vec<_>>())
            }
            _ => return None,
        };
        Some(whole(&seen.response(&result)))
    })
    .await;
    let context = ContextId::new();
    let call = async |how: &str| world.answer(context, "t", &json!({ "how": how }).to_string()).await;
    assert_eq!(text(&call("absent").await), "old");
    for (how, named) in [
        ("unknown", "partial"),
        ("no input", "neither"),
        ("bad state", "requestState"),
        ("bad kind", "tools/call"),
        ("no id", "without an id"),
        ("too many", "40 things"),
    ] {
        let error = error(&call(how).await);
        assert_eq!(error["data"]["reason"], "upstream_protocol", "{how}: {error}");
        assert!(error["message"].as_str().unwrap().contains(named), "{how}: {error}");
    }
    world.upstreams.stop().await;
}

// req: EXEC-18 (streams: one that breaks is not resumed, closing one is a cancellation, no request in it is answered)
#[tokio::test]
async fn a_stream_is_never_resumed_and_closed_to_cancel() {
    let (say, said) = tokio::sync::mpsc::unbounded_channel();
    let (remote, world) = peer(move |seen| {
        let say = say.clone();
        async move {
            match seen.arguments()["how"].as_str()? {
                "breaks" => {
                    let (write, response) = stream();
                    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "roots/list" });
                    write.send(Ok(format!("id: 1\n{}", event(&request.to_string())))).unwrap();
                    write.send(broken()).unwrap();
                    Some(response)
                }
                "waits" => {
                    let (write, response) = stream();
                    write.send(Ok(": here\n\n".to_owned())).unwrap();
                    say.send(write).unwrap();
                    Some(response)
                }
                _ => None,
            }
        }
    })
    .await;
    let context = ContextId::new();
    let lost = world.answer(context, "t", r#"{"how":"breaks"}"#).await;
    assert!(matches!(&lost, Attempt::Lost { detail } if detail.contains("broke off")), "{lost:?}");
    let call = world.call(context, "t", r#"{"how":"waits"}"#);
    let mut said = said;
    let write = within("the call", said.recv()).await.unwrap();
    call.stop.cancel();
    assert_eq!(call.end().await, Attempt::Stopped);
    within("the stream to be closed", write.closed()).await;
    world.upstreams.stop().await;
    assert!(remote.requests(&Method::GET).is_empty());
    assert!(remote.seen().iter().all(|seen| seen.body.get("method").is_some() && seen.body.get("id").is_some()));
}

/// A task of a scripted server: each look is answered by the next of these, the last one again and again.
async fn task_peer(looks: Vec<Value>) -> (Remote, World) {
    let count = Arc::new(AtomicUsize::new(0));
    peer(move |seen| {
        let (count, looks) = (Arc::clone(&count), looks.clone());
        async move {
            let task = json!({ "taskId": "x", "status": "working", "ttlMs": null, "pollIntervalMs": 1,
                "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z" });
            let with = |more: &Value| {
                let mut task = task.clone();
                task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                whole(&seen.response(&task))
            };
            match seen.rpc() {
                "tools/call" => Some(with(&json!({ "resultType": "task" }))),
                "tasks/get" => Some(with(&looks[count.fetch_add(1, Ordering::SeqCst).min(looks.len() - 1)])),
                "tasks/update" | "tasks/cancel" => Some(whole(&seen.response(&json!({ "resultType": "complete" })))),
                _ => None,
            }
        }
    })
    .await
}

// req: EXEC-11, EXEC-18 (what a modern server may say of its task)
#[tokio::test]
async fn what_is_said_of_a_task_is_checked() {
    let done =
        |text: &str| json!({ "status": "completed", "result": { "content": [{ "type": "text", "text": text }] } });
    let (remote, world) = task_peer(vec![
        json!({ "taskId": "another", "status": "completed", "result": { "content": [] } }),
        json!({ "status": "odd" }),
        json!({ "pollIntervalMs": -5, "statusMessage": "one" }),
        json!({ "statusMessage": "two", "pollIntervalMs": 1 }),
        done("right"),
    ])
    .await;
    let mut call = world.call_stored(ContextId::new(), "t", "{}");
    for (at, expected) in [(1.0, "one"), (2.0, "two")] {
        let event = within("its message", call.heard.events.recv()).await.unwrap();
        let taskhold::executor::Event::Progress { progress, message, .. } = event else { panic!("{event:?}") };
        assert_eq!((progress, message.as_deref()), (at, Some(expected)));
    }
    assert_eq!(text(&call.end().await), "right");
    for look in remote.messages("tasks/get") {
        assert_eq!((look.header("mcp-name"), look.body["params"]["taskId"].as_str()), (Some("x"), Some("x")));
    }
    world.upstreams.stop().await;
    for (look, named) in [
        (json!({ "status": "completed" }), "no result"),
        (json!({ "status": "completed", "result": { "resultType": "input_required" } }), "asking for input"),
        (json!({ "status": "failed" }), "no error"),
    ] {
        let (_remote, world) = task_peer(vec![look]).await;
        let error = error(&world.call_stored(ContextId::new(), "t", "{}").end().await);
        assert!(error["message"].as_str().unwrap().contains(named), "{error}");
        world.upstreams.stop().await;
    }
    let (_remote, world) = task_peer(vec![json!({ "status": "cancelled", "statusMessage": "because" })]).await;
    let error = error(&world.call_stored(ContextId::new(), "t", "{}").end().await);
    assert_eq!(error["data"]["reason"], "upstream_cancelled");
    assert!(error["message"].as_str().unwrap().contains("because"));
    world.upstreams.stop().await;
}

// req: EXEC-18 (that each input key is asked once)
#[tokio::test]
async fn each_key_of_a_task_is_asked_once_and_answered_until_it_is_taken() {
    let asks = |keys: &[&str]| {
        let mut look = ask(None, keys);
        look.as_object_mut().unwrap().remove("resultType");
        look["status"] = json!("input_required");
        look
    };
    let both = || asks(&["a", "b"]);
    // The same questions are shown again and again, as by a server that takes its time.
    let looks: Vec<_> = (0..5).map(|_| both()).chain([asks(&["b"])]).collect();
    let (remote, world) = task_peer(looks).await;
    let mut call = world.call_stored(ContextId::new(), "t", "{}");
    let first = asked(&mut call).await;
    let second = asked(&mut call).await;
    until("some looks", || remote.messages("tasks/get").len() > 8).await;
    assert!(call.heard.questions.try_recv().is_err(), "none is asked twice");
    let (kept, gone) = if params(&first.0)["message"] == "b" { (first, second) } else { (second, first) };
    assert!(gone.1.is_closed(), "what is not asked any more is withdrawn");
    kept.1.send(accept("now")).unwrap();
    until("the answer", || !remote.messages("tasks/update").is_empty()).await;
    let update = &remote.messages("tasks/update")[0];
    assert_eq!(update.header("mcp-name"), Some("x"));
    assert_eq!(
        update.body["params"]["inputResponses"],
        json!({ "b": { "action": "accept", "content": { "answer": "now" } } })
    );
    call.stop.cancel();
    call.end().await;
    until("its end", || !remote.messages("tasks/cancel").is_empty()).await;
    world.upstreams.stop().await;
}

/// The stream of a subscription, with its acknowledgement.
pub fn listening(seen: &Seen) -> (tokio::sync::mpsc::UnboundedSender<std::io::Result<String>>, Response) {
    let (write, response) = stream();
    let params = json!({
        "_meta": { format!("{PREFIX}/subscriptionId"): seen.body["id"] },
        "notifications": seen.body["params"]["notifications"],
    });
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params });
    write.send(Ok(event(&message.to_string()))).unwrap();
    (write, response)
}

pub fn news(method: &str, id: &Value, mut params: Value) -> std::io::Result<String> {
    params["_meta"] = json!({ format!("{PREFIX}/subscriptionId"): id });
    Ok(event(&json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()))
}

// req: EXEC-18 (listening), EXEC-03 (the modern half)
#[tokio::test]
async fn lists_are_listened_to_and_again_after_a_break() {
    let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
    let listed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&listed);
    let (remote, world) = peer(move |seen| {
        let (say, count) = (say.clone(), Arc::clone(&count));
        async move {
            match seen.rpc() {
                "subscriptions/listen" => {
                    let (write, response) = listening(&seen);
                    say.send((write, seen.body["id"].clone())).unwrap();
                    Some(response)
                }
                "tools/list" => {
                    let names: Vec<_> = (0..=count.fetch_add(1, Ordering::SeqCst)).map(|n| format!("t{n}")).collect();
                    Some(seen.tools(&names.iter().map(String::as_str).collect::<Vec<_>>()))
                }
                _ => None,
            }
        }
    })
    .await;
    let (write, id) = within("a subscription", said.recv()).await.unwrap();
    assert_eq!(
        remote.messages("subscriptions/listen")[0].body["params"]["notifications"],
        json!({ "toolsListChanged": true })
    );
    assert_eq!(listed.load(Ordering::SeqCst), 1, "it is listened to before the lists are read");
    // Of another subscription, it says.
    write.send(news("notifications/tools/list_changed", &json!(999_999), json!({}))).unwrap();
    write.send(news("notifications/tools/list_changed", &id, json!({}))).unwrap();
    until("the new list", || world.tool_names().len() == 2).await;
    assert_eq!(listed.load(Ordering::SeqCst), 2);
    write.send(broken()).unwrap();
    let (write, again) = within("another subscription", said.recv()).await.unwrap();
    assert_ne!(again, id);
    until("what was missed", || world.tool_names().len() == 3).await;
    // The server ends it by its word, too.
    let ended = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": again } });
    write.send(Ok(event(&ended.to_string()))).unwrap();
    within("one more subscription", said.recv()).await.unwrap();
    until("what was missed again", || world.tool_names().len() == 4).await;
    world.upstreams.stop().await;
}

// req: EXEC-18 (listening, and the end of it)
#[tokio::test]
async fn resources_that_are_followed_share_one_subscription_and_tell_their_news() {
    let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
    let (remote, world) = peer(move |seen| {
        let say = say.clone();
        async move {
            let wanted = seen.body["params"]["notifications"]["resourceSubscriptions"].as_array()?.clone();
            if wanted.contains(&json!("x://none")) {
                return Some(refused(&seen, 200, &json!({ "code": -32602, "message": "not that one" })));
            }
            let (write, response) = listening(&seen);
            say.send((write, seen.body["id"].clone(), wanted)).unwrap();
            Some(response)
        }
    })
    .await;
    let context = ContextId::new();
    let mut notices = world.upstreams.notices().remove(0);
    let relay = async |wanted: Wanted| {
        let (params, capabilities) = (RawJson::trusted("{}"), RawJson::trusted("{}"));
        let relay = Relay { context, upstreams: vec!["remote".to_owned()], wanted, params, capabilities };
        within("an answer", world.upstreams.relay(relay, listener().0, CancellationToken::new())).await
    };
    let fine = |attempt: Attempt| matches!(attempt, Attempt::Answered(Outcome::Result { .. }));
    assert!(fine(relay(Wanted::Subscription("x://1".to_owned())).await));
    let (first, _, wanted) = within("a subscription", said.recv()).await.unwrap();
    assert_eq!(wanted, ["x://1"]);
    assert!(fine(relay(Wanted::Subscription("x://2".to_owned())).await));
    let (second, id, wanted) = within("another", said.recv()).await.unwrap();
    assert_eq!(wanted, ["x://1", "x://2"]);
    within("the first to be left", first.closed()).await;
    second.send(news("notifications/resources/updated", &id, json!({ "uri": "x://2", "n": 1.0 }))).unwrap();
    let notice = within("news", notices.recv()).await.unwrap();
    assert_eq!(notice.context, Some(context));
    let Said::ResourceUpdated(updated) = notice.said else { panic!("an update") };
    assert_eq!(updated.as_str(), r#"{"n":1.0,"uri":"x://2"}"#, "without the subscription, which is ours");
    let refused = relay(Wanted::Subscription("x://none".to_owned())).await;
    assert!(error(&refused)["message"].as_str().unwrap().contains("not that one"), "{refused:?}");
    let (second, id, wanted) = within("what is left", said.recv()).await.unwrap();
    assert_eq!(wanted, ["x://1", "x://2"]);
    // The server ends it by its result, too.
    let ended = json!({ "jsonrpc": "2.0", "id": id, "result": { "resultType": "complete" } });
    second.send(Ok(event(&ended.to_string()))).unwrap();
    let (_third, _, wanted) = within("one more", said.recv()).await.unwrap();
    assert_eq!(wanted, ["x://1", "x://2"]);
    assert!(fine(relay(Wanted::EndOfSubscription("x://1".to_owned())).await));
    until("only one to be left", || {
        let all = remote.messages("subscriptions/listen");
        all.last().is_some_and(|last| last.body["params"]["notifications"]["resourceSubscriptions"] == json!(["x://2"]))
    })
    .await;
    world.upstreams.stop().await;
}

// Of MOD-12 and EXEC-18: other requests of callers go through the same rounds.
#[tokio::test]
async fn a_resource_may_ask_before_it_is_read() {
    let (remote, world) = peer(async |seen| {
        if seen.rpc() != "resources/read" {
            return None;
        }
        if seen.body["params"].get("inputResponses").is_none() {
            return Some(whole(&seen.response(&ask(Some(&json!("s")), &["who"]))));
        }
        Some(whole(
            &seen.response(&json!({ "resultType": "complete", "contents": [], "ttlMs": 5, "cacheScope": "public" })),
        ))
    })
    .await;
    let (host, mut heard) = listener();
    let relay = Relay {
        context: ContextId::new(),
        upstreams: vec!["remote".to_owned()],
        wanted: Wanted::Contents("x://é".to_owned()),
        params: RawJson::trusted(r#"{"uri":"x://é"}"#),
        capabilities: RawJson::trusted(r#"{"elicitation":{}}"#),
    };
    let read = world.upstreams.relay(relay, host, CancellationToken::new());
    let answered = async {
        let (_, answer) = heard.questions.recv().await.unwrap();
        answer.send(accept("me")).unwrap();
    };
    let (read, ()) = within("the contents", async { tokio::join!(read, answered) }).await;
    assert!(matches!(read, Attempt::Answered(Outcome::Result { .. })), "{read:?}");
    let reads = remote.messages("resources/read");
    assert_eq!(reads[1].header("mcp-name"), Some("=?base64?eDovL8Op?="));
    assert_eq!(reads[1].body["params"]["requestState"], "s");
    world.upstreams.stop().await;
}
