//! What each scope of an access token allows, by a table of its own.

use reqwest::Method;
use serde_json::{Value, json};
use taskhold::protocol::{legacy, modern};

use super::oauth::{METADATA, World, challenge};
use crate::support::client::{Answer, Client};
use crate::support::modern::Modern;
use crate::upstream::harness::within;

/// A message, which tokens of one scope are enough for it (`r`ead, `w`rite, `c`all), and what those without are told.
type Row = (&'static str, &'static str, &'static str);

const SCOPES: [(char, &str); 3] = [('r', "tasks:read"), ('w', "tasks:write"), ('c', "tools:call")];

const LEGACY: [Row; 17] = [
    ("initialize", "rwc", "tools:call"),
    ("ping", "-rwc", ""),
    ("logging/setLevel", "-rwc", ""),
    ("tools/list", "c", "tools:call"),
    ("tools/call", "c", "tools:call"),
    ("prompts/list", "c", "tools:call"),
    ("prompts/get", "c", "tools:call"),
    ("resources/list", "c", "tools:call"),
    ("resources/templates/list", "c", "tools:call"),
    ("resources/read", "c", "tools:call"),
    ("resources/subscribe", "c", "tools:call"),
    ("resources/unsubscribe", "c", "tools:call"),
    ("completion/complete", "c", "tools:call"),
    ("tasks/get", "rw", "tasks:read"),
    ("tasks/result", "rw", "tasks:read"),
    ("tasks/list", "rw", "tasks:read"),
    ("tasks/cancel", "w", "tasks:write"),
];

const MODERN: [Row; 13] = [
    ("server/discover", "-rwc", ""),
    ("tools/list", "c", "tools:call"),
    ("tools/call", "c", "tools:call"),
    ("prompts/list", "c", "tools:call"),
    ("prompts/get", "c", "tools:call"),
    ("resources/list", "c", "tools:call"),
    ("resources/templates/list", "c", "tools:call"),
    ("resources/read", "c", "tools:call"),
    ("completion/complete", "c", "tools:call"),
    ("subscriptions/listen", "rwc", "tools:call"),
    ("tasks/get", "rw", "tasks:read"),
    ("tasks/update", "w", "tasks:write"),
    ("tasks/cancel", "w", "tasks:write"),
];

/// By what `notifications` of `subscriptions/listen` asks for.
const NEWS: [Row; 8] = [
    (r#"{}"#, "rwc", "tools:call"),
    (r#"{"toolsListChanged":true}"#, "c", "tools:call"),
    (r#"{"promptsListChanged":true}"#, "c", "tools:call"),
    (r#"{"resourcesListChanged":true}"#, "c", "tools:call"),
    (r#"{"resourceSubscriptions":["x://1"]}"#, "c", "tools:call"),
    (r#"{"taskIds":[]}"#, "rw", "tasks:read"),
    (r#"{"taskIds":[],"toolsListChanged":false}"#, "rw", "tasks:read"),
    (r#"{"taskIds":[],"toolsListChanged":true}"#, "", "tools:call tasks:read"),
];

const OTHERS: [Row; 5] = [
    (r#"{"jsonrpc":"2.0","id":7,"method":"no/such/method"}"#, "-rwc", ""),
    (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, "-rwc", ""),
    (r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#, "-rwc", ""),
    (r#"{"jsonrpc":"2.0","method":"no/such/notification"}"#, "-rwc", ""),
    (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, "wc", "tasks:write"),
];

/// Sends a message of either era with what decides about scopes, and nothing more.
async fn send(world: &World, token: &str, is_modern: bool, message: &Value) -> Answer {
    let request = world.client(Some(token)).build(Method::POST).header("content-type", "application/json");
    let request = if is_modern { request.header("mcp-protocol-version", "2026-07-28") } else { request };
    Answer::read(request.body(message.to_string()).send().await.unwrap()).await
}

fn assert_lacks(answer: &Answer, id: &Value, scope: &str, what: &str) {
    assert_eq!(answer.status, 403, "{what} {answer:?}");
    let expected = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\", resource_metadata=\"{METADATA}\"");
    assert_eq!(challenge(answer), expected, "{what}");
    assert_eq!(answer.error(), (-32600, format!("the access token lacks the scope {scope}")), "{what}");
    assert_eq!(answer.json()["id"], *id, "{what}");
}

async fn check(world: &World, is_modern: bool, message: &Value, (what, enough, told): Row) {
    let id = if message.get("method").is_some() { message["id"].clone() } else { Value::Null };
    for (letter, scope) in SCOPES.into_iter().chain([('-', "openid")]) {
        let answer = send(world, &world.token(60, scope), is_modern, message).await;
        if enough.contains(letter) {
            assert!(answer.status != 403 && answer.status != 401, "{what} {scope} {answer:?}");
        } else {
            assert_lacks(&answer, &id, told, &format!("{what} {scope}"));
        }
    }
    // Nothing is said of scopes that would not be enough.
    let told = if told.is_empty() { "openid" } else { told };
    assert_ne!(send(world, &world.token(60, told), is_modern, message).await.status, 403, "{what}");
}

// req: AUTH-10, HTTP-13
#[tokio::test]
async fn each_message_needs_its_scope_before_anything_else_of_it_counts() {
    let world = World::on_sqlite().await;
    let mut all = legacy::Method::ALL.map(legacy::Method::as_str);
    let mut known = LEGACY.map(|(method, ..)| method);
    all.sort_unstable();
    known.sort_unstable();
    assert_eq!(all, known);
    let mut all = modern::Method::ALL.map(modern::Method::as_str);
    let mut known = MODERN.map(|(method, ..)| method);
    all.sort_unstable();
    known.sort_unstable();
    assert_eq!(all, known);
    for (is_modern, row) in LEGACY.map(|row| (false, row)).into_iter().chain(MODERN.map(|row| (true, row))) {
        let message = json!({ "jsonrpc": "2.0", "id": 7, "method": row.0, "params": {} });
        check(&world, is_modern, &message, row).await;
    }
    for row in NEWS {
        let filter: Value = serde_json::from_str(row.0).unwrap();
        let params = json!({ "notifications": filter });
        let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": params });
        check(&world, true, &message, row).await;
    }
    for row in OTHERS {
        check(&world, false, &serde_json::from_str(row.0).unwrap(), row).await;
    }
    assert!(world.script.is_idle().await);
}

/// The id of the first event of the stream that answers a request, which goes on.
async fn begun(client: &Client, body: String) -> (reqwest::Response, String) {
    let request = client.build(Method::POST).header("content-type", "application/json").body(body);
    let mut stream = within("a stream to begin", request.send()).await.unwrap();
    let first = within("its first event", stream.chunk()).await.unwrap().unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    let event = first.lines().find_map(|line| line.strip_prefix("id: ")).unwrap_or_else(|| panic!("{first}"));
    (stream, event.to_owned())
}

// req: AUTH-10
#[tokio::test]
async fn each_stream_and_the_end_of_a_session_need_their_scopes() {
    let world = World::on_sqlite().await;
    let owner = Client::connected(&world.front.url, &world.token(600, "tools:call tasks:write")).await;
    let task = owner.task("optional", json!({})).await;
    let of_task = world.script.next().await;
    let body = owner.message("tasks/result", &json!({ "taskId": task["taskId"] }));
    let (_waiting, result) = begun(&owner, body).await;
    let (_calling, call) =
        begun(&owner, owner.message("tools/call", &json!({ "name": "never", "arguments": {} }))).await;
    let of_call = world.script.next().await;
    let get = async |scope: &str, last: Option<&str>| {
        let client = Client { token: Some(world.token(600, scope)), ..owner.clone() };
        let request = client.build(Method::GET);
        let request = if let Some(last) = last { request.header("last-event-id", last) } else { request };
        within("an answer", request.send()).await.unwrap()
    };
    let scopes = || SCOPES.into_iter().chain([('-', "openid")]);
    for (what, last, enough, told) in [
        ("a session's stream", None, "rwc", "tools:call"),
        ("a call's", Some(call.as_str()), "c", "tools:call"),
        ("a wait's", Some(result.as_str()), "rw", "tasks:read"),
    ] {
        for (letter, scope) in scopes() {
            let answer = get(scope, last).await;
            if enough.contains(letter) {
                assert_eq!(answer.status(), 200, "{what} {scope}");
            } else {
                // One that needs less is refused for the least that would let it in at all.
                let told = if letter == '-' { "tools:call" } else { told };
                assert_lacks(&Answer::read(answer).await, &Value::Null, told, &format!("{what} {scope}"));
            }
        }
    }
    assert!(!of_task.stop.is_cancelled() && !of_call.stop.is_cancelled());
    for (letter, scope) in scopes() {
        let session = Client::connected(&world.front.url, &world.token(600, "tools:call")).await;
        let client = Client { token: Some(world.token(600, scope)), ..session };
        let answer = Answer::read(client.build(Method::DELETE).send().await.unwrap()).await;
        if letter == '-' {
            assert_lacks(&answer, &Value::Null, "tools:call", "the end of a session");
        } else {
            assert_eq!(answer.status, 204, "{scope} {answer:?}");
        }
    }
}

// req: AUTH-10, CAP-10
#[tokio::test]
async fn whoever_began_a_request_may_stop_it() {
    let world = World::on_sqlite().await;
    let owner = Client::connected(&world.front.url, &world.token(600, "tools:call")).await;
    let body = owner.message("tools/call", &json!({ "name": "never", "arguments": {} }));
    let id = serde_json::from_str::<Value>(&body).unwrap()["id"].clone();
    let (_calling, _) = begun(&owner, body).await;
    let work = world.script.next().await;
    let bare = Client { token: Some(world.token(600, "openid")), ..owner.clone() };
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    assert_eq!(bare.send(&cancelled.to_string()).await.status, 202);
    within("the call to stop", work.stop.cancelled()).await;
}

// req: AUTH-10, EXT-01
#[tokio::test]
async fn who_may_not_read_tasks_has_none() {
    let world = World::on_sqlite().await;
    let token = world.token(600, "tools:call");
    let mut client = Client::new(&world.front.url, Some(&token));
    assert_eq!(client.initialize("2025-11-25").await["capabilities"].get("tasks"), None);
    let body = client.message("tools/call", &json!({ "name": "optional", "arguments": {}, "task": {} }));
    let id = serde_json::from_str::<Value>(&body).unwrap()["id"].clone();
    assert_lacks(&client.send(&body).await, &id, "tools:call tasks:read", "a task");
    assert!(world.script.is_idle().await);
    // A revision without tasks never had a say about them.
    let mut older = Client::new(&world.front.url, Some(&token));
    older.initialize("2025-06-18").await;
    let answer = async |call: &mut (dyn Future<Output = Answer> + Unpin)| {
        let answered = async { world.script.next().await.answer("done") };
        within("an answer", async { tokio::join!(call, answered) }).await.0
    };
    let params = json!({ "name": "optional", "arguments": {}, "task": {} });
    let plainly = answer(&mut Box::pin(older.request("tools/call", params))).await;
    assert!(plainly.text().contains("done"), "{plainly:?}");
    // What runs only as a task where there are tasks.
    let plainly = answer(&mut Box::pin(client.call("always", json!({})))).await;
    assert!(plainly.text().contains("done"), "{plainly:?}");

    let modern = Modern::new(&world.front.url, &token).with_tasks();
    let offered = modern.request("server/discover", json!({})).await.result();
    assert_eq!(offered["capabilities"].get("extensions"), None, "{offered}");
    for tool in ["eager", "always", "optional"] {
        let plainly = answer(&mut Box::pin(modern.call(tool, json!({})))).await;
        assert_eq!(plainly.result()["resultType"], "complete", "{tool} {plainly:?}");
    }
    let both = Modern::new(&world.front.url, &world.token(600, "tools:call tasks:read")).with_tasks();
    assert_eq!(both.call("eager", json!({})).await.result()["resultType"], "task");
}
