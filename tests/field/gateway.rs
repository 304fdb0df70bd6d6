//! What passes through a gateway, large and odd.

use futures_util::future::join_all;
use serde_json::json;

use crate::http::harness::{BODY_LIMIT, Gateway, engine_rules};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::upstream::harness::{settings, test_tools};

contract! {
    no_field_of_a_result_is_dropped,
    big_results_are_whole_or_fail_with_both_sizes,
}

const GOLDEN: &str = r#"{"content":[{"type":"text","text":"t","annotations":{"audience":["user"],"priority":1.0},"_meta":{"k":1}},{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"audio","data":"aGk=","mimeType":"audio/wav"},{"type":"resource","resource":{"uri":"file:///a","mimeType":"text/plain","text":"\u0000","_meta":{}}},{"type":"resource_link","uri":"file:///b","name":"b","title":"B","size":18446744073709551615,"icons":[{"src":"data:,","sizes":["any"]}]},{"type":"hologram","frames":[1e400]}],"structuredContent":{"z":1.0,"a":null},"isError":false,"nextSteps":["x"],"_meta":{"vendor/key":{"deep":[[]]},"progressToken":7}}"#;

// req: LIFE-11
// field case: F-GW-05
async fn no_field_of_a_result_is_dropped(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    let client = gateway.client("owner").await;
    let call = |task: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"reply","arguments":{{"result":{GOLDEN}}}{task}}}}}"#
        )
    };
    let plain = client.send(&call("")).await;
    assert_eq!(plain.text(), format!(r#"{{"jsonrpc":"2.0","id":1,"result":{GOLDEN}}}"#));
    let created = client.send(&call(r#","task":{}"#)).await.result();
    let id = &created["task"]["taskId"];
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{{"taskId":{id}}}}}"#);
    let related = format!(r#","io.modelcontextprotocol/related-task":{{"taskId":{id}}}}}}}"#);
    let expected = format!("{}{related}", &GOLDEN[..GOLDEN.len() - 2]);
    assert_eq!(client.send(&body).await.text(), format!(r#"{{"jsonrpc":"2.0","id":1,"result":{expected}}}"#));
    gateway.upstreams.stop().await;
}

// req: EXEC-05
// field case: F-GW-17
async fn big_results_are_whole_or_fail_with_both_sizes(database: TestDatabase) {
    // A fifth of the reported sizes: the product is built for tests here.
    const LIMIT: usize = 1_000_000;
    let around = r#"{"content":[{"text":"","type":"text"}]}"#.len();
    let mut bounded = settings();
    bounded.result_limit = LIMIT;
    let gateway = Gateway::with(database, bounded, vec![test_tools("test")], engine_rules()).await;
    let client = gateway.client("owner").await;
    for (bytes, waiters) in [(100_000, 20), (LIMIT - around - 1, 1), (LIMIT - around, 2)] {
        let id = client.task("big", json!({ "bytes": bytes })).await["taskId"].clone();
        let answers = join_all((0..waiters).map(|_| client.result(&id))).await;
        for answer in answers {
            assert_eq!(answer.header("content-encoding"), None, "nobody asked for one");
            let text = answer.result()["content"][0]["text"].as_str().unwrap().to_owned();
            assert!(text.len() == bytes && text.bytes().all(|byte| byte == b'x'), "{} of {bytes}", text.len());
        }
    }
    for over in [1, 600_000] {
        let id = client.task("big", json!({ "bytes": LIMIT - around + over })).await["taskId"].clone();
        let failed = client.until_status(&id, "failed").await;
        let message = failed["statusMessage"].as_str().unwrap();
        assert!(message.contains(&(LIMIT + over).to_string()) && message.contains(&LIMIT.to_string()), "{message}");
        let error = client.result(&id).await.json()["error"].clone();
        let data = json!({ "reason": "result_too_large", "bytes": LIMIT + over, "limit": LIMIT });
        assert_eq!((error["code"].as_i64(), &error["data"]), (Some(-32603), &data));
    }
    let before = gateway.database.rows().await;
    let large = json!({ "name": "echo", "arguments": { "x": "y".repeat(BODY_LIMIT) }, "task": {} });
    assert_eq!(client.request("tools/call", large).await.status, 413);
    assert_eq!(gateway.database.rows().await, before);
    gateway.upstreams.stop().await;
}
