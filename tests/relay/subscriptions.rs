//! Subscriptions at upstreams.

use std::time::Duration;

use serde_json::json;
use taskhold::domain::clock::{ManualClock, SystemClock, Timestamp};
use taskhold::domain::ids::ContextId;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::upstream::{UpstreamConfig, Upstreams};
use taskhold::executor::{Attempt, Executor, Relay, Said, Wanted};
use tokio_util::sync::CancellationToken;

use super::{heard, library, recording};
use crate::http::harness::{Gateway, engine_rules};
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::host::listener;
use crate::upstream::harness::{settings, until, within};

contract! {
    a_subscription_lives_as_long_as_its_session,
    what_a_dead_node_followed_goes_on_at_another,
    a_subscription_that_is_refused_when_made_again_is_kept,
}

const RESOURCES: &str = r#"{"resources":{"subscribe":true}}"#;
const LISTS: [(&str, &str); 2] = [
    ("resources/list", r#""result":{"resources":[{"uri":"x://1","name":"1"},{"uri":"x://2","name":"2"}]}"#),
    ("resources/templates/list", r#""result":{"resourceTemplates":[]}"#),
];

// req: HTTP-16
async fn a_subscription_lives_as_long_as_its_session(database: TestDatabase) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let watched = recording("u", log.path(), RESOURCES, &LISTS);
    let gateway = Gateway::with(database, settings(), vec![watched], engine_rules()).await;
    let (first, second) = (gateway.client("owner").await, gateway.client("owner").await);
    let uri = json!({ "uri": "x://1" });
    let uris = |method: &str| -> Vec<serde_json::Value> {
        heard(log.path(), method).into_iter().map(|params| params["uri"].clone()).collect()
    };
    for client in [&first, &second] {
        assert_eq!(client.request("resources/subscribe", uri.clone()).await.outcome(), r#"{"result":{}}"#);
    }
    // The first leaves, the second stays.
    assert_eq!(first.request("resources/unsubscribe", uri.clone()).await.outcome(), r#"{"result":{}}"#);
    gateway.front.engine.tend_subscriptions_once().await.unwrap();
    assert!(uris("resources/unsubscribe").is_empty());
    let other = gateway.client("stranger").await;
    assert_eq!(other.request("resources/unsubscribe", uri).await.outcome(), r#"{"result":{}}"#);
    assert!(uris("resources/unsubscribe").is_empty(), "nobody ends what another has");
    second.request("resources/subscribe", json!({ "uri": "x://2" })).await.result();
    assert_eq!(second.request("resources/unsubscribe", json!({ "uri": "x://2" })).await.outcome(), r#"{"result":{}}"#);
    assert_eq!(uris("resources/unsubscribe"), ["x://2"]);
    for n in [5, 6] {
        let answer = second.request("resources/subscribe", json!({ "uri": format!("x://{n}") })).await.json();
        let limit = json!({ "reason": "limit_reached", "limit": "limits.subscriptions", "most": 2 });
        if n == 6 {
            for (key, value) in limit.as_object().unwrap() {
                assert_eq!(answer["error"]["data"][key], *value, "{answer}");
            }
        }
    }
    second.request("resources/unsubscribe", json!({ "uri": "x://5" })).await.result();
    let ended = second.build(reqwest::Method::DELETE).send().await.unwrap();
    assert!(ended.status().is_success());
    gateway.front.engine.tend_subscriptions_once().await.unwrap();
    until("the upstream to be told", || uris("resources/unsubscribe") == ["x://2", "x://5", "x://1"]).await;
    gateway.upstreams.stop().await;
}

#[tokio::test]
async fn what_an_upstream_refuses_is_not_subscribed_to() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let refusal = r#""error":{"code":-32050,"message":"not this one"}"#;
    let answers = [LISTS[0], LISTS[1], ("resources/subscribe", refusal)];
    let database = TestDatabase::new(Backend::Sqlite).await;
    let watched = recording("u", log.path(), RESOURCES, &answers);
    let gateway = Gateway::with(database, settings(), vec![watched], engine_rules()).await;
    let client = gateway.client("owner").await;
    let answer = client.request("resources/subscribe", json!({ "uri": "x://1" })).await;
    assert_eq!(answer.error(), (-32050, "not this one".to_owned()));
    let session = client.session.clone().unwrap();
    client.build(reqwest::Method::DELETE).send().await.unwrap();
    assert_eq!(gateway.front.engine.tend_subscriptions_once().await.unwrap(), 0, "{session} left no row");
    let long = json!({ "uri": format!("x://{}", "y".repeat(2000)) });
    let (code, message) = gateway.client("owner").await.request("resources/subscribe", long).await.error();
    assert!(code == -32602 && message.contains("2004") && message.contains("2000"), "{code} {message}");
    gateway.upstreams.stop().await;
}

async fn relay(upstreams: &Upstreams, context: ContextId, wanted: Wanted, uri: &str) -> Attempt {
    let params = RawJson::from_value(&json!({ "uri": uri }));
    let relay =
        Relay { context, upstreams: vec!["u".to_owned()], wanted, params, capabilities: RawJson::trusted("{}") };
    within("an answer", upstreams.relay(relay, listener().0, CancellationToken::new())).await
}

fn is_empty(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Answered(Outcome::Result { json, .. }) if json.as_str() == "{}")
}

#[tokio::test]
async fn a_link_with_a_subscription_does_not_become_idle_and_is_started_again() {
    let (log, pids) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let mut config = recording("u", log.path(), RESOURCES, &LISTS);
    config.command[2] = format!("echo $$ >> {}; {}", pids.path().display(), config.command[2]);
    let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
    let database = TestDatabase::new(Backend::Sqlite).await;
    let upstreams = Upstreams::start(vec![config], settings(), database.store.system(), clock.clone()).await;
    within("the upstreams to settle", upstreams.settled()).await;
    let (follows, reads) = (ContextId::new(), ContextId::new());
    let uri = || "x://1".to_owned();
    assert!(is_empty(&relay(&upstreams, follows, Wanted::Subscription(uri()), "x://1").await));
    assert!(is_empty(&relay(&upstreams, reads, Wanted::Contents(uri()), "x://1").await));
    let started = || -> Vec<i32> {
        std::fs::read_to_string(pids.path()).unwrap().lines().map(|pid| pid.parse().unwrap()).collect()
    };
    let [_, with, without] = started()[..] else { panic!("{:?}", started()) };
    clock.advance(Duration::from_secs(61));
    let is_running = crate::upstream::harness::is_running;
    until("the one without to end", || !is_running(without)).await;
    assert!(is_running(with));
    rustix::process::kill_process(rustix::process::Pid::from_raw(with).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    let subscribed = || heard(log.path(), "resources/subscribe").len();
    until("it to be subscribed again", || subscribed() == 2).await;
    upstreams.keep_subscriptions(&std::collections::HashSet::new());
    until("it to be given up", || heard(log.path(), "resources/unsubscribe").len() == 1).await;
    upstreams.stop().await;
}

#[tokio::test]
async fn an_update_is_told_with_the_context_that_subscribed() {
    for shared in [false, true] {
        let config = UpstreamConfig { shared, ..library("u") };
        let database = TestDatabase::new(Backend::Sqlite).await;
        let store = database.store.system();
        let upstreams = Upstreams::start(vec![config], settings(), store, SystemClock::new()).await;
        within("the upstreams to settle", upstreams.settled()).await;
        let mut notices = upstreams.notices().remove(0);
        let (mine, other) = (ContextId::new(), ContextId::new());
        let uri = "test://watched-resource";
        let subscribe = || Wanted::Subscription(uri.to_owned());
        for context in [mine, other] {
            assert!(is_empty(&relay(&upstreams, context, subscribe(), uri).await));
        }
        let end = Wanted::EndOfSubscription(uri.to_owned());
        assert!(is_empty(&relay(&upstreams, other, end, uri).await));
        let call = taskhold::executor::Call {
            context: mine,
            upstream: "u".to_owned(),
            upstream_tool: "touch_resource".to_owned(),
            params: RawJson::from_value(&json!({ "name": "touch_resource", "arguments": { "uri": uri } })),
            capabilities: RawJson::trusted("{}"),
            attempt: 1,
            is_task: false,
            resume: None,
        };
        let touched = upstreams.run(call, listener().0, CancellationToken::new());
        assert!(matches!(within("the call", touched).await, Attempt::Answered(Outcome::Result { .. })));
        let notice = within("a notice", notices.recv()).await.unwrap();
        assert_eq!((notice.upstream.as_str(), notice.context), ("u", (!shared).then_some(mine)));
        let Said::ResourceUpdated(params) = &notice.said else { panic!("{notice:?}") };
        assert_eq!(params.as_str(), format!(r#"{{"uri":"{uri}"}}"#));
        upstreams.stop().await;
    }
}

#[tokio::test]
async fn a_link_that_is_only_subscribed_makes_room_for_a_call_and_comes_back() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let config = UpstreamConfig { max_links: 1, ..recording("u", log.path(), RESOURCES, &LISTS) };
    let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
    let database = TestDatabase::new(Backend::Sqlite).await;
    let upstreams = Upstreams::start(vec![config], settings(), database.store.system(), clock.clone()).await;
    within("the upstreams to settle", upstreams.settled()).await;
    let uri = || "x://1".to_owned();
    assert!(is_empty(&relay(&upstreams, ContextId::new(), Wanted::Subscription(uri()), "x://1").await));
    assert!(is_empty(&relay(&upstreams, ContextId::new(), Wanted::Contents(uri()), "x://1").await));
    let subscribed = || heard(log.path(), "resources/subscribe").len();
    assert_eq!(subscribed(), 1);
    clock.advance(Duration::from_secs(61));
    until("it to be subscribed again", || subscribed() == 2).await;
    upstreams.stop().await;
}

#[tokio::test]
async fn no_call_waits_for_subscriptions_that_are_made_anew() {
    let (log, pids) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let gate = tempfile::tempdir().unwrap();
    let shut = gate.path().join("shut");
    let answers = [LISTS[0], LISTS[1], ("resources/subscribe", r#""result":{"_meta":{}}"#)];
    let mut config = recording("u", log.path(), RESOURCES, &answers);
    let say = r#"say '"result":{"_meta":{}}'"#;
    assert!(config.command[2].contains(say));
    let script = config.command[2].replace(say, &format!("[ -e {} ] || {say}", shut.display()));
    config.command[2] = format!("echo $$ >> {}; {script}", pids.path().display());
    let database = TestDatabase::new(Backend::Sqlite).await;
    let upstreams = Upstreams::start(vec![config], settings(), database.store.system(), SystemClock::new()).await;
    within("the upstreams to settle", upstreams.settled()).await;
    let context = ContextId::new();
    let uris: Vec<_> = (0..10).map(|n| format!("x://{n}")).collect();
    for uri in &uris {
        let subscribed = relay(&upstreams, context, Wanted::Subscription(uri.clone()), uri).await;
        assert!(matches!(subscribed, Attempt::Answered(Outcome::Result { .. })));
    }
    std::fs::write(&shut, "").unwrap();
    let started = std::fs::read_to_string(pids.path()).unwrap();
    let pid: i32 = started.lines().last().unwrap().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    until("it to end", || !crate::upstream::harness::is_running(pid)).await;
    // Each of them is waited for longer than the test waits for this, if one after the other.
    let mut read = relay(&upstreams, context, Wanted::Contents("x://1".to_owned()), "x://1").await;
    if !is_empty(&read) {
        // It may have been sent before the end was noticed.
        read = relay(&upstreams, context, Wanted::Contents("x://1".to_owned()), "x://1").await;
    }
    assert!(is_empty(&read), "{read:?}");
    until("the first of them", || heard(log.path(), "resources/subscribe").len() > uris.len()).await;
    upstreams.stop().await;
}

async fn what_a_dead_node_followed_goes_on_at_another(database: TestDatabase) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let config = || vec![recording("u", log.path(), RESOURCES, &LISTS)];
    let first = Gateway::with(database, settings(), config(), engine_rules()).await;
    let client = first.client("owner").await;
    client.request("resources/subscribe", json!({ "uri": "x://1" })).await.result();
    first.upstreams.stop().await;
    let Gateway { database, front, .. } = first;
    let dead = front.engine.node();
    drop(front);
    let store = database.store.system();
    let upstreams = Upstreams::start(config(), settings(), store.clone(), SystemClock::new()).await;
    within("the upstreams to settle", upstreams.settled()).await;
    let second = Gateway::before(database, upstreams, engine_rules()).await;
    assert_eq!(store.subscriptions_at(dead).await.unwrap().len(), 1);
    store.retire_node(dead).await.unwrap();
    for _ in 0..4 {
        second.front.engine.beat_once().await.unwrap();
    }
    second.front.engine.recover_once().await.unwrap();
    // Nobody opens a stream.
    until("it to be subscribed again", || heard(log.path(), "resources/subscribe").len() == 2).await;
    assert_eq!(store.subscriptions_at(second.front.engine.node()).await.unwrap().len(), 1);
    second.upstreams.stop().await;
}

async fn a_subscription_that_is_refused_when_made_again_is_kept(database: TestDatabase) {
    let (log, gate) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
    let shut = gate.path().join("shut");
    let answers = [LISTS[0], LISTS[1], ("resources/subscribe", r#""result":{"_meta":{}}"#)];
    let mut config = recording("u", log.path(), RESOURCES, &answers);
    let say = r#"say '"result":{"_meta":{}}'"#;
    assert!(config.command[2].contains(say));
    let refuse = r#"say '"error":{"code":-32050,"message":"not now"}'"#;
    let either = format!("if [ -e {} ]; then {refuse}; else {say}; fi", shut.display());
    config.command[2] = config.command[2].replace(say, &either);
    let gateway = Gateway::with(database, settings(), vec![config], engine_rules()).await;
    let client = gateway.client("owner").await;
    let uri = json!({ "uri": "x://1" });
    client.request("resources/subscribe", uri.clone()).await.result();
    std::fs::write(&shut, "").unwrap();
    assert_eq!(client.request("resources/subscribe", uri).await.error(), (-32050, "not now".to_owned()));
    let rows =
        || async { gateway.database.store.system().subscriptions_at(gateway.front.engine.node()).await.unwrap() };
    assert_eq!(rows().await.len(), 1);
    gateway.front.engine.tend_subscriptions_once().await.unwrap();
    assert!(heard(log.path(), "resources/unsubscribe").is_empty());
    // What has a row and is not followed is followed again.
    std::fs::remove_file(&shut).unwrap();
    gateway.upstreams.keep_subscriptions(&std::collections::HashSet::new());
    let before = heard(log.path(), "resources/subscribe").len();
    gateway.front.engine.tend_subscriptions_once().await.unwrap();
    assert_eq!(heard(log.path(), "resources/subscribe").len(), before + 1);
    gateway.upstreams.stop().await;
}
