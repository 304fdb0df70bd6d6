//! The session with an upstream by HTTP: how it opens, what it keeps, how it is lost and ended.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use serde_json::json;
use taskhold::domain::ids::ContextId;
use taskhold::executor::Attempt;
use taskhold::executor::upstream::{Endpoint, UpstreamConfig};

use super::harness::{World, settings, text, until};
use super::http_calls::world;
use crate::support::remote::{Remote, Sessions, events, scenario, status, stream, whole};

// req: EXEC-17
#[tokio::test]
async fn a_session_opens_in_order_and_carries_its_headers_to_its_end() {
    for version in ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"] {
        let remote = Remote::start(scenario(move |seen| async move {
            (seen.rpc() == "initialize").then(|| seen.initialized_as(&json!(version), Some("s!~")))
        }))
        .await;
        let world = world(&remote).await;
        assert_eq!(text(&world.answer(ContextId::new(), "t", "{}").await), "fine");
        until("the streams to be tried", || remote.requests(&Method::GET).len() == 2).await;
        world.upstreams.stop().await;
        let seen = remote.seen();
        let order = |what: &dyn Fn(&crate::support::remote::Seen) -> bool| seen.iter().position(what).unwrap();
        let opened = order(&|seen| seen.rpc() == "initialize");
        let told = order(&|seen| seen.rpc() == "notifications/initialized");
        let listened = order(&|seen| seen.method == Method::GET);
        assert!(opened < told && told < listened && told < order(&|seen| seen.rpc() == "tools/list"));
        assert_eq!(remote.requests(&Method::DELETE).len(), 2, "both links end their sessions");
        for seen in &seen {
            let first = seen.rpc() == "initialize";
            assert_eq!(seen.session(), (!first).then_some("s!~"), "{seen:?}");
            assert_eq!(seen.header("mcp-protocol-version"), (!first).then_some(version), "{seen:?}");
            if seen.method == Method::POST {
                assert_eq!(seen.header("accept"), Some("application/json, text/event-stream"));
                assert_eq!(seen.header("content-type"), Some("application/json"));
            }
        }
        assert_eq!(seen[0].body["params"]["protocolVersion"], "2025-11-25");
    }
}

