//! Streams of news.

use std::sync::Arc;

use serde_json::{Value, json};
use taskhold::engine::{Served, Shelf};

use crate::http::harness::{Front, Names, Parts, Service, engine_rules, tools};
use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::support::modern::Modern;
use crate::support::schema::Schema;
use crate::support::script::{Script, Tools};

pub fn subscription(message: &Value) -> &Value {
    let at = if message.get("result").is_some() { "result" } else { "params" };
    &message[at]["_meta"]["io.modelcontextprotocol/subscriptionId"]
}

/// A stream under this id, and its acknowledgement.
pub async fn listen(client: &Modern, id: Value, filter: Value) -> (Events, Value) {
    let mut draft = client.draft("subscriptions/listen", json!({ "notifications": filter }));
    draft.body["id"] = id;
    let mut events = client.open(draft).await;
    let first = events.message().await.unwrap();
    (events, first)
}

// A stream is nothing but events: who takes none is told so.
#[tokio::test]
async fn who_takes_only_json_is_told_that_news_are_events() {
    let service = Service::on_sqlite().await;
    let client = Modern { accept: "application/json", ..Modern::new(&service.url, "owner") };
    let refused = client.request("subscriptions/listen", json!({ "notifications": {} })).await;
    let message = refused.error().1;
    assert_eq!(refused.status, 406);
    assert!(message.contains("text/event-stream") && !message.contains("application/json"), "{message}");
}

// req: NOTE-11
#[tokio::test]
async fn who_listens_hears_of_the_lists_that_were_asked_for() {
    let service = Service::on_sqlite().await;
    let client = Modern::new(&service.url, "owner");
    let all = json!({
        "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
        "resourceSubscriptions": ["x://1"],
    });
    let (mut all, first) = listen(&client, json!("a"), all).await;
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(first["params"]["notifications"], json!({ "toolsListChanged": true }), "the rest is not served");
    let (mut none, nothing) = listen(&client, json!(7), json!({})).await;
    assert_eq!((&nothing["params"]["notifications"], subscription(&nothing)), (&json!({}), &json!(7)));
    service.tools.say_changed(|changes| {
        changes.tools += 1;
        changes.prompts += 1;
    });
    let told = all.message().await.unwrap();
    assert_eq!((&told["method"], subscription(&told)), (&json!("notifications/tools/list_changed"), &json!("a")));
    if let Some(schema) = Schema::of_2026_07_28() {
        schema.check("SubscriptionsAcknowledgedNotification", &first);
        schema.check("ToolListChangedNotification", &told);
    }
    // A stream that is closed ends itself alone; a node that shuts down ends the others with their result, and those that can
    // go on elsewhere by saying when.
    let session = service.client("owner").await;
    let mut session_stream = Events::of_session(&session).await;
    session_stream.block().await.unwrap();
    let (mut other, _) = listen(&client, json!(8), json!({ "toolsListChanged": true })).await;
    drop(all);
    service.tools.say_changed(|changes| changes.tools += 1);
    assert_eq!(subscription(&other.message().await.unwrap()), &json!(8));
    service.drain.cancel();
    for (stream, id) in [(&mut other, json!(8)), (&mut none, json!(7))] {
        let rest = stream.rest().await;
        assert_eq!(rest.len(), 1, "nothing came before it: {rest:?}");
        assert_eq!((&rest[0]["id"], subscription(&rest[0])), (&id, &id));
        assert_eq!(rest[0]["result"]["resultType"], "complete");
        if let Some(schema) = Schema::of_2026_07_28() {
            schema.check("SubscriptionsListenResult", &rest[0]["result"]);
        }
    }
    let last = async {
        let mut last = None;
        while let Some(block) = session_stream.block().await {
            last = Some(block);
        }
        last
    };
    assert!(last.await.unwrap().retry.is_some());
}

