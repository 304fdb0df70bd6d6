//! `rmcp`, the official Rust SDK, in both eras. It has methods for the tasks of 2026-07-28 and none for those of 2025-11-25,
//! which are asked for by its custom requests; what its types leave out of their answers is not looked at here.

use std::sync::{Arc, Mutex};

use ::rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities, ClientConfig,
    ClientRequest, CustomRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData, GetTaskParams,
    Implementation, ProtocolVersion, TaskPayload, TaskStatus, UpdateTaskParams,
};
use ::rmcp::service::{ClientLifecycleMode, ClientServiceExt as _, RequestContext, RunningService};
use ::rmcp::transport::StreamableHttpClientTransport;
use ::rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use ::rmcp::{ClientHandler, RoleClient, ServiceError};
use serde_json::{Value, json};
use taskhold::domain::input::Answer;

use crate::http::harness::{Gateway, Service, until};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::script::how_many;
use crate::upstream::harness::within;

contract! {
    each_mode_finds_its_era,
    a_call_becomes_a_task_that_is_polled_to_its_end,
    a_task_is_made_for_those_alone_who_declare_it,
    a_question_is_answered_by_its_key,
    a_question_of_a_plain_call_is_answered_in_rounds,
    a_task_is_cancelled,
    tasks_of_a_session_are_made_asked_for_and_cancelled,
    a_task_is_the_same_in_both_eras,
}

type Client = RunningService<RoleClient, Person>;

/// Whom the client speaks for: declares this, and says three to whatever it is asked.
#[derive(Clone, Default)]
struct Person {
    capabilities: ClientCapabilities,
    asked: Arc<Mutex<Vec<ElicitRequestParams>>>,
}

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let info = ClientConfig::new(self.capabilities.clone(), Implementation::new("peer", "1"));
        info.with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.asked.lock().unwrap().push(request);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "n": 3 })))
    }
}

fn modern() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

fn auto() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto { preferred_versions: vec![ProtocolVersion::V_2026_07_28], legacy_version: None }
}

/// A client of the caller of this name.
async fn connected(url: &str, name: &str, mode: ClientLifecycleMode, capabilities: ClientCapabilities) -> Client {
    let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(name);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let transport = StreamableHttpClientTransport::with_client(http, config);
    let person = Person { capabilities, ..Person::default() };
    person.serve_with_lifecycle(transport, mode).await.unwrap()
}

fn declaring(capabilities: Value) -> ClientCapabilities {
    serde_json::from_value(capabilities).unwrap()
}

async fn with_tasks(service: &Service, name: &str) -> Client {
    let capabilities = declaring(json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } }));
    connected(&service.url, name, modern(), capabilities).await
}

fn call(tool: &'static str) -> CallToolRequestParams {
    CallToolRequestParams::new(tool)
}

/// A call that became a task; its id.
async fn made(client: &Client) -> String {
    match client.call_tool_once(call("eager")).await.unwrap() {
        CallToolResponse::Task(created) => created.task.task_id,
        other => panic!("no task: {other:?}"),
    }
}

async fn payload(client: &Client, id: &str) -> TaskPayload {
    client.get_task(GetTaskParams::new(id)).await.unwrap().task.payload
}

async fn until_status(client: &Client, id: &str, status: TaskStatus) -> TaskPayload {
    until("the task has this status", async || payload(client, id).await.status() == status).await;
    payload(client, id).await
}

fn code(refused: Result<impl std::fmt::Debug, ServiceError>) -> i64 {
    match refused {
        Err(ServiceError::McpError(error)) => error.code.0.into(),
        other => panic!("no error of the server's: {other:?}"),
    }
}

fn text(result: &CallToolResult) -> Value {
    serde_json::to_value(result).unwrap()["content"][0]["text"].take()
}

/// A request that the SDK has no method for, and its result as far as its types keep it.
async fn custom(client: &Client, method: &str, params: Value) -> Result<Value, ServiceError> {
    let request = ClientRequest::CustomRequest(CustomRequest::new(method, Some(params)));
    client.send_request(request).await.map(|result| serde_json::to_value(result).unwrap())
}

