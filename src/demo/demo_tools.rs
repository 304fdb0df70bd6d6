//! The tools that `taskhold serve --demo` shows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use super::primes;
use super::toolbox::{Caller, Mode, Question, Reply, Toolbox};

/// Trial division up to here takes minutes; more would only burn a processor.
const MOST_BELOW: u64 = 200_000_000;
const MOST_SECONDS: f64 = 86_400.0;

pub(super) struct DemoTools;

#[async_trait]
impl Toolbox for DemoTools {
    fn definitions(&self) -> Vec<String> {
        let harmless = json!({ "readOnlyHint": true, "idempotentHint": true });
        [
            json!({
                "name": "count_primes",
                "title": "Count primes",
                "description": "Counts the prime numbers below a bound by trial division; a few million take seconds.",
                "inputSchema": {
                    "type": "object",
                    "properties": { "below": { "type": "integer", "minimum": 0, "maximum": MOST_BELOW } },
                    "required": ["below"],
                },
                "outputSchema": {
                    "type": "object",
                    "properties": { "below": { "type": "integer" }, "count": { "type": "integer" } },
                    "required": ["below", "count"],
                },
                "annotations": harmless,
                "_meta": { "io.taskhold/task": "eager" },
            }),
            json!({
                "name": "wait",
                "title": "Wait",
                "description": "Waits for some seconds, then says so.",
                "inputSchema": {
                    "type": "object",
                    "properties": { "seconds": { "type": "number", "minimum": 0, "maximum": MOST_SECONDS } },
                    "required": ["seconds"],
                },
                "annotations": harmless,
                "_meta": { "io.taskhold/task": "eager" },
            }),
            json!({
                "name": "fail",
                "title": "Fail",
                "description": "Ends with a tool error that carries the message.",
                "inputSchema": { "type": "object", "properties": { "message": { "type": "string" } } },
                "annotations": harmless,
            }),
            json!({
                "name": "crash",
                "title": "Crash",
                "description": "Ends the server's process in the middle of the call.",
                "inputSchema": { "type": "object", "properties": {} },
                "annotations": { "readOnlyHint": false, "destructiveHint": true },
            }),
            json!({
                "name": "confirm_delete",
                "title": "Confirm a deletion",
                "description": "Asks for a confirmation before it pretends to delete a file.",
                "inputSchema": {
                    "type": "object",
                    "properties": { "filename": { "type": "string" } },
                    "required": ["filename"],
                },
                "annotations": { "readOnlyHint": false },
                "_meta": { "io.taskhold/task": "eager" },
            }),
        ]
        .map(|definition| definition.to_string())
        .into()
    }

    async fn call(&self, name: &str, arguments: &str, caller: &dyn Caller) -> Option<Reply> {
        Some(match name {
            "count_primes" => count_primes(arguments, caller).await,
            "wait" => wait(arguments).await,
            "fail" => fail(arguments),
            "crash" => std::process::exit(3),
            "confirm_delete" => confirm_delete(arguments, caller).await,
            _ => return None,
        })
    }

    fn mode(&self, name: &str, _arguments: &str) -> Mode {
        match name {
            "count_primes" | "wait" | "confirm_delete" => Mode::Eager,
            _ => Mode::Optional,
        }
    }
}

async fn count_primes(arguments: &str, caller: &dyn Caller) -> Reply {
    #[derive(Deserialize)]
    struct Arguments {
        below: f64,
    }
    let Ok(Arguments { below }) = serde_json::from_str(arguments) else {
        return Reply::tool_error("count_primes needs a number `below`");
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded in this very line")]
    let below = below.clamp(0.0, MOST_BELOW as f64) as u64;
    let progress = Arc::new(primes::Progress::default());
    // Stops the thread also when this future is dropped.
    let stop = caller.stop().child_token();
    let _guard = stop.clone().drop_guard();
    let mut work = tokio::task::spawn_blocking({
        let (progress, stop) = (Arc::clone(&progress), stop);
        move || primes::count(below, &progress, &stop)
    });
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Skip);
    second.tick().await;
    loop {
        tokio::select! {
            count = &mut work => {
                let Ok(Some(count)) = count else { return Reply::tool_error("the count was stopped") };
                let text = format!("there are {count} primes below {below}");
                return Reply::Result(json!({
                    "content": [{ "type": "text", "text": text }],
                    "structuredContent": { "below": below, "count": count },
                }).to_string());
            }
            _ = second.tick() => {
                let (at, found) = (progress.at.load(Ordering::Relaxed), progress.found.load(Ordering::Relaxed));
                let message = format!("{found} primes up to {at}");
                caller.progress(at as f64, Some(below as f64), Some(&message)).await;
            }
        }
    }
}

async fn wait(arguments: &str) -> Reply {
    #[derive(Deserialize)]
    struct Arguments {
        seconds: f64,
    }
    let Ok(Arguments { seconds }) = serde_json::from_str(arguments) else {
        return Reply::tool_error("wait needs a number `seconds`");
    };
    tokio::time::sleep(Duration::from_secs_f64(seconds.clamp(0.0, MOST_SECONDS))).await;
    Reply::text(&format!("waited {seconds} s"))
}

fn fail(arguments: &str) -> Reply {
    #[derive(Deserialize)]
    struct Arguments {
        #[serde(default = "Arguments::message")]
        message: String,
    }
    impl Arguments {
        fn message() -> String {
            "failed as asked".to_owned()
        }
    }
    match serde_json::from_str::<Arguments>(arguments) {
        Ok(arguments) => Reply::tool_error(&arguments.message),
        Err(_) => Reply::tool_error("fail takes a text `message`"),
    }
}

async fn confirm_delete(arguments: &str, caller: &dyn Caller) -> Reply {
    #[derive(Deserialize)]
    struct Arguments {
        filename: String,
    }
    #[derive(Deserialize)]
    struct Answer {
        action: String,
        #[serde(default)]
        content: Content,
    }
    #[derive(Deserialize, Default)]
    struct Content {
        #[serde(default)]
        confirm: bool,
    }
    let Ok(Arguments { filename }) = serde_json::from_str(arguments) else {
        return Reply::tool_error("confirm_delete needs a text `filename`");
    };
    if !caller.declared("elicitation") {
        return Reply::tool_error(&format!(
            "{filename} was not deleted: this client cannot be asked for a confirmation (it declares no elicitation)"
        ));
    }
    let question = json!({
        "message": format!("Delete {filename}?"),
        "requestedSchema": {
            "type": "object",
            "properties": { "confirm": { "type": "boolean", "title": "Delete it" } },
            "required": ["confirm"],
        },
    });
    let answer = caller.ask(Question::new("confirm", "elicitation/create", question.to_string())).await;
    let answer = answer.and_then(|answer| serde_json::from_str::<Answer>(&answer).ok());
    match answer {
        Some(answer) if answer.action == "accept" && answer.content.confirm => {
            Reply::text(&format!("deleted {filename} (not really, this is a demo)"))
        }
        Some(_) => Reply::text(&format!("kept {filename}")),
        None => Reply::tool_error(&format!("{filename} was not deleted: the question got no usable answer")),
    }
}
