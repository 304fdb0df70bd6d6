//! Tools that behave, and misbehave, as tests need it.

use std::io::Write;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::toolbox::{Caller, Era, Mode, Question, Reply, Toolbox};

pub(super) struct TestTools;

#[async_trait]
impl Toolbox for TestTools {
    fn definitions(&self) -> Vec<String> {
        let harmless = json!({ "readOnlyHint": true, "idempotentHint": true });
        let harmful = json!({ "readOnlyHint": false, "idempotentHint": false });
        let tool = |name: &str, description: &str, properties: serde_json::Value, annotations: &serde_json::Value| {
            json!({
                "name": name,
                "description": description,
                "inputSchema": { "type": "object", "properties": properties },
                "annotations": annotations,
            })
            .to_string()
        };
        let number = || json!({ "type": "number", "minimum": 0 });
        vec![
            tool("sleep", "Sleeps, then answers.", json!({ "ms": number() }), &harmless),
            tool("echo", "Answers with its arguments, verbatim.", json!({}), &harmless),
            tool(
                "reply",
                "Ends with the result or the error in its arguments, verbatim.",
                json!({ "result": { "type": "object" }, "error": { "type": "object" } }),
                &harmless,
            ),
            tool("fail_tool", "Ends with a tool error.", json!({ "message": { "type": "string" } }), &harmless),
            tool("fail_rpc", "Ends with a JSON-RPC error.", json!({ "code": { "type": "integer" } }), &harmless),
            tool("ask", "Asks n questions.", json!({ "n": number(), "at_once": { "type": "boolean" } }), &harmful),
            tool("sample", "Asks for a completion and answers with it.", json!({}), &harmful),
            tool("roots", "Asks for the client's roots and answers with them.", json!({}), &harmful),
            tool(
                "url_elicit",
                "Asks the user to open a URL; says that this was done after so many milliseconds.",
                json!({ "id": { "type": "string" }, "ms": number() }),
                &harmful,
            ),
            tool("log", "Writes n log messages.", json!({ "n": number() }), &harmless),
            tool(
                "task_only",
                "Sleeps, then answers; as a task only, where there are tasks.",
                json!({ "ms": number() }),
                &harmful,
            ),
            tool("big", "Answers with a text of so many bytes.", json!({ "bytes": number() }), &harmless),
            tool(
                "charge",
                "Appends a line to a file, then waits.",
                json!({ "file": { "type": "string" }, "ms": number() }),
                &harmful,
            ),
            tool("prog", "Sends n progress notes.", json!({ "n": number() }), &harmless),
            tool("crash", "Ends the server's process.", json!({}), &harmful),
            tool("deaf", "Sleeps, whatever is cancelled, then answers.", json!({ "ms": number() }), &harmless),
        ]
    }

    async fn call(&self, name: &str, arguments: &str, caller: &dyn Caller) -> Option<Reply> {
        if name == "reply" {
            return Some(reply(arguments));
        }
        let Ok(given) = serde_json::from_str::<Arguments>(arguments) else {
            // Arguments of echo may hold anything, also what no parser of ours takes.
            return Some(if name == "echo" {
                echo(arguments)
            } else {
                Reply::tool_error("these arguments do not fit")
            });
        };
        Some(match name {
            "sleep" | "deaf" | "task_only" => {
                pause(given.ms).await;
                Reply::text(&format!("slept {} ms", given.ms))
            }
            "echo" => echo(arguments),
            "fail_tool" => fail_tool(&given),
            "fail_rpc" => Reply::Error(
                json!({ "code": given.code, "message": "failed as asked", "data": { "tool": "fail_rpc" } }).to_string(),
            ),
            "ask" => ask(&given, caller).await,
            "sample" => sample(caller).await,
            "roots" => answer_of(caller.ask(Question::new("roots", "roots/list", "{}".to_owned())).await),
            "url_elicit" => url_elicit(&given, caller).await,
            "log" => {
                for n in 1..=given.n {
                    caller.log("info", &format!("line {n} of {}", given.n)).await;
                }
                Reply::text(&format!("{} lines written", given.n))
            }
            "big" => Reply::text(&"x".repeat(given.bytes)),
            "charge" => charge(&given).await,
            "prog" => {
                for n in 1..=given.n {
                    let message = format!("step {n} of {}", given.n);
                    caller.progress(f64::from(n), Some(f64::from(given.n)), Some(&message)).await;
                }
                Reply::text(&format!("{} steps done", given.n))
            }
            "crash" => std::process::exit(3),
            _ => return None,
        })
    }

