//! Streams of clients without a session that listen to resources.

use serde_json::{Value, json};

use super::{heard, library, recording};
use crate::http::harness::{Gateway, engine_rules};
use crate::http::modern::listen::{listen, subscription};
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::support::modern::Modern;
use crate::support::schema::Schema;
use crate::upstream::harness::{settings, until};

contract! {
    a_resource_is_followed_as_long_as_somebody_listens,
}

const WATCHED: &str = "test://watched-resource";
const UPDATED: &str = "notifications/resources/updated";
const RESOURCES: &str = r#"{"resources":{"subscribe":true,"listChanged":true}}"#;
const TEMPLATES: (&str, &str) = ("resources/templates/list", r#""result":{"resourceTemplates":[]}"#);

fn updates(uris: &[&str]) -> Value {
    json!({ "resourceSubscriptions": uris })
}

async fn touch(client: &Modern) {
    let result = client.call("touch_resource", json!({ "uri": WATCHED })).await.result();
    assert_eq!(result["content"][0]["text"], format!("{WATCHED} was touched"));
}

// req: NOTE-12 (updates)
#[tokio::test]
async fn updates_go_to_the_streams_that_asked_for_the_uri() {
    let database = TestDatabase::new(Backend::Sqlite).await;
    let gateway = Gateway::with(database, settings(), vec![library("library")], engine_rules()).await;
    let [client, stranger] = ["owner", "stranger"].map(|name| Modern::new(&gateway.front.url, name));
    let (mut hears, first) = listen(&client, json!("a"), updates(&[WATCHED, WATCHED])).await;
    assert_eq!(first["params"]["notifications"], updates(&[WATCHED]));
    let all = json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true });
    let (mut lists, _) = listen(&client, json!(2), all).await;
    let (mut strange, _) = listen(&stranger, json!(3), updates(&[WATCHED])).await;
    // A session subscribes by a request of its own.
    let (session, silent) = (gateway.client("owner").await, gateway.client("owner").await);
    let (mut told_session, mut told_nothing) = (Events::of_session(&session).await, Events::of_session(&silent).await);
    session.request("resources/subscribe", json!({ "uri": WATCHED })).await.result();
    touch(&client).await;
    assert_eq!(told_session.until(UPDATED).await["params"], json!({ "uri": WATCHED }));
    let told = hears.message().await.unwrap();
    assert_eq!((&told["method"], subscription(&told)), (&json!(UPDATED), &json!("a")));
    assert_eq!((&told["params"]["uri"], told["params"].as_object().unwrap().len()), (&json!(WATCHED), 2));
    if let Some(schema) = Schema::of_2026_07_28() {
        schema.check("ResourceUpdatedNotification", &told);
    }
    // The others end without having been told of it: each context has an upstream of its own.
    gateway.front.drain.cancel();
    assert_eq!(told_nothing.rest().await, [] as [Value; 0]);
    for other in [&mut lists, &mut strange] {
        let rest = other.rest().await;
        assert!(rest.len() == 1 && rest[0]["result"]["resultType"] == "complete", "{rest:?}");
    }
    gateway.upstreams.stop().await;
}

// Of MOD-10 that closing a stream ends its subscription alone.
async fn a_resource_is_followed_as_long_as_somebody_listens(database: TestDatabase) {
    let [log, refused] = [(), ()].map(|()| tempfile::NamedTempFile::new().unwrap());
    let resource = |n: u8| format!(r#"{{"uri":"x://{n}","name":"{n}"}}"#);
    let lists = format!(r#""result":{{"resources":[{},{},{}]}}"#, resource(1), resource(2), resource(3));
    let lists = ("resources/list", lists.as_str());
    let own = ("resources/list", r#""result":{"resources":[{"uri":"y://1","name":"1"}]}"#);
    let refusal = ("resources/subscribe", r#""error":{"code":-32050,"message":"not this one"}"#);
    let takes = recording("u", log.path(), RESOURCES, &[lists, TEMPLATES]);
    let refuses = recording("v", refused.path(), RESOURCES, &[own, TEMPLATES, refusal]);
    let gateway = Gateway::with(database, settings(), vec![takes, refuses], engine_rules()).await;
    let (engine, client) = (&gateway.front.engine, Modern::new(&gateway.front.url, "owner"));
    let uris = |method: &str| -> Vec<Value> {
        heard(log.path(), method).into_iter().map(|params| params["uri"].clone()).collect()
    };
    let (first, _) = listen(&client, json!(1), updates(&["x://1", "x://3"])).await;
    let (second, told) = listen(&client, json!(2), updates(&["y://1", "x://1"])).await;
    assert_eq!(told["params"]["notifications"], updates(&["x://1"]), "what no upstream takes is not promised");
    assert_eq!(heard(refused.path(), "resources/subscribe").len(), 1);
    let mut subscribed = uris("resources/subscribe");
    subscribed.sort_by_key(ToString::to_string);
    assert_eq!(subscribed, ["x://1", "x://3"], "one subscription for both");
    // A session that had it as well leaves it to those who listen.
    let session = gateway.client("owner").await;
    let uri = json!({ "uri": "x://1" });
    session.request("resources/subscribe", uri.clone()).await.result();
    session.request("resources/unsubscribe", uri).await.result();
    engine.tend_subscriptions_once().await.unwrap();
    drop(first);
    until("what nobody wants to be given up", || uris("resources/unsubscribe") == ["x://3"]).await;
    engine.tend_subscriptions_once().await.unwrap();
    drop(second);
    until("the rest to be given up", || uris("resources/unsubscribe") == ["x://3", "x://1"]).await;
    let long = "y".repeat(2001);
    let answer = client.request("subscriptions/listen", json!({ "notifications": updates(&[&long]) })).await;
    let (code, message) = answer.error();
    assert!((answer.status, code) == (200, -32602) && message.contains("2001"), "{message}");
    gateway.upstreams.stop().await;
}