// req: MOD-09
async fn each_mode_finds_its_era(database: TestDatabase) {
    let gateway = Gateway::start(database).await;
    for (mode, version) in [
        (ClientLifecycleMode::Initialize, ProtocolVersion::V_2025_11_25),
        (modern(), ProtocolVersion::V_2026_07_28),
        (auto(), ProtocolVersion::V_2026_07_28),
    ] {
        let client = connected(&gateway.front.url, "owner", mode, ClientCapabilities::default()).await;
        assert_eq!(client.peer_info().unwrap().protocol_version, version);
        let tools = client.list_all_tools().await.unwrap();
        assert!(tools.iter().any(|tool| tool.name == "echo"), "{tools:?}");
        let arguments = json!({ "n": 1 }).as_object().unwrap().clone();
        let answer = client.call_tool(call("echo").with_arguments(arguments)).await.unwrap();
        assert_eq!(text(&answer), r#"{"n":1}"#);
        assert_eq!(code(client.call_tool(call("nobody")).await), -32602);
        client.cancel().await.unwrap();
    }
    gateway.upstreams.stop().await;
}

// req: EXT-03, EXT-05, EXT-06
async fn a_call_becomes_a_task_that_is_polled_to_its_end(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = with_tasks(&service, "owner").await;
    let id = made(&client).await;
    let work = service.script.next().await;
    let shown = client.get_task(GetTaskParams::new(&id)).await.unwrap().task;
    assert_eq!((shown.payload, shown.task.task_id.as_str()), (TaskPayload::Working, id.as_str()));
    assert_eq!((shown.task.ttl_ms, shown.task.poll_interval_ms), (Some(3_600_000), Some(1000)));
    work.answer("done");
    let TaskPayload::Completed { result } = until_status(&client, &id, TaskStatus::Completed).await else { panic!() };
    assert_eq!(result["content"][0]["text"], "done");
    // A tool's error is a result; an error of the protocol's is none.
    let id = made(&client).await;
    service.answer_next(r#"{"content":[{"type":"text","text":"disk full"}],"isError":true}"#).await;
    let TaskPayload::Completed { result } = until_status(&client, &id, TaskStatus::Completed).await else { panic!() };
    assert_eq!(result["isError"], true);
    let id = made(&client).await;
    service.fail_next(r#"{"code":-32011,"message":"no such city"}"#).await;
    let TaskPayload::Failed { error } = until_status(&client, &id, TaskStatus::Failed).await else { panic!() };
    assert_eq!((&error["code"], &error["message"]), (&json!(-32011), &json!("no such city")));
    client.cancel().await.unwrap();
}

// req: EXT-01, EXT-02, EXT-08, EXT-09
async fn a_task_is_made_for_those_alone_who_declare_it(database: TestDatabase) {
    let service = Service::start(database).await;
    let silent = connected(&service.url, "owner", modern(), ClientCapabilities::default()).await;
    let (answer, ()) = tokio::join!(silent.call_tool(call("eager")), async {
        service.script.next().await.answer("plain");
    });
    assert_eq!(text(&answer.unwrap()), "plain");
    assert_eq!(code(silent.call_tool_once(call("always")).await), -32021);
    let client = with_tasks(&service, "owner").await;
    let id = made(&client).await;
    service.script.next().await.answer("done");
    assert_eq!(code(silent.get_task(GetTaskParams::new(&id)).await), -32021);
    let stranger = with_tasks(&service, "stranger").await;
    assert_eq!(code(stranger.get_task(GetTaskParams::new(&id)).await), -32602);
    assert_eq!(code(stranger.cancel_task(CancelTaskParams::new(&id)).await), -32602);
    assert_eq!(code(stranger.update_task(UpdateTaskParams::new(&id, Default::default())).await), -32602);
    assert!(service.script.is_idle().await);
    for client in [silent, client, stranger] {
        client.cancel().await.unwrap();
    }
}

// req: INPUT-08, INPUT-09
async fn a_question_is_answered_by_its_key(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = with_tasks(&service, "owner").await;
    let id = made(&client).await;
    let work = service.script.next().await;
    let asked = work.ask(how_many());
    let shown = until_status(&client, &id, TaskStatus::InputRequired).await;
    let TaskPayload::InputRequired { input_requests } = shown else { panic!() };
    let (key, request) = input_requests.iter().next().unwrap();
    assert_eq!(serde_json::to_value(request).unwrap()["params"]["message"], "How many?");
    let answer = json!({ "action": "accept", "content": { "n": 3 } });
    let responses = [(key.clone(), answer.clone())].into_iter().collect();
    client.update_task(UpdateTaskParams::new(&id, responses)).await.unwrap();
    let Answer::Result(given) = within("the work to be answered", asked).await.unwrap() else { panic!("an answer") };
    assert_eq!(serde_json::from_str::<Value>(given.as_str()).unwrap(), answer);
    assert_eq!(payload(&client, &id).await, TaskPayload::Working);
    work.answer("done");
    until_status(&client, &id, TaskStatus::Completed).await;
    client.cancel().await.unwrap();
}

async fn a_question_of_a_plain_call_is_answered_in_rounds(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = connected(&service.url, "owner", auto(), declaring(json!({ "elicitation": {} }))).await;
    let (answer, given) = tokio::join!(client.call_tool(call("optional")), async {
        let work = service.script.next().await;
        let given = within("the work to be answered", work.ask(how_many())).await.unwrap();
        work.answer("done");
        given
    });
    let Answer::Result(given) = given else { panic!("an answer") };
    assert_eq!(serde_json::from_str::<Value>(given.as_str()).unwrap()["content"], json!({ "n": 3 }));
    assert_eq!(text(&answer.unwrap()), "done");
    assert_eq!(client.service().asked.lock().unwrap().len(), 1);
    client.cancel().await.unwrap();
}

// req: EXT-07
async fn a_task_is_cancelled(database: TestDatabase) {
    let service = Service::start(database).await;
    let client = with_tasks(&service, "owner").await;
    let id = made(&client).await;
    let work = service.script.next().await;
    client.cancel_task(CancelTaskParams::new(&id)).await.unwrap();
    within("the work to be stopped", work.stop.cancelled()).await;
    assert_eq!(payload(&client, &id).await, TaskPayload::Cancelled);
    client.cancel_task(CancelTaskParams::new(&id)).await.unwrap();
    client.cancel().await.unwrap();
}

// req: TASK-12, TASK-13, TASK-15, INPUT-02
async fn tasks_of_a_session_are_made_asked_for_and_cancelled(database: TestDatabase) {
    let service = Service::start(database).await;
    let capabilities = declaring(json!({ "elicitation": {} }));
    let client = connected(&service.url, "owner", ClientLifecycleMode::Initialize, capabilities).await;
    let make = async || {
        let params = json!({ "name": "optional", "arguments": {}, "task": { "ttl": 60_000 } });
        let created = custom(&client, "tools/call", params).await.unwrap();
        // Its types take the answer for that of a plain call, and keep the id in its `_meta` alone (TASK-27).
        let id =
            created["_meta"]["modelcontextprotocol.io/task"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}"));
        json!({ "taskId": id })
    };
    let task = make().await;
    let work = service.script.next().await;
    let shown = custom(&client, "tasks/get", task.clone()).await.unwrap();
    assert_eq!((&shown["taskId"], &shown["status"]), (&task["taskId"], &json!("working")));
    // Asked on the stream that the client holds open.
    let asked = work.ask(how_many());
    let Answer::Result(given) = within("the work to be answered", asked).await.unwrap() else { panic!("an answer") };
    assert_eq!(serde_json::from_str::<Value>(given.as_str()).unwrap()["content"], json!({ "n": 3 }));
    assert_eq!(client.service().asked.lock().unwrap().len(), 1);
    // Waits for the end.
    let (result, ()) = tokio::join!(custom(&client, "tasks/result", task.clone()), async { work.answer("done") });
    assert_eq!(result.unwrap()["content"][0]["text"], "done");
    assert_eq!(code(custom(&client, "tasks/cancel", task).await), -32602);
    let task = make().await;
    let work = service.script.next().await;
    let cancelled = custom(&client, "tasks/cancel", task.clone()).await.unwrap();
    assert_eq!(cancelled["status"], "cancelled");
    within("the work to be stopped", work.stop.cancelled()).await;
    assert_eq!(code(custom(&client, "tasks/result", task).await), -32800);
    client.cancel().await.unwrap();
}

// req: LIFE-13
async fn a_task_is_the_same_in_both_eras(database: TestDatabase) {
    let service = Service::start(database).await;
    let new = with_tasks(&service, "owner").await;
    let old = connected(&service.url, "owner", ClientLifecycleMode::Initialize, ClientCapabilities::default()).await;
    let id = made(&new).await;
    let work = service.script.next().await;
    let task = json!({ "taskId": id });
    assert_eq!(custom(&old, "tasks/get", task.clone()).await.unwrap()["status"], "working");
    let listed = custom(&old, "tasks/list", json!({})).await.unwrap();
    assert_eq!(listed["tasks"][0]["taskId"], id.as_str());
    assert_eq!(custom(&old, "tasks/cancel", task).await.unwrap()["status"], "cancelled");
    within("the work to be stopped", work.stop.cancelled()).await;
    assert_eq!(payload(&new, &id).await, TaskPayload::Cancelled);
    for client in [new, old] {
        client.cancel().await.unwrap();
    }
}
