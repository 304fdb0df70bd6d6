//! Two processes on one database, as behind a load balancer.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::support::server::{Server, new_token, run};

contract! {
    a_task_made_at_one_node_is_served_by_the_other,
    a_revoked_token_ends_its_streams_at_every_node,
}

// req: TASK-07, TASK-12, HTTP-07
async fn a_task_made_at_one_node_is_served_by_the_other(database: TestDatabase) {
    let token = new_token(&database.url, "owner").await;
    let (here, there) = tokio::join!(Server::start(&database.url), Server::start(&database.url));
    let at_one = Client::connected(&here.url, &token).await;
    let at_other = at_one.at(&there.url);

    let task = at_one.task("sleep", json!({ "ms": 2_500 })).await;
    let id = &task["taskId"];
    assert_eq!(at_other.get(id).await.result()["status"], "working");
    assert_eq!(at_other.list().await, std::slice::from_ref(id));
    let outcome = at_other.result(id).await;
    assert_eq!(outcome.result()["content"], at_one.result(id).await.result()["content"]);

    let task = at_one.task("sleep", json!({ "ms": 60_000 })).await;
    let id = &task["taskId"];
    let waiter = tokio::spawn({
        let (client, id) = (at_one.clone(), id.clone());
        async move { client.result(&id).await }
    });
    let began = Instant::now();
    assert_eq!(at_other.cancel(id).await.result()["status"], "cancelled");
    let (code, _) = waiter.await.unwrap().error();
    assert_eq!(code, -32800);
    assert!(began.elapsed() < Duration::from_secs(5), "waiters need no second poll: {:?}", began.elapsed());
}

// req: AUTH-07
async fn a_revoked_token_ends_its_streams_at_every_node(database: TestDatabase) {
    let (here, there) = tokio::join!(Server::start(&database.url), Server::start(&database.url));
    let mut times = Vec::new();
    for n in 0..3 {
        let name = format!("owner {n}");
        let token = new_token(&database.url, &name).await;
        let client = Client::connected(&here.url, &token).await;
        let task = client.task("sleep", json!({ "ms": 60_000 })).await["taskId"].clone();
        let mut streams = Vec::new();
        for url in [&here.url, &there.url] {
            let client = client.at(url);
            streams.push(Events::of_session(&client).await);
            streams.push(Events::of_request(&client, client.message("tasks/result", &json!({ "taskId": task }))).await);
        }
        for stream in &mut streams {
            stream.block().await.unwrap();
        }
        let (_, listed, _) = run(&["token", "list", "--json", "--database-url", &database.url]).await;
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        let id = listed.iter().find(|token| token["name"] == *name).unwrap()["id"].as_str().unwrap();
        let (status, _, stderr) = run(&["token", "revoke", id, "--database-url", &database.url]).await;
        let began = Instant::now();
        assert!(status.success(), "{stderr}");
        for stream in &mut streams {
            stream.rest().await;
        }
        times.push(began.elapsed());
        for url in [&here.url, &there.url] {
            assert_eq!(client.at(url).get(&task).await.status, 401);
        }
    }
    times.sort_unstable();
    // By a hint at once, else by the next look.
    let most = if database.backend == Backend::Postgres { Duration::from_secs(1) } else { Duration::from_secs(5) };
    assert!(times[1] < most, "{times:?}");
    assert!(times[2] < Duration::from_secs(6), "{times:?}");
}
