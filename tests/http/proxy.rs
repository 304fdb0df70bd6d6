//! Streams behind a proxy that buffers and cuts what is idle: a real nginx, with its time-outs divided about as the
//! service's keep-alives are.

use std::time::Duration;

use serde_json::json;

use super::harness::Service;
use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase};
use crate::support::events::Events;
use crate::support::nginx::Nginx;

/// 60 s with a service's keep-alives of 15 s would be one second here; on a busy machine a keep-alive may be late by as much.
const CUT_AFTER: Duration = Duration::from_secs(3);
/// Far less than a proxy that buffers takes to fill its buffer with keep-alives.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Several times as long as a proxy waits for what is silent.
const IDLE: Duration = Duration::from_secs(10);

/// In front of `url`, with buffering on.
async fn buffering(url: &str) -> Nginx {
    let (upstream, cut_after) = (url.trim_end_matches("/mcp"), CUT_AFTER.as_secs());
    Nginx::start(|address| {
        format!(
            "server {{ listen {address}; location / {{ proxy_pass {upstream}; proxy_http_version 1.1;\n\
             proxy_buffering on; proxy_read_timeout {cut_after}s; }} }}"
        )
    })
    .await
}

// req: NOTE-08
// field case: F-HTTP-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_streams_live_behind_a_proxy_that_cuts_and_buffers() {
    let service = Service::start(TestDatabase::new(Backend::Sqlite).await).await;
    let nginx = buffering(&service.url).await;
    let client = Client::connected(&nginx.url(), "owner").await;
    let id = client.task("optional", json!({})).await["taskId"].clone();
    let work = service.script.next().await;
    let began = std::time::Instant::now();
    let mut session = Events::of_session(&client).await;
    session.block().await.unwrap();
    assert!(began.elapsed() < AT_ONCE, "the first byte passes at once");
    let began = std::time::Instant::now();
    let mut result = Events::of_request(&client, client.message("tasks/result", &json!({ "taskId": id }))).await;
    result.block().await.unwrap();
    assert!(began.elapsed() < AT_ONCE, "the first byte passes at once");
    let until = tokio::time::Instant::now() + IDLE;
    while tokio::time::Instant::now() < until {
        for stream in [&mut session, &mut result] {
            let block = tokio::time::timeout(CUT_AFTER, stream.block()).await.expect("a byte at least so often");
            let block = block.expect("it is not cut");
            assert!(block.comment.is_some(), "{block:?}");
        }
    }
    // A second one, after the client dropped the first, is there at once.
    drop(session);
    let began = std::time::Instant::now();
    let mut session = Events::of_session(&client).await;
    session.block().await.unwrap();
    assert!(began.elapsed() < AT_ONCE);
    work.answer("done");
    loop {
        let status = session.until("notifications/tasks/status").await;
        if status["params"]["status"] == "completed" {
            break;
        }
    }
    let rest = result.rest().await;
    assert_eq!(rest.last().unwrap()["result"]["content"][0]["text"], "done");
    nginx.kill().await;
}
