//! Plain calls: what goes through, and what is refused before anything runs.

use serde_json::json;

use super::harness::Service;
use crate::support::client::Client;

// req: LIFE-11
#[tokio::test]
async fn a_plain_call_carries_json_both_ways_as_it_is() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let arguments = r#"{"z":1e400,"a":18446744073709551615,"\ud800":"\u0000","n":1.0}"#;
    let result = r#"{"x":1e400,"content":[{"type":"text","text":"\u0000\ud800"}],"_meta":{"b":2,"a":1.0}}"#;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"our_name","arguments":{arguments}}}}}"#
    );
    let (answer, call) = tokio::join!(client.send(&body), async {
        let call = service.script.next().await;
        let params = call.call.params.clone();
        call.end(taskhold::executor::Attempt::Answered(taskhold::domain::outcome::Outcome::Result {
            json: taskhold::domain::json::RawJson::trusted(result),
            is_error: false,
        }));
        params
    });
    assert_eq!(call.as_str(), format!(r#"{{"name":"our_name","arguments":{arguments}}}"#));
    assert_eq!(answer.text(), format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#));

    let error = r#"{"code":-32011,"message":"no","data":{"n":1e400}}"#;
    let (answer, ()) = tokio::join!(client.send(&body), service.fail_next(error));
    assert_eq!(
        (answer.status, answer.text()),
        (200, format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#).as_str())
    );
}

// req: LIFE-11
#[tokio::test]
async fn what_only_the_upstream_means_is_taken_out() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let result = r#"{"resultType":"complete","content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"k":1,"io.modelcontextprotocol/serverInfo":{"name":"theirs"}}}"#;
    let (answer, ()) = tokio::join!(client.call("optional", json!({})), service.answer_next(result));
    assert!(answer.text().ends_with(r#""result":{"content":[],"_meta":{"k":1}}}"#), "{answer:?}");
}

// req: EXEC-10
#[tokio::test]
async fn arguments_are_checked_before_anything_runs() {
    let service = Service::on_sqlite().await;
    let client = service.client("owner").await;
    let bad = json!({ "name": "optional", "arguments": { "bad": 1 } });
    let result = client.request("tools/call", bad.clone()).await.result();
    assert_eq!(result["isError"], true);
    assert!(result["content"][0]["text"].as_str().unwrap().contains("/bad: not allowed"), "{result}");
    let with_task = json!({ "name": "optional", "arguments": { "bad": 1 }, "task": {} });
    let (code, message) = client.request("tools/call", with_task).await.error();
    assert_eq!(code, -32602);
    assert!(message.contains("/bad: not allowed"), "{message}");
    let older = service.client_of("owner", "2025-06-18").await;
    let (code, message) = older.request("tools/call", bad).await.error();
    assert_eq!(code, -32602);
    assert!(message.contains("/bad: not allowed"), "{message}");
    for arguments in [json!(null), json!([]), json!("x"), json!(1)] {
        for client in [&client, &older] {
            let (code, message) =
                client.request("tools/call", json!({ "name": "optional", "arguments": arguments })).await.error();
            assert!(code == -32602 && message.contains("arguments"), "{arguments} {message}");
        }
    }
    let large = json!({ "name": "optional", "arguments": { "x": "y".repeat(100_001) } });
    assert_eq!(client.request("tools/call", large).await.error().0, -32602);
    assert!(service.script.is_idle().await);
    assert_eq!(client.list().await, Vec::<serde_json::Value>::new());
}

// Of MOD-16 what legacy clients are told.
#[tokio::test]
async fn urls_that_are_to_be_visited_first_are_told_to_clients_that_visit_them() {
    let service = Service::on_sqlite().await;
    let error = r#"{"code":-32042,"message":"visit\u0000","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a.example/","message":"m"}],"n":1e400}}"#;
    let visits = Client::capable(&service.url, "owner").await;
    let forms_only = service.client("owner").await;
    let failure =
        format!(r#"{{"code":-32603,"message":"visit\u0000","data":{{"reason":"upstream_error","error":{error}}}}}"#);
    for (client, told) in [(&visits, error), (&forms_only, failure.as_str())] {
        let (answer, ()) = tokio::join!(client.call("optional", json!({})), service.fail_next(error));
        assert!(answer.text().ends_with(&format!(r#""error":{told}}}"#)), "{answer:?}");
        let task = client.task("optional", json!({})).await;
        service.fail_next(error).await;
        client.until_status(&task["taskId"], "failed").await;
        // Whoever reads it counts, not whoever made it.
        for (reader, told) in [(&visits, error), (&forms_only, failure.as_str())] {
            let answer = reader.result(&task["taskId"]).await;
            assert!(answer.text().ends_with(&format!(r#""error":{told}}}"#)), "{answer:?}");
        }
    }
}
