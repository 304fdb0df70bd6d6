//! Each kind of bad input that the contract names, its answer, and that it changed nothing.

use serde_json::json;

use crate::http::harness::{BODY_LIMIT, Service};
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;

contract! {
    bad_input_gets_its_error_and_changes_nothing,
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
enum By {
    Owner,
    /// A session of 2025-06-18.
    Older,
    /// A caller whose tenant has no tasks.
    Taskless,
}

/// What is added to a good request, or put in the place of what it has.
type Headers = &'static [(&'static str, &'static str)];

struct Row {
    of: &'static str,
    by: By,
    headers: Headers,
    body: Vec<u8>,
    status: u16,
    /// `None` where the answer has no body.
    code: Option<i64>,
}

fn row(of: &'static str, body: impl Into<Vec<u8>>, status: u16, code: i64) -> Row {
    Row { of, by: By::Owner, headers: &[], body: body.into(), status, code: Some(code) }
}

fn call(params: &str) -> String {
    request("tools/call", params)
}

fn request(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
}

/// Bodies that are no message, or not one that is taken (HTTP-03, HTTP-04, HTTP-05, HTTP-11).
fn messages() -> Vec<Row> {
    let good = call(r#"{"name":"optional","task":{}}"#);
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1)
    };
    let bomb = |open: &str, levels: usize| {
        call(&format!(r#"{{"name":"optional","task":{{}},"arguments":{{"a":{}"#, open.repeat(levels)))
    };
    let deep = |levels: usize| {
        let inside = ["[".repeat(levels), "]".repeat(levels)].concat();
        call(&format!(r#"{{"name":"optional","task":{{}},"arguments":{{"bad":{inside}}}}}"#))
    };
    let no_json: [&[u8]; 12] = [
        b"",
        b" ",
        b"{",
        b"nul",
        b"\xEF\xBB\xBF{}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xed\xa0\x80\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":01,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}{}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\nng\"}",
        b"{'jsonrpc':'2.0'}",
    ];
    let mut rows: Vec<_> = no_json.into_iter().map(|body| row("HTTP-04", body, 400, -32700)).collect();
    let no_message = [
        "[]".to_owned(),
        format!("[{good}]"),
        "null".to_owned(),
        "7".to_owned(),
        "{}".to_owned(),
        with(r#""2.0""#, r#""1.0""#),
        with(r#""2.0""#, "2.0"),
        with(r#""id":1"#, r#""id":null"#),
        with(r#""id":1"#, r#""id":1.5"#),
        with(r#""id":1"#, r#""id":1.0"#),
        with(r#""id":1"#, r#""id":1e2"#),
        with(r#""id":1"#, r#""id":true"#),
        with(r#""id":1"#, r#""id":[1]"#),
        with(r#""id":1"#, r#""id":1,"id":2"#),
        with(r#""method":"tools/call""#, r#""method":7"#),
        with(r#""method":"tools/call""#, r#""result":{},"method":"tools/call""#),
        with(r#""name""#, r#""name":"never","n\u0061me""#),
        with(r#""task":{}"#, r#""arguments":{"a":1,"a":2},"task":{}"#),
        with(r#""task":{}"#, r#""_meta":{"a":1,"a":2},"task":{}"#),
        request("tools/call", "[]"),
        request("tools/call", "null"),
        request("tools/call", r#""x""#),
        r#"{"jsonrpc":"2.0","result":{}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":"m"}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"m"}}"#.to_owned(),
        deep(125),
        bomb("[", 50_000),
        bomb(r#"{"a":"#, 20_000),
    ];
    rows.extend(no_message.into_iter().map(|body| row("HTTP-04, HTTP-05, HTTP-11", body, 400, -32600)));
    // The deepest that is taken is refused for what it says.
    rows.push(row("HTTP-11", deep(124), 200, -32602));
    rows.push(row("HTTP-04", format!("{good}{}", " ".repeat(BODY_LIMIT)), 413, -32600));
    rows
}

/// Headers (HTTP-04, HTTP-08, AUTH-01, HTTP-01, HTTP-07).
fn headers() -> Vec<Row> {
    let good = call(r#"{"name":"optional","task":{}}"#);
    let rows: [(&str, Headers, u16, Option<i64>); 22] = [
        ("HTTP-04", &[("accept", "text/html")], 406, Some(-32600)),
        ("HTTP-04", &[("accept", "application/json;q=0")], 406, Some(-32600)),
        ("HTTP-04", &[("content-type", "text/plain")], 415, Some(-32600)),
        ("HTTP-04", &[("content-type", "")], 415, Some(-32600)),
        ("HTTP-08", &[("mcp-protocol-version", "2025-03-26")], 400, Some(-32600)),
        // This one names the other era, and says nothing that its requests have to.
        ("MOD-02", &[("mcp-protocol-version", "2026-07-28")], 400, Some(-32602)),
        ("HTTP-08", &[("mcp-protocol-version", "x")], 400, Some(-32600)),
        ("HTTP-08", &[("mcp-protocol-version", "")], 400, Some(-32600)),
        ("HTTP-07", &[("mcp-session-id", "")], 404, Some(-32600)),
        ("HTTP-07", &[("mcp-session-id", "786512e2-9e0d-44bd-8f29-789f320fe840")], 404, Some(-32600)),
        ("HTTP-07", &[("mcp-session-id", "\"")], 404, Some(-32600)),
        ("HTTP-01", &[("host", "evil.example")], 403, Some(-32600)),
        ("HTTP-01", &[("origin", "https://evil.example")], 403, Some(-32600)),
        ("HTTP-01", &[("origin", "null")], 403, Some(-32600)),
        ("HTTP-01", &[("origin", "")], 403, Some(-32600)),
        ("AUTH-01", &[("authorization", "Bearer wrong")], 401, None),
        ("AUTH-01", &[("authorization", "")], 400, Some(-32600)),
        ("AUTH-01", &[("authorization", "Basic b3duZXI=")], 400, Some(-32600)),
        ("AUTH-01", &[("authorization", "owner")], 400, Some(-32600)),
        // The first that applies answers (HTTP-13).
        ("HTTP-13", &[("host", "evil.example"), ("authorization", "Bearer wrong")], 403, Some(-32600)),
        ("HTTP-13", &[("accept", "text/html"), ("authorization", "Bearer wrong")], 406, Some(-32600)),
        ("HTTP-13", &[("mcp-session-id", "x"), ("mcp-protocol-version", "x")], 404, Some(-32600)),
    ];
    let row = |(of, headers, status, code)| Row { of, by: By::Owner, headers, body: good.clone().into(), status, code };
    rows.into_iter().map(row).collect()
}

/// Well-formed requests that ask for what cannot be (CAP, TASK).
fn requests(foreign_task: &str, foreign_cursor: &str, cursor: &str, ended: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut refused = |of, body: String, code| rows.push(row(of, body, 200, code));
    for task in [r#"{"ttl":-1}"#, r#"{"ttl":0.5}"#, r#"{"ttl":"60000"}"#, r#"{"ttl":true}"#, r#"{"ttl":[]}"#]
        .into_iter()
        .chain([r#"{"ttl":9007199254740993}"#, r#"{"ttl":1e400}"#, r#"{"ttl":1e-400}"#])
        .chain(["null", "true", "[]", r#""x""#, "7"])
    {
        refused("TASK-03", call(&format!(r#"{{"name":"optional","task":{task}}}"#)), -32602);
    }
    for params in [r#"{"name":"never","task":{}}"#, r#"{"name":"never","task":7,"arguments":[]}"#] {
        refused("CAP-04", call(params), -32601);
    }
    refused("CAP-05", call(r#"{"name":"always"}"#), -32601);
    for name in [r#""nobody""#, r#""their name""#, r#""""#, r#""\ud800""#, r#""OPTIONAL""#, "7", "null", "{}"] {
        refused("CAP-12, TASK-25", call(&format!(r#"{{"name":{name},"task":{{}}}}"#)), -32602);
    }
    refused("CAP-12", call("{}"), -32602);
    for arguments in ["null", "[]", r#""x""#, "7"] {
        refused("EXEC-10", call(&format!(r#"{{"name":"optional","arguments":{arguments}}}"#)), -32602);
        refused("EXEC-10", call(&format!(r#"{{"name":"optional","arguments":{arguments},"task":{{}}}}"#)), -32602);
    }
    refused("EXEC-10", call(r#"{"name":"optional","arguments":{"bad":1},"task":{}}"#), -32602);
    let large = format!(r#"{{"name":"optional","arguments":{{"x":"{}"}},"task":{{}}}}"#, "y".repeat(100_001));
    refused("EXEC-10", call(&large), -32602);
    let long = format!("\"{}\"", "a".repeat(10_000));
    let missing = r#""786512e2-9e0d-44bd-8f29-789f320fe840""#;
    let foreign = format!("\"{foreign_task}\"");
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        for id in [missing, &foreign, &long, r#""""#, r#""\u0000""#, r#""\ud800""#, "null", "7", "{}", "[]"] {
            refused("TASK-11, TASK-25", request(method, &format!(r#"{{"taskId":{id}}}"#)), -32602);
        }
        refused("TASK-25", request(method, "{}"), -32602);
        refused("TASK-25", request(method, &format!(r#"{{"taskid":{missing}}}"#)), -32602);
    }
    refused("TASK-13", request("tasks/cancel", &format!(r#"{{"taskId":"{ended}"}}"#)), -32602);
    let changed = [&cursor[..cursor.len() - 2], "AA"].concat();
    for text in ["x", "", "1", cursor[1..].trim(), &changed, foreign_cursor, &"A".repeat(10_000), ended] {
        refused("TASK-18", request("tasks/list", &json!({ "cursor": text }).to_string()), -32602);
    }
    for value in ["null", "7", "{}", "[]", "true"] {
        refused("TASK-25", request("tasks/list", &format!(r#"{{"cursor":{value}}}"#)), -32602);
    }
    refused("CAP-11", request("tools/list", &json!({ "cursor": cursor }).to_string()), -32602);
    for method in ["prompts/list", "resources/read", "logging/setLevel", "completion/complete", "tasks/update", "", "x"]
    {
        refused("CAP-09, CAP-11", request(method, "{}"), -32601);
    }
    for params in ["{}", r#"{"protocolVersion":7}"#, r#"{"protocolVersion":"2025-11-25","capabilities":[]}"#] {
        refused("CAP-01", request("initialize", params), -32602);
    }
    for by in [By::Older, By::Taskless] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
            let body = request(method, &format!(r#"{{"taskId":"{ended}"}}"#));
            rows.push(Row { by, ..row("CAP-07", body, 200, -32601) });
        }
    }
    rows.push(Row {
        by: By::Older,
        ..row("EXEC-10", call(r#"{"name":"optional","arguments":{"bad":1}}"#), 200, -32602)
    });
    rows
}

// req: HTTP-04, HTTP-05, HTTP-08, HTTP-11, TASK-03, TASK-18, TASK-25, CAP-04, CAP-05, CAP-12, AUTH-01
// field case: F-SQL-02
async fn bad_input_gets_its_error_and_changes_nothing(database: TestDatabase) {
    let service = Service::start(database).await;
    let owner = service.client("owner").await;
    let (older, taskless) = (service.client_of("owner", "2025-06-18").await, service.client("someone@plain").await);
    let stranger = service.client("stranger").await;
    let mut lists = Vec::new();
    for client in [&owner, &stranger] {
        for _ in 0..4 {
            let task = client.task("optional", json!({})).await;
            service.script.next().await.answer("done");
            client.until_status(&task["taskId"], "completed").await;
        }
        lists.push(client.request("tasks/list", json!({})).await.result());
    }
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let [own, foreign] = [&lists[0], &lists[1]];
    let (ended, foreign_task) = (text(&own["tasks"][0]["taskId"]), text(&foreign["tasks"][0]["taskId"]));
    let asked = requests(&foreign_task, &text(&foreign["nextCursor"]), &text(&own["nextCursor"]), &ended);
    let before = service.database.rows().await;
    let mut count = 0;
    for row in messages().into_iter().chain(headers()).chain(asked) {
        let client = match row.by {
            By::Owner => &owner,
            By::Older => &older,
            By::Taskless => &taskless,
        };
        let shown = String::from_utf8_lossy(&row.body[..row.body.len().min(200)]).into_owned();
        let answer = ask(client, row.headers, row.body).await;
        let found = (answer.status, (!answer.body.is_empty()).then(|| answer.error().0));
        assert_eq!(found, (row.status, row.code), "{} {:?} {:?} {shown} {answer:?}", row.of, row.by, row.headers);
        assert_eq!(service.database.rows().await, before, "{} {shown}", row.of);
        count += 1;
    }
    assert!(count > 150, "{count} rows");
    assert!(service.script.is_idle().await, "nothing ran");
    for (client, list) in [(&owner, own), (&stranger, foreign)] {
        assert_eq!(client.request("tasks/list", json!({})).await.result(), *list);
    }
}

async fn ask(client: &Client, headers: Headers, body: Vec<u8>) -> Answer {
    let request = client.build(reqwest::Method::POST).header("content-type", "application/json").body(body);
    let mut request = request.build().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    Answer::read(client.http.execute(request).await.unwrap()).await
}
