//! LIFE-11 from end to end: hostile JSON through the real front, engine, store and a real upstream, and back.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::json::{members, object, on_one_line, space, string, value};
use super::{check, json};
use crate::http::harness::Gateway;
use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase};

const CASES: u32 = 200;
const RELATED: &str = "io.modelcontextprotocol/related-task";
/// What is inside `arguments`, itself the third level of a message.
const INSIDE_ARGUMENTS: usize = 127 - 3;

/// One call each of `echo`, and of `reply` with a result and with an error.
#[derive(Debug, Clone)]
struct Case {
    id: String,
    arguments: String,
    /// Members of `params` and of its `_meta` that mean nothing.
    unknown: String,
    result: Reply,
    error: String,
    spaces: [&'static str; 4],
    streamed: bool,
}

/// A result: its text, and where a `_meta` of its own ends.
#[derive(Debug, Clone)]
struct Reply {
    text: String,
    meta_end: Option<usize>,
}

// req: LIFE-11, HTTP-05, HTTP-11, EXEC-21
// field case: F-P25-02
#[test]
fn json_is_carried_byte_for_byte_on_sqlite() {
    carries(Backend::Sqlite);
}

// req: LIFE-11, HTTP-05, HTTP-11, EXEC-21
// field case: F-P25-02
#[test]
fn json_is_carried_byte_for_byte_on_postgres() {
    carries(Backend::Postgres);
}

fn carries(backend: Backend) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (gateway, client) = runtime.block_on(async {
        let gateway = Gateway::start(TestDatabase::new(backend).await).await;
        let client = gateway.client("owner").await;
        (gateway, client)
    });
    check(CASES, &cases(), |case| runtime.block_on(carried(&client, &case)));
    runtime.block_on(gateway.upstreams.stop());
    drop(runtime.enter());
    drop(gateway);
}

async fn carried(client: &Client, case: &Case) -> Result<(), TestCaseError> {
    let accept = if case.streamed { "text/event-stream" } else { "application/json" };
    let client = &Client { accept, ..client.clone() };

    let shown = on_one_line(&case.arguments);
    let echoed = format!(
        r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{shown},"isError":false}}"#,
        serde_json::Value::from(shown.as_str())
    );
    let echo = (r#""ech\u006f""#, case.arguments.as_str());
    same(client, case, echo, ("result", &echoed, &|task| inserted(&echoed, echoed.len() - 1, &meta(task)))).await?;

    let result = on_one_line(&case.result.text);
    let given = format!(r#"{{"result":{}}}"#, case.result.text);
    let related = |task: &str| match case.result.meta_end {
        Some(end) => inserted(&result, end, &format!(",{}", related(task))),
        None => inserted(&result, result.len() - 1, &meta(task)),
    };
    same(client, case, (r#""reply""#, &given), ("result", &result, &related)).await?;

    let error = on_one_line(&case.error);
    let given = format!(r#"{{"error":{}}}"#, case.error);
    same(client, case, (r#""reply""#, &given), ("error", &error, &|_| error.clone())).await
}

/// What a task of this id is to answer.
type AsTask<'a> = &'a (dyn Fn(&str) -> String + Sync);

/// Calls a tool plainly and as a task, and compares both answers.
async fn same(
    client: &Client,
    case: &Case,
    (tool, arguments): (&str, &str),
    (kind, plain, as_task): (&str, &str, AsTask<'_>),
) -> Result<(), TestCaseError> {
    let [a, b, c, d] = case.spaces;
    let (id, unknown) = (&case.id, &case.unknown);
    let call = |task: &str| {
        format!(
            "{a}{{\"method\"{b}:{c}\"tools/call\",{d}\"params\":{{{a}\"arguments\":{b}{arguments}{c},{d}\
             \"name\":{tool}{task},{unknown}}}{a},\"id\":{b}{id}{c},{d}\"jsonrpc\":\"2.0\"{a}}}{b}"
        )
    };
    let answer = |body: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"{kind}":{body}}}"#);
    let task = async {
        let created = client.send(&call(r#","task":{"ttl":60000}"#)).await;
        // No parser of ours takes every id that comes back.
        let (_, rest) = created.text().split_once(r#""taskId":""#).unwrap_or_else(|| panic!("{created:?}"));
        let task = rest[..36].to_owned();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tasks/result","params":{{"taskId":"{task}"}}}}"#);
        (client.send(&body).await, client.send(&body).await, task)
    };
    let body = call("");
    let (direct, (first, again, task)) = tokio::join!(client.send(&body), task);
    let expected = answer(plain);
    prop_assert_eq!((direct.status, direct.text()), (200, expected.as_str()));
    let expected = answer(&as_task(&task));
    prop_assert_eq!((first.status, first.text()), (200, expected.as_str()));
    prop_assert_eq!(again.text(), expected.as_str());
    Ok(())
}

fn related(task: &str) -> String {
    format!(r#""{RELATED}":{{"taskId":"{task}"}}"#)
}

fn meta(task: &str) -> String {
    format!(r#","_meta":{{{}}}"#, related(task))
}

fn inserted(text: &str, at: usize, what: &str) -> String {
    [&text[..at], what, &text[at..]].concat()
}

fn cases() -> impl Strategy<Value = Case> {
    let ids = ["0", "-1", "18446744073709551616", r#""""#, r#""\u0000\ud800\/é""#].map(str::to_owned).to_vec();
    // The upstream of these tests reads the names in `params` as text, so that they are text.
    let unknown = (value(8), value(8)).prop_map(|(meta, more)| format!(r#""_meta":{{"k":{meta}}},"more":{more}"#));
    let arguments = members(INSIDE_ARGUMENTS).prop_map(|members| object(&members));
    let spaces = [space(), space(), space(), space()];
    (prop::sample::select(ids), arguments, unknown, results(), errors(), spaces, any::<bool>()).prop_map(
        |(id, arguments, unknown, result, error, spaces, streamed)| Case {
            id,
            arguments,
            unknown,
            result,
            error,
            spaces,
            streamed,
        },
    )
}

/// Results as an upstream may write them; one level more is in the arguments that ask for them.
fn results() -> impl Strategy<Value = Reply> {
    let meta = prop::option::of((json::space(), members(20), json::space()));
    let is_error = prop::sample::select(vec!["", "\"isError\" : true,", "\"isError\":false,\"isError\":false,"]);
    (members(INSIDE_ARGUMENTS - 1), meta, is_error, members(8)).prop_map(|(first, meta, is_error, last)| {
        let mut text = format!("{{{is_error}{}", first.join(","));
        let meta_end = meta.map(|(before, members, after)| {
            text.push_str(&format!(",{before}\"_meta\":{after}{{{}", members.join(",")));
            let end = text.len();
            text.push('}');
            end
        });
        text.push_str(&format!(",\"content\":[{}]}}", object(&last)));
        Reply { text, meta_end }
    })
}

fn errors() -> impl Strategy<Value = String> {
    let code = prop::sample::select(vec!["-32011", "0", "-0", "123456789012345678901234567890"]);
    let member = (space(), space(), code, string(), value(INSIDE_ARGUMENTS - 1), value(8));
    (member, any::<bool>()).prop_map(|((a, b, code, message, data, more), reversed)| {
        let mut members = vec![
            format!("{a}\"code\"{b}:{code}"),
            format!("\"message\":{a}{message}{b}"),
            format!("\"data\"{a}:{b}{data}"),
            format!("{b}\"more\":{more}{a}"),
        ];
        if reversed {
            members.reverse();
        }
        object(&members)
    })
}