    /// A client of the modern era cannot ask for a task: any call whose arguments have a true `as_task` becomes one.
    fn mode(&self, name: &str, arguments: &str) -> Mode {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Wish {
            as_task: bool,
        }
        match name {
            "task_only" => Mode::Always,
            _ if serde_json::from_str::<Wish>(arguments).unwrap_or_default().as_task => Mode::Eager,
            _ => Mode::Optional,
        }
    }

    fn is_deaf(&self, name: &str) -> bool {
        name == "deaf"
    }
}

#[derive(Deserialize)]
#[serde(default)]
struct Arguments {
    ms: f64,
    n: u32,
    bytes: usize,
    code: i64,
    file: String,
    message: String,
    at_once: bool,
    id: String,
}

impl Default for Arguments {
    fn default() -> Self {
        let message = "failed as asked".to_owned();
        Self {
            ms: 0.0,
            n: 1,
            bytes: 0,
            code: -32_000,
            file: String::new(),
            message,
            at_once: false,
            id: "e-1".to_owned(),
        }
    }
}

async fn pause(ms: f64) {
    tokio::time::sleep(Duration::from_secs_f64((ms / 1000.0).clamp(0.0, 86_400.0))).await;
}

/// The arguments' own text, as a text block and as structured content.
fn echo(arguments: &str) -> Reply {
    let text = json!(arguments);
    Reply::Result(format!(
        r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{arguments},"isError":false}}"#
    ))
}

/// What the arguments hold, untouched: also what no parser of ours takes.
fn reply(arguments: &str) -> Reply {
    #[derive(Deserialize)]
    struct Wanted<'a> {
        #[serde(borrow)]
        result: Option<&'a RawValue>,
        #[serde(borrow)]
        error: Option<&'a RawValue>,
    }
    match serde_json::from_str::<Wanted<'_>>(arguments) {
        Ok(Wanted { result: Some(result), error: None }) => Reply::Result(result.get().to_owned()),
        Ok(Wanted { result: None, error: Some(error) }) => Reply::Error(error.get().to_owned()),
        _ => Reply::tool_error("reply takes a result or an error"),
    }
}

fn fail_tool(given: &Arguments) -> Reply {
    Reply::Result(
        json!({
            "content": [{ "type": "text", "text": given.message }],
            "structuredContent": { "reason": given.message },
            "isError": true,
        })
        .to_string(),
    )
}

async fn ask(given: &Arguments, caller: &dyn Caller) -> Reply {
    if !caller.declared("elicitation") {
        return Reply::tool_error("this client cannot be asked (it declares no elicitation)");
    }
    let one = async |n: u32| {
        let question = json!({
            "message": format!("question {n} of {}", given.n),
            "requestedSchema": { "type": "object", "properties": { "answer": { "type": "string" } } },
        });
        let question = Question::new(format!("question-{n}"), "elicitation/create", question.to_string());
        let answer = caller.ask(question).await;
        answer.ok_or_else(|| format!("question {n} got no answer"))
    };
    let answers = if given.at_once {
        futures_util::future::try_join_all((1..=given.n).map(one)).await
    } else {
        let mut answers = Vec::new();
        for n in 1..=given.n {
            match one(n).await {
                Ok(answer) => answers.push(answer),
                Err(why) => return Reply::tool_error(&why),
            }
        }
        Ok(answers)
    };
    match answers {
        Ok(answers) => Reply::text(&format!("[{}]", answers.join(","))),
        Err(why) => Reply::tool_error(&why),
    }
}

async fn sample(caller: &dyn Caller) -> Reply {
    let message = json!({ "role": "user", "content": { "type": "text", "text": "say something" } });
    let params = json!({ "messages": [message], "maxTokens": 100 });
    answer_of(caller.ask(Question::new("sample", "sampling/createMessage", params.to_string())).await)
}

async fn url_elicit(given: &Arguments, caller: &dyn Caller) -> Reply {
    let mut params =
        json!({ "mode": "url", "message": "Please open this page.", "url": "https://example.com/authorize" });
    if caller.era() == Era::Legacy {
        params["elicitationId"] = json!(given.id);
    }
    let answer = caller.ask(Question::new("page", "elicitation/create", params.to_string())).await;
    if answer.as_ref().is_some_and(|answer| answer.contains("accept")) {
        pause(given.ms).await;
        caller.elicitation_complete(&given.id).await;
    }
    answer_of(answer)
}

/// The client's answer as a text.
fn answer_of(answer: Option<String>) -> Reply {
    answer.map_or_else(|| Reply::tool_error("the question got no answer"), |answer| Reply::text(&answer))
}

async fn charge(given: &Arguments) -> Reply {
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&given.file)
        .and_then(|mut file| file.write_all(b"charged\n"));
    if let Err(error) = written {
        return Reply::tool_error(&format!("cannot append to {}: {error}", given.file));
    }
    pause(given.ms).await;
    Reply::text("charged")
}
