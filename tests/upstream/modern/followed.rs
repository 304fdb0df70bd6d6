//! What a modern server that refuses something costs: that, and nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::response::Response;
use serde_json::{Value, json};
use taskhold::domain::ids::ContextId;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::{Attempt, Catalogue as _, Executor as _, Relay, Wanted};
use tokio_util::sync::CancellationToken;

use super::peers::{listening, news, peer, refused};
use crate::support::host::listener;
use crate::support::remote::{Remote, Seen, broken, whole};
use crate::upstream::harness::{World, error, text, until, within};

type Write = tokio::sync::mpsc::UnboundedSender<std::io::Result<String>>;
type Opened = tokio::sync::mpsc::UnboundedReceiver<(Write, Value, BTreeSet<String>)>;

/// Takes subscriptions to anything, unless a URI among it begins with `bad:`.
async fn picky(is_away: &Arc<AtomicBool>) -> (Remote, World, Opened) {
    let (say, opened) = tokio::sync::mpsc::unbounded_channel();
    let is_away = Arc::clone(is_away);
    let (remote, world) = peer(move |seen| {
        let (say, is_away) = (say.clone(), Arc::clone(&is_away));
        async move {
            let wanted = asked(&seen)?;
            if is_away.load(Ordering::SeqCst) {
                return Some(refused(&seen, 503, &json!({ "code": -32603, "message": "away" })));
            }
            if wanted.iter().any(|uri| uri.starts_with("bad:")) {
                return Some(refused(&seen, 200, &json!({ "code": -32602, "message": "not that one" })));
            }
            let (write, response) = listening(&seen);
            say.send((write, seen.body["id"].clone(), wanted)).unwrap();
            Some(response)
        }
    })
    .await;
    (remote, world, opened)
}

fn asked(seen: &Seen) -> Option<BTreeSet<String>> {
    let list = seen.body["params"]["notifications"]["resourceSubscriptions"].as_array()?;
    Some(list.iter().map(|uri| uri.as_str().unwrap().to_owned()).collect())
}

async fn follow(world: &World, context: ContextId, uri: &str) -> Attempt {
    let (params, capabilities) = (RawJson::trusted("{}"), RawJson::trusted("{}"));
    let wanted = Wanted::Subscription(uri.to_owned());
    let relay = Relay { context, upstreams: vec!["remote".to_owned()], wanted, params, capabilities };
    within("an answer", world.upstreams.relay(relay, listener().0, CancellationToken::new())).await
}

fn is_fine(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Answered(Outcome::Result { .. }))
}

fn set<'a>(uris: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    uris.into_iter().map(str::to_owned).collect()
}

// Bug: one URI that the server refused ended the subscription to all others of the link.
#[tokio::test]
async fn a_resource_that_is_refused_costs_the_others_nothing() {
    let (_remote, world, mut opened) = picky(&Arc::default()).await;
    let context = ContextId::new();
    assert!(is_fine(&follow(&world, context, "x://1").await));
    let (first, _, _) = within("a subscription", opened.recv()).await.unwrap();
    // All at once, as a stream that names them does.
    let uris = ["bad:1", "x://2", "bad:2", "x://3", "x://4", "bad:3"];
    let answers = futures_util::future::join_all(uris.map(|uri| follow(&world, context, uri))).await;
    for (uri, answer) in uris.iter().zip(&answers) {
        if uri.starts_with("bad:") {
            assert!(error(answer)["message"].as_str().unwrap().contains("not that one"), "{uri}: {answer:?}");
        } else {
            assert!(is_fine(answer), "{uri}: {answer:?}");
        }
    }
    within("the first to be left", first.closed()).await;
    let whole = set(["x://1", "x://2", "x://3", "x://4"]);
    let (write, id) = within("all that can be followed", async {
        loop {
            let (write, id, uris) = opened.recv().await.unwrap();
            if uris == whole {
                return (write, id);
            }
        }
    })
    .await;
    let mut notices = world.upstreams.notices().remove(0);
    write.send(news("notifications/resources/updated", &id, json!({ "uri": "x://1" }))).unwrap();
    assert_eq!(within("news", notices.recv()).await.unwrap().context, Some(context));
    assert!(!write.is_closed());
    world.upstreams.stop().await;
}

// Bug: a subscription that failed while its server was away was given up for those who had it, when another one wished for it.
#[tokio::test]
async fn a_resource_that_others_follow_is_kept_where_one_more_who_wants_it_is_refused() {
    let is_away = Arc::new(AtomicBool::new(false));
    let (remote, world, mut opened) = picky(&is_away).await;
    let context = ContextId::new();
    assert!(is_fine(&follow(&world, context, "x://1").await));
    let (write, _, _) = within("a subscription", opened.recv()).await.unwrap();
    is_away.store(true, Ordering::SeqCst);
    write.send(broken()).unwrap();
    until("a try that fails", || remote.messages("subscriptions/listen").iter().filter_map(asked).count() == 2).await;
    until_refused(&world, context, "x://1").await;
    is_away.store(false, Ordering::SeqCst);
    let (_write, _, uris) = within("another one", opened.recv()).await.unwrap();
    assert_eq!(uris, set(["x://1"]));
    world.upstreams.stop().await;
}

async fn until_refused(world: &World, context: ContextId, uri: &str) {
    within("a refusal", async { while is_fine(&follow(world, context, uri).await) {} }).await;
}