// req: NOTE-12 (lists)
#[tokio::test]
async fn each_stream_hears_of_its_own_kinds_alone() {
    let served = Served { prompts: true, resources: true, ..Served::default() };
    let shelf = Shelf::new(vec![("script".to_owned(), served)], Vec::new(), Vec::new(), Vec::new());
    let database = TestDatabase::new(Backend::Sqlite).await;
    let catalogue = Tools::beside(tools(), shelf);
    let front = Front::start(Parts {
        store: database.store.clone(),
        executor: Script::new(),
        catalogue: catalogue.clone(),
        auth: Arc::new(Names::new(database.store.clone())),
        rules: engine_rules(),
    })
    .await;
    let client = Modern::new(&front.url, "owner");
    let kinds = ["tools", "prompts", "resources"];
    let mut streams = Vec::new();
    for kind in kinds {
        let filter = json!({ format!("{kind}ListChanged"): true });
        let (events, first) = listen(&client, json!(kind), filter.clone()).await;
        assert_eq!(first["params"]["notifications"], filter);
        streams.push(events);
    }
    let (mut none, _) = listen(&client, json!("none"), json!({ "toolsListChanged": false })).await;
    let session = Client::connected(&front.url, "owner").await;
    let mut session_stream = Events::of_session(&session).await;
    catalogue.say_changed(|changes| {
        changes.tools += 1;
        changes.prompts += 1;
        changes.resources += 1;
    });
    let changed = |kind: &str| json!(format!("notifications/{kind}/list_changed"));
    for kind in kinds {
        assert_eq!(session_stream.message().await.unwrap()["method"], changed(kind));
    }
    for (kind, events) in kinds.into_iter().zip(&mut streams) {
        let told = events.message().await.unwrap();
        assert_eq!((&told["method"], subscription(&told)), (&changed(kind), &json!(kind)));
    }
    front.drain.cancel();
    for events in streams.iter_mut().chain([&mut none]) {
        let rest = events.rest().await;
        assert!(rest.len() == 1 && rest[0].get("result").is_some(), "{rest:?}");
    }
}

// req: NOTE-06, AUTH-14 (of the modern statuses the one for waiting requests)
#[tokio::test]
async fn what_cannot_be_listened_to_is_refused() {
    let mut rules = engine_rules();
    rules.waiters_per_context = 1;
    let service = Service::with(TestDatabase::new(Backend::Sqlite).await, rules).await;
    let client = Modern::new(&service.url, "owner");
    let ask = async |client: &Modern, filter: Value| {
        let answer = client.request("subscriptions/listen", json!({ "notifications": filter })).await;
        (answer.status, answer.json()["error"].clone())
    };
    let (status, error) = ask(&client, json!({ "taskIds": ["x"], "toolsListChanged": true })).await;
    assert_eq!((status, &error["code"]), (400, &json!(-32021)));
    assert_eq!(error["data"]["requiredCapabilities"]["extensions"]["io.modelcontextprotocol/tasks"], json!({}));
    let (status, error) = ask(&client, json!({ "taskIds": [7], "toolsListChanged": 7 })).await;
    assert_eq!((status, &error["code"]), (400, &json!(-32021)), "before anything else is looked at");
    let takes = client.with_tasks();
    for (filter, named) in [
        (json!({ "taskIds": ["x", 7] }), "notifications.taskIds must be an array of strings"),
        (json!({ "taskIds": vec!["x"; 1001] }), "notifications.taskIds has 1001 entries, more than the limit of 1000"),
        (json!({ "resourceSubscriptions": ["x", "y", "z"] }), "has 3 entries, more than the limit of 2"),
    ] {
        let (status, error) = ask(&takes, filter).await;
        let message = error["message"].as_str().unwrap();
        assert!((status, &error["code"]) == (200, &json!(-32602)) && message.contains(named), "{error}");
    }
    let (status, error) = ask(&client, json!([])).await;
    assert_eq!((status, &error["code"]), (200, &json!(-32602)));
    let plain = Modern { accept: "application/json", ..client.clone() };
    assert_eq!(ask(&plain, json!({})).await.0, 406);
    let (stream, _) = listen(&client, json!(1), json!({})).await;
    let (status, error) = ask(&client, json!({})).await;
    assert_eq!((status, &error["data"]["limit"]), (429, &json!("limits.streams")));
    // Its place is free when it has gone.
    drop(stream);
    let freed = async {
        while client.begin(&client.draft("subscriptions/listen", json!({ "notifications": {} }))).await.status() != 200
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    crate::upstream::harness::within("a place among the streams", freed).await;
}
