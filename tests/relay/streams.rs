//! What upstreams say of their own accord, and which sessions hear it.

use std::time::Duration;

use serde_json::{Value, json};
use taskhold::domain::clock::SystemClock;
use taskhold::executor::upstream::Upstreams;

use super::library;
use crate::http::harness::{Gateway, engine_rules};
use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::upstream::harness::{settings, within};

contract! {
    an_update_reaches_the_session_that_subscribed_wherever_its_stream_is,
    a_subscription_goes_on_after_a_restart,
}

const WATCHED: &str = "test://watched-resource";
const UPDATED: &str = "notifications/resources/updated";
const LOG: &str = "notifications/message";
/// Long enough for what must not come.
const QUIET: Duration = Duration::from_millis(700);

async fn gateway(database: TestDatabase) -> Gateway {
    Gateway::with(database, settings(), vec![library("library")], engine_rules()).await
}

async fn subscribe(client: &Client) {
    let answer = client.request("resources/subscribe", json!({ "uri": WATCHED })).await;
    assert_eq!(answer.outcome(), r#"{"result":{}}"#);
}

async fn touch(client: &Client) {
    let result = client.call("touch_resource", json!({ "uri": WATCHED })).await.result();
    assert_eq!(result["content"][0]["text"], format!("{WATCHED} was touched"));
}

fn count(messages: &[Value], method: &str) -> usize {
    messages.iter().filter(|message| message["method"] == method).count()
}

// req: EXEC-06
async fn an_update_reaches_the_session_that_subscribed_wherever_its_stream_is(database: TestDatabase) {
    let gateway = gateway(database).await;
    let other = gateway.another_node().await;
    let (client, twin, stranger) =
        (gateway.client("owner").await, gateway.client("owner").await, gateway.client("stranger").await);
    let mut there = Events::of_session(&client.at(&other.url)).await;
    let mut unsubscribed = Events::of_session(&twin).await;
    let mut strange = Events::of_session(&stranger).await;
    subscribe(&client).await;
    subscribe(&stranger).await;
    touch(&twin).await;
    assert_eq!(there.until(UPDATED).await["params"], json!({ "uri": WATCHED }));
    subscribe(&twin).await;
    touch(&client).await;
    assert_eq!(unsubscribed.until(UPDATED).await["params"], json!({ "uri": WATCHED }));
    there.until(UPDATED).await;
    let ended = client.request("resources/unsubscribe", json!({ "uri": WATCHED })).await;
    assert_eq!(ended.outcome(), r#"{"result":{}}"#);
    touch(&client).await;
    unsubscribed.until(UPDATED).await;
    assert_eq!(count(&there.within(QUIET).await, UPDATED), 0, "it was taken back");
    assert_eq!(count(&strange.within(QUIET).await, UPDATED), 0, "each context has an upstream of its own");
    gateway.upstreams.stop().await;
}

async fn a_subscription_goes_on_after_a_restart(database: TestDatabase) {
    let first = gateway(database).await;
    let client = first.client("owner").await;
    subscribe(&client).await;
    first.upstreams.stop().await;
    let Gateway { database, front, names, .. } = first;
    drop(front);
    // Another node with links of its own, as after a restart.
    let store = database.store.system();
    let upstreams = Upstreams::start(vec![library("library")], settings(), store, SystemClock::new()).await;
    within("the upstreams to settle", upstreams.settled()).await;
    let second = Gateway { names, ..Gateway::before(database, upstreams, engine_rules()).await };
    let client = client.at(&second.front.url);
    let mut events = Events::of_session(&client).await;
    let told = async {
        // It is subscribed again in the background, so the first touches may come too early.
        loop {
            touch(&client).await;
            if count(&events.within(Duration::from_millis(200)).await, UPDATED) > 0 {
                return;
            }
        }
    };
    within("an update", told).await;
    second.upstreams.stop().await;
}

async fn level(client: &Client, level: &str) {
    let answer = client.request("logging/setLevel", json!({ "level": level })).await;
    assert_eq!(answer.outcome(), r#"{"result":{}}"#);
}

// The legacy half of MOD-14.
// req: EXEC-06, NOTE-13
#[tokio::test]
async fn log_messages_reach_a_session_from_its_level_on() {
    let gateway = gateway(TestDatabase::new(Backend::Sqlite).await).await;
    let other = gateway.another_node().await;
    let (quiet, curious) = (gateway.client("owner").await, gateway.client("owner").await);
    level(&quiet, "warning").await;
    level(&curious, "debug").await;
    let call = |client: &Client| client.message("tools/call", &json!({ "name": "test_tool_with_logging" }));
    let answer = quiet.send(&call(&quiet)).await;
    assert!(!answer.body.contains(LOG) && answer.result()["content"].is_array(), "{answer:?}");
    let mut stream = Events::of_request(&curious, call(&curious)).await;
    let messages = stream.rest().await;
    assert_eq!(count(&messages, LOG), 3, "{messages:?}");
    let first = messages.iter().find(|message| message["method"] == LOG).unwrap();
    assert_eq!(first["params"], json!({ "level": "info", "logger": "demo", "data": "Tool execution started" }));
    // Of a task, on the session's stream and with its id; at another node, too, which was not asked.
    let mut events = Events::of_session(&curious).await;
    let mut none = Events::of_session(&quiet.at(&other.url)).await;
    let task = curious.task("test_tool_with_logging", json!({})).await;
    let said = events.until(LOG).await;
    assert_eq!(said["params"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], task["taskId"]);
    assert_eq!(said["params"]["level"], "info");
    let task = quiet.at(&other.url).task("test_tool_with_logging", json!({})).await;
    quiet.at(&other.url).result(&task["taskId"]).await.result();
    assert_eq!(count(&none.within(QUIET).await, LOG), 0);
    // The level changes at one node and holds at the other.
    level(&quiet, "info").await;
    quiet.at(&other.url).call("test_simple_text", json!({})).await.result();
    let heard = async {
        loop {
            let task = quiet.at(&other.url).task("test_tool_with_logging", json!({})).await;
            quiet.at(&other.url).result(&task["taskId"]).await.result();
            if count(&none.within(Duration::from_millis(200)).await, LOG) > 0 {
                return;
            }
        }
    };
    within("a log message", heard).await;
    gateway.upstreams.stop().await;
}