// Bug: of two who waited for one resource the first one took it with him when he left, and the second one was never answered.
#[tokio::test]
async fn a_resource_stays_wanted_when_the_first_of_two_who_wait_for_it_leaves() {
    let gate = tokio::sync::watch::Sender::new(false);
    let open = gate.clone();
    let (remote, world) = peer(move |seen| {
        let mut open = open.subscribe();
        async move {
            if asked(&seen)?.contains("slow://1") {
                open.wait_for(|is_open| *is_open).await.unwrap();
            }
            let (write, response) = listening(&seen);
            tokio::spawn(async move { write.closed().await });
            Some(response)
        }
    })
    .await;
    let context = ContextId::new();
    let mut slow = Box::pin(follow(&world, context, "slow://1"));
    let is_asked = || remote.messages("subscriptions/listen").iter().filter_map(asked).count() > 0;
    let busy = until("the slow one to be asked for", is_asked);
    tokio::select! {
        biased;
        answer = &mut slow => panic!("{answer:?}"),
        () = busy => {}
    }
    let mut first = Box::pin(follow(&world, context, "x://2"));
    let mut second = Box::pin(follow(&world, context, "x://2"));
    // Enough turns for both to wait for it, in this order.
    for _ in 0..100 {
        assert!(futures_util::poll!(&mut first).is_pending() && futures_util::poll!(&mut second).is_pending());
        tokio::task::yield_now().await;
    }
    drop(first);
    gate.send_replace(true);
    let (slow, second) = tokio::join!(slow, second);
    assert!(is_fine(&slow) && is_fine(&second), "{slow:?}, {second:?}");
    world.upstreams.stop().await;
}

fn tool_with(header: &str) -> Value {
    json!({ "tools": [{ "name": "t", "inputSchema": { "type": "object", "properties": {
        "region": { "type": "string", "x-mcp-header": header } } } }] })
}

/// A server that changes the header of its tool's argument without a word, and refuses calls without the new one.
async fn changing(names: &'static [&'static str]) -> (Remote, World, Arc<AtomicUsize>) {
    let at = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&at);
    let (remote, world) = peer(move |seen| {
        let name = names[now.load(Ordering::SeqCst)];
        async move {
            let header = format!("mcp-param-{}", name.to_lowercase());
            match seen.rpc() {
                "tools/list" => Some(whole(&seen.response(&tool_with(name)))),
                "tools/call" if seen.header(&header).is_none() => Some(stale(&seen)),
                _ => None,
            }
        }
    })
    .await;
    (remote, world, at)
}

fn stale(seen: &Seen) -> Response {
    refused(seen, 400, &json!({ "code": -32020, "message": "a header is missing" }))
}

// Bug: a call that was refused for its headers (-32020) failed, and so did all others until the list was read for another reason.
#[tokio::test]
async fn a_call_that_is_refused_for_stale_headers_goes_out_again_with_those_of_now() {
    let (remote, world, at) = changing(&["Old", "New"]).await;
    at.store(1, Ordering::SeqCst);
    let answer = world.answer(ContextId::new(), "t", r#"{"region":"north"}"#).await;
    assert_eq!(text(&answer), "fine");
    let calls = remote.messages("tools/call");
    assert_eq!(calls.len(), 2);
    assert_eq!((calls[0].header("mcp-param-old"), calls[0].header("mcp-param-new")), (Some("north"), None));
    assert_eq!((calls[1].header("mcp-param-old"), calls[1].header("mcp-param-new")), (None, Some("north")));
    assert_ne!(calls[0].body["id"], calls[1].body["id"]);
    let token = |call: &Seen| call.body["params"]["_meta"]["progressToken"].clone();
    assert_eq!(token(&calls[0]), token(&calls[1]));
    // Others have the new list by then.
    until("the list to be read", || {
        world.upstreams.tool("t").is_some_and(|tool| tool.param_headers[0].header == "mcp-param-new")
    })
    .await;
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_call_that_is_refused_for_headers_which_are_those_of_now_is_not_repeated() {
    let (remote, world) = peer(async |seen| (seen.rpc() == "tools/call").then(|| stale(&seen))).await;
    let answer = world.answer(ContextId::new(), "t", "{}").await;
    assert_eq!(error(&answer)["code"], -32020);
    assert_eq!(remote.messages("tools/call").len(), 1);
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_call_whose_headers_change_all_the_time_goes_out_twice() {
    let at = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&at);
    let (remote, world) = peer(move |seen| {
        let name = format!("h{}", now.fetch_add(1, Ordering::SeqCst));
        async move {
            match seen.rpc() {
                "tools/list" => Some(whole(&seen.response(&tool_with(&name)))),
                "tools/call" => Some(stale(&seen)),
                _ => None,
            }
        }
    })
    .await;
    let answer = world.answer(ContextId::new(), "t", r#"{"region":"x"}"#).await;
    assert_eq!(error(&answer)["code"], -32020);
    assert_eq!(remote.messages("tools/call").len(), 2);
    world.upstreams.stop().await;
}

// Each refusal counted as a failure of what is followed, which was then taken up again a minute after a break.
#[tokio::test]
async fn many_that_are_refused_do_not_delay_what_is_followed_after_a_break() {
    let (_remote, world, mut opened) = picky(&Arc::default()).await;
    let context = ContextId::new();
    assert!(is_fine(&follow(&world, context, "x://1").await));
    let uris: Vec<_> = (0..12).map(|n| format!("bad:{n}")).collect();
    futures_util::future::join_all(uris.iter().map(|uri| follow(&world, context, uri))).await;
    let mut last = None;
    while let Ok(next) = opened.try_recv() {
        last = Some(next);
    }
    let (write, _, uris) = last.expect("it is followed");
    assert_eq!(uris, set(["x://1"]));
    // It may have been left for the same again.
    drop(write.send(broken()));
    drop(write);
    let (_write, _, uris) = within("another one", opened.recv()).await.unwrap();
    assert_eq!(uris, set(["x://1"]));
    world.upstreams.stop().await;
}