// req: EXEC-17
#[tokio::test]
async fn a_version_that_is_not_spoken_ends_the_link_with_a_clear_error() {
    let remote = Remote::start(scenario(async |seen| {
        (seen.rpc() == "initialize").then(|| seen.initialized_as(&json!("2031-01-01"), Some("s")))
    }))
    .await;
    let world = world(&remote).await;
    let problem = world.upstreams.status().remove(0).1.problem.unwrap();
    assert!(problem.contains("2031-01-01") && problem.contains("2025-11-25"), "{problem}");
    assert!(remote.seen().iter().all(|seen| seen.rpc() == "initialize" || seen.method == Method::DELETE));
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_server_without_sessions_is_served_without() {
    let remote = Remote::start(scenario(async |seen| {
        (seen.rpc() == "initialize").then(|| seen.initialized_as(&json!("2025-11-25"), None))
    }))
    .await;
    let world = world(&remote).await;
    assert_eq!(text(&world.answer(ContextId::new(), "t", "{}").await), "fine");
    world.upstreams.stop().await;
    assert!(remote.seen().iter().all(|seen| seen.session().is_none() && seen.method != Method::DELETE));
}

// req: EXEC-17
#[tokio::test]
async fn a_session_that_is_forgotten_is_opened_anew_and_the_call_goes_on() {
    for refusal in [404, 400] {
        let sessions = Sessions::default();
        let remote = Remote::start(scenario({
            let sessions = sessions.clone();
            move |seen| std::future::ready(sessions.answer(&seen, refusal))
        }))
        .await;
        let world = world(&remote).await;
        let context = ContextId::new();
        assert_eq!(text(&world.answer(context, "t", "{}").await), "fine");
        sessions.forget();
        let began = Instant::now();
        assert_eq!(text(&world.answer(context, "t", r#"{"n":2}"#).await), "fine");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let second: Vec<_> = remote.messages("tools/call").split_off(1);
        assert_eq!(second.len(), 2, "once in the forgotten session, once in the new one");
        assert_ne!(second[0].session(), second[1].session());
        let anew = remote.messages("initialize").pop().unwrap();
        assert_eq!(anew.session(), None);
        world.upstreams.stop().await;
    }
}

#[tokio::test]
async fn sessions_that_never_hold_are_not_opened_for_ever() {
    let remote = Remote::start(scenario(async |seen| seen.is_call().then(|| status(404, "")))).await;
    let world = world(&remote).await;
    let Attempt::NotDispatched { detail } = world.answer(ContextId::new(), "t", "{}").await else { panic!("unsent") };
    assert!(detail.contains("does not know its session"), "{detail}");
    assert_eq!(remote.messages("tools/call").len(), 2);
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_forgotten_session_leaves_the_answers_of_its_running_calls() {
    let server_known: Arc<AtomicBool> = Arc::new(AtomicBool::new(true));
    let (say, response) = stream();
    let held = Arc::new(Mutex::new(Some(response)));
    let remote = Remote::start(scenario({
        let known = Arc::clone(&server_known);
        move |seen| {
            let (known, held) = (Arc::clone(&known), Arc::clone(&held));
            async move {
                if seen.rpc() == "initialize" {
                    known.store(true, Ordering::SeqCst);
                } else if !known.load(Ordering::SeqCst) {
                    return Some(status(404, ""));
                } else if seen.is_call() && seen.arguments()["how"] == "held" {
                    return held.lock().unwrap().take();
                }
                None
            }
        }
    }))
    .await;
    let world = World::new(vec![UpstreamConfig { max_links: 1, ..UpstreamConfig::at("remote", &remote.url) }]).await;
    let context = ContextId::new();
    let running = world.call(context, "t", r#"{"how":"held"}"#);
    until("the call to arrive", || remote.messages("tools/call").len() == 1).await;
    server_known.store(false, Ordering::SeqCst);
    assert_eq!(text(&world.answer(context, "t", "{}").await), "fine", "a new session takes the place of the old one");
    let call = remote.messages("tools/call").remove(0);
    say.send(Ok(crate::support::remote::event(&call.text("all the same")))).unwrap();
    assert_eq!(text(&running.end().await), "all the same");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn a_redirect_is_followed_within_the_origin_only() {
    let elsewhere = Remote::start(scenario(async |_| None)).await;
    let target = elsewhere.url.clone();
    let remote = Remote::start(scenario(move |seen| {
        let target = target.clone();
        async move {
            let to = |code, place: &str| Some((code, [("location", place.to_owned())]).into_response());
            match seen.path.as_str() {
                "/home" => to(StatusCode::TEMPORARY_REDIRECT, "/mcp"),
                "/away" => to(StatusCode::PERMANENT_REDIRECT, &target),
                "/loop" => to(StatusCode::TEMPORARY_REDIRECT, "/loop"),
                "/get" => to(StatusCode::SEE_OTHER, "/mcp"),
                _ => None,
            }
        }
    }))
    .await;
    let at = |path: &str| {
        let url = format!("http://{}/{path}", remote.address);
        let secret = vec![("authorization".to_owned(), "Bearer s3cret".into())];
        let endpoint = Endpoint { headers: secret, ..Endpoint::new(url) };
        UpstreamConfig { endpoint: Some(endpoint), prefix: true, ..UpstreamConfig::new(path, Vec::new()) }
    };
    let world = World::new(vec![at("home"), at("away"), at("loop"), at("get")]).await;
    assert_eq!(text(&world.answer(ContextId::new(), "home__t", "{}").await), "fine");
    for (name, status) in world.upstreams.status() {
        let problem = status.problem.unwrap_or_default();
        assert_eq!(status.connected, name == "home", "{name}: {problem}");
        assert!(name == "home" || problem.contains("it redirects to http://127.0.0.1:"), "{name}: {problem}");
        assert!(!problem.contains("/mcp"), "{problem}");
    }
    assert!(elsewhere.seen().is_empty(), "no credential goes elsewhere");
    world.upstreams.stop().await;
}

// req: EXEC-03
#[tokio::test]
async fn what_the_upstream_says_by_itself_comes_on_a_stream_that_is_opened_again() {
    let lists = Arc::new(AtomicUsize::new(0));
    let changed = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
    let remote = Remote::start(scenario({
        let lists = Arc::clone(&lists);
        move |seen| {
            let lists = Arc::clone(&lists);
            async move {
                if seen.rpc() == "tools/list" {
                    let names: &[&str] = if lists.fetch_add(1, Ordering::SeqCst) == 0 { &["t"] } else { &["t", "new"] };
                    return Some(seen.tools(names));
                }
                if seen.method != Method::GET {
                    return None;
                }
                Some(match seen.header("last-event-id") {
                    None => events("id: one\nretry: 30\ndata:\n\n"),
                    Some("one") => events(format!("id: two\n{changed}")),
                    _ => status(405, ""),
                })
            }
        }
    }))
    .await;
    let world = world(&remote).await;
    until("the new tool", || world.tool_names() == ["t", "new"]).await;
    let ids: Vec<_> =
        remote.requests(&Method::GET).iter().map(|seen| seen.header("last-event-id").map(str::to_owned)).collect();
    assert_eq!(ids[..2], [None, Some("one".to_owned())]);
    world.upstreams.stop().await;
}

#[tokio::test]
async fn configured_headers_go_with_every_request() {
    let remote = Remote::start(scenario(async |_| None)).await;
    let endpoint = Endpoint {
        headers: vec![("x-key".to_owned(), "k ü".into())],
        ..Endpoint::new(remote.url.replace("http://", "http://user:pass@") + "?q=1")
    };
    let world =
        World::new(vec![UpstreamConfig { endpoint: Some(endpoint), ..UpstreamConfig::new("remote", Vec::new()) }])
            .await;
    assert_eq!(text(&world.answer(ContextId::new(), "t", "{}").await), "fine");
    world.upstreams.stop().await;
    let seen = remote.seen();
    assert!(
        [Method::GET, Method::POST, Method::DELETE].iter().all(|method| seen.iter().any(|seen| seen.method == *method))
    );
    for seen in seen {
        assert_eq!(seen.headers["x-key"].as_bytes(), "k ü".as_bytes(), "{seen:?}");
        assert_eq!(seen.header("authorization"), Some("Basic dXNlcjpwYXNz"));
    }
}

#[tokio::test]
async fn a_server_that_hangs_at_initialize_is_given_up_and_tried_again() {
    let hangs = Arc::new(AtomicBool::new(true));
    let remote = Remote::hanging(&hangs).await;
    let mut hasty = settings();
    hasty.start_timeout = Duration::from_millis(300);
    let world = World::with(hasty, vec![UpstreamConfig::at("remote", &remote.url)]).await;
    let problem = world.upstreams.status().remove(0).1.problem.unwrap();
    assert!(problem.contains("did not answer initialize"), "{problem}");
    hangs.store(false, Ordering::SeqCst);
    until("its tool", || world.tool_names() == ["t"]).await;
    assert!(remote.messages("notifications/cancelled").is_empty(), "initialize is never cancelled");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn cookies_stay_with_their_link() {
    let remote = Remote::start(scenario(async |seen| {
        let is_call = seen.is_call();
        (seen.rpc() == "initialize")
            .then(|| {
                let mut response = seen.initialized(&format!("s{}", seen.number));
                let cookie = format!("replica={}; Path=/; HttpOnly", seen.number);
                response.headers_mut().append("set-cookie", cookie.parse().unwrap());
                response.headers_mut().append("set-cookie", "elsewhere=1; Domain=example.com".parse().unwrap());
                response
            })
            .or_else(|| is_call.then(|| whole(&seen.text(seen.header("cookie").unwrap_or("none")))))
    }))
    .await;
    let world = world(&remote).await;
    let mut found = HashMap::new();
    for context in [ContextId::new(), ContextId::new()] {
        let cookie = text(&world.answer(context, "t", "{}").await);
        assert_eq!(text(&world.answer(context, "t", "{}").await), cookie);
        assert!(cookie.starts_with("replica=") && !cookie.contains("elsewhere"), "{cookie}");
        found.insert(context, cookie);
    }
    assert_eq!(found.values().collect::<HashSet<_>>().len(), 2, "{found:?}");
    world.upstreams.stop().await;
}
