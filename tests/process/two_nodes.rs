//! Two processes on one database, as behind a load balancer.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{Server, new_token};

contract! {
    a_task_made_at_one_node_is_served_by_the_other,
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
