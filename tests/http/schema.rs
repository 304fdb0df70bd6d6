//! Every shape that we send, against the protocol's own JSON Schema.

use serde_json::json;

use super::harness::Service;
use crate::support::schema::Schema;

// req: TASK-01, TASK-05, LIFE-08, LIFE-09
#[tokio::test]
async fn what_is_sent_fits_the_schema() {
    let Some(schema) = Schema::of_2025_11_25() else {
        eprintln!("MCP_SCHEMA_DIR is not set: the shapes on the wire are not checked against the schema");
        return;
    };
    let service = Service::on_sqlite().await;
    let mut client = crate::support::client::Client::new(&service.url, Some("owner"));
    schema.check("InitializeResult", &client.initialize("2025-11-25").await);
    schema.check("EmptyResult", &client.request("ping", json!({})).await.result());
    // The test's own tools hold numbers that no reader of `serde_json` takes; one of them is shown as it is.
    let created = client.request("tools/call", json!({ "name": "our_name", "task": {} })).await;
    schema.check("JSONRPCResultResponse", &created.json());
    schema.check("CreateTaskResult", &created.result());
    schema.check("CallToolResult", &created.result());
    let id = created.result()["task"]["taskId"].clone();
    schema.check("GetTaskResult", &client.get(&id).await.result());
    schema.check("ListTasksResult", &client.request("tasks/list", json!({})).await.result());
    schema.check("CancelTaskResult", &client.cancel(&id).await.result());
    schema.check("JSONRPCErrorResponse", &client.result(&id).await.json());
    schema.check("JSONRPCErrorResponse", &client.send("{").await.json());
    let bad = client.call("optional", json!({ "bad": 1 })).await;
    schema.check("CallToolResult", &bad.result());
    let older = service.client_of("owner", "2025-06-18").await;
    schema.check("JSONRPCErrorResponse", &older.request("tasks/list", json!({})).await.json());
}
