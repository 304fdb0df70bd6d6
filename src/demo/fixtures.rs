//! Tools described by a file: what they answer, after which steps and questions.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::placeholders::{Names, fill};
use super::rpc::{Caller, Reply, Toolbox};

pub(super) struct Fixtures {
    tools: Vec<Fixture>,
}

#[derive(Deserialize)]
struct File {
    tools: Vec<Fixture>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fixture {
    name: String,
    description: String,
    input_schema: Box<RawValue>,
    #[serde(default)]
    task: Option<Support>,
    /// Questions asked before anything runs.
    #[serde(default)]
    mrtr: Vec<Round>,
    #[serde(default)]
    requires_client_capabilities: BTreeMap<String, Value>,
    steps: Vec<Step>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum Support {
    Forbidden,
    Optional,
    Required,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Round {
    inputs: BTreeMap<String, Question>,
    #[serde(default)]
    filter_by_client_capabilities: bool,
}

#[derive(Deserialize)]
struct Question {
    method: String,
    params: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    SleepMs(u64),
    /// The name of the argument that holds the seconds.
    SleepSeconds(String),
    Progress(f64, f64),
    Input(BTreeMap<String, Question>),
    ProtocolError(Value),
    Result(Value),
}

impl Fixtures {
    pub(super) fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        // Line breaks can only stand between tokens; schemas are passed on as text, one message a line.
        let File { tools } = serde_json::from_str(&text.replace(['\n', '\r'], " ")).context("it does not fit")?;
        Ok(Self { tools })
    }
}

#[async_trait]
impl Toolbox for Fixtures {
    fn definitions(&self) -> Vec<String> {
        self.tools.iter().map(Fixture::definition).collect()
    }

    async fn call(&self, name: &str, arguments: &str, caller: &Caller) -> Option<Reply> {
        let fixture = self.tools.iter().find(|fixture| fixture.name == name)?;
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return Some(Reply::error(-32602, "these arguments cannot be read"));
        };
        Some(fixture.run(&arguments, caller).await.unwrap_or_else(|refusal| refusal))
    }
}

impl Fixture {
    fn definition(&self) -> String {
        let hint = match self.task {
            None => String::new(),
            Some(Support::Forbidden) => r#","_meta":{"io.taskhold/task":"never"}"#.to_owned(),
            Some(Support::Optional) => r#","_meta":{"io.taskhold/task":"eager"}"#.to_owned(),
            Some(Support::Required) if self.mrtr.is_empty() => r#","_meta":{"io.taskhold/task":"always"}"#.to_owned(),
            Some(Support::Required) => r#","_meta":{"io.taskhold/task":{"mode":"always","askFirst":true}}"#.to_owned(),
        };
        format!(
            r#"{{"name":{},"description":{},"inputSchema":{}{hint}}}"#,
            json!(self.name),
            json!(self.description),
            self.input_schema
        )
    }

    /// `Err` is a refusal that ends the call early.
    async fn run(&self, arguments: &Value, caller: &Caller) -> Result<Reply, Reply> {
        if let Some(missing) = self.requires_client_capabilities.keys().find(|name| !caller.declared(name)) {
            return Err(Reply::tool_error(&format!("this tool needs the client capability {missing}")));
        }
        let mut answers = json!({});
        for round in &self.mrtr {
            ask(&round.inputs, round.filter_by_client_capabilities, arguments, &mut answers, caller).await?;
        }
        for step in &self.steps {
            match step {
                Step::SleepMs(ms) => tokio::time::sleep(Duration::from_millis(*ms)).await,
                Step::SleepSeconds(name) => {
                    let seconds = arguments.get(name).and_then(Value::as_f64).unwrap_or(0.0);
                    tokio::time::sleep(Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0))).await;
                }
                Step::Progress(progress, total) => caller.progress(*progress, Some(*total), None).await,
                Step::Input(inputs) => ask(inputs, false, arguments, &mut answers, caller).await?,
                Step::ProtocolError(error) => return Ok(Reply::Error(error.to_string())),
                Step::Result(result) => {
                    return Ok(Reply::Result(fill(result, &Names { arguments, answers: &answers }).to_string()));
                }
            }
        }
        Err(Reply::error(-32603, "this fixture has no result"))
    }
}

/// Asks all questions of one round at once and keeps the answers.
async fn ask(
    inputs: &BTreeMap<String, Question>,
    only_declared: bool,
    arguments: &Value,
    answers: &mut Value,
    caller: &Caller,
) -> Result<(), Reply> {
    let names = Names { arguments, answers: &json!({}) };
    let mut asked = Vec::new();
    for (key, question) in inputs {
        let capability = question.method.split('/').next().unwrap_or_default();
        if caller.declared(capability) {
            let params = fill(&question.params, &names).to_string();
            asked.push(async move { (key, caller.ask(&question.method, &params).await) });
        } else if !only_declared {
            return Err(Reply::tool_error(&format!("this tool needs the client capability {capability}")));
        }
    }
    for (key, answer) in futures_util::future::join_all(asked).await {
        let answer = answer.and_then(|answer| serde_json::from_str(&answer).ok());
        answers[key] = answer.ok_or_else(|| Reply::tool_error(&format!("the question {key} got no usable answer")))?;
    }
    Ok(())
}
