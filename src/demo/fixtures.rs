//! Tools described by a file: what they answer, after which steps and questions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::placeholders::{Names, fill};
use super::toolbox::{Caller, Mode, Question, Reply, Toolbox};

pub(super) struct Fixtures {
    tools: Vec<Fixture>,
    pub(super) changes: Changes,
}

/// How often each list changed.
#[derive(Default)]
pub(super) struct Changes {
    tools: AtomicUsize,
    pub(super) prompts: AtomicUsize,
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
    /// Comes and goes with each change of the list of tools.
    #[serde(default)]
    is_fleeting: bool,
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
    inputs: BTreeMap<String, Input>,
    #[serde(default)]
    filter_by_client_capabilities: bool,
    /// Whether the modern era's answers need the state that went out with the questions.
    #[serde(default)]
    state: bool,
}

#[derive(Deserialize)]
struct Input {
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
    /// Level and text of a log message.
    Log(String, String),
    /// The name of the argument that holds the URI of a resource that changed.
    Touch(String),
    /// `tools` or `prompts`: that list changes.
    Change(String),
    #[serde(deserialize_with = "inputs_alone")]
    Input(Round),
    ProtocolError(Value),
    Result(Value),
}

impl Fixtures {
    pub(super) fn load(path: &Path) -> anyhow::Result<Self> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// The tools of the text of such a file.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        // Line breaks can only stand between tokens; schemas are passed on as text, one message a line.
        let File { tools } = serde_json::from_str(&text.replace(['\n', '\r'], " ")).context("it does not fit")?;
        Ok(Self { tools, changes: Changes::default() })
    }
}

#[async_trait]
impl Toolbox for Fixtures {
    fn definitions(&self) -> Vec<String> {
        let with_fleeting = self.changes.tools.load(Ordering::Relaxed) % 2 == 1;
        self.tools.iter().filter(|tool| with_fleeting || !tool.is_fleeting).map(Fixture::definition).collect()
    }

    async fn call(&self, name: &str, arguments: &str, caller: &dyn Caller) -> Option<Reply> {
        let fixture = self.find(name)?;
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return Some(Reply::error(-32602, "these arguments cannot be read"));
        };
        Some(fixture.run(&arguments, caller, &self.changes).await.unwrap_or_else(|refusal| refusal))
    }

    fn mode(&self, name: &str, _arguments: &str) -> Mode {
        match self.find(name).and_then(|fixture| fixture.task) {
            None => Mode::Optional,
            Some(Support::Forbidden) => Mode::Never,
            Some(Support::Optional) => Mode::Eager,
            Some(Support::Required) => Mode::Always,
        }
    }

    fn asks_first(&self, name: &str) -> bool {
        self.find(name).is_some_and(|fixture| !fixture.mrtr.is_empty())
    }
}

impl Fixtures {
    fn find(&self, name: &str) -> Option<&Fixture> {
        self.tools.iter().find(|fixture| fixture.name == name)
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
    async fn run(&self, arguments: &Value, caller: &dyn Caller, changes: &Changes) -> Result<Reply, Reply> {
        let required = &self.requires_client_capabilities;
        if required.keys().any(|name| !caller.declared(name)) {
            return Err(Reply::Missing(json!(required)));
        }
        let mut answers = json!({});
        for round in &self.mrtr {
            ask(round, arguments, &mut answers, caller).await?;
        }
        caller.begin().await;
        for step in &self.steps {
            match step {
                Step::SleepMs(ms) => tokio::time::sleep(Duration::from_millis(*ms)).await,
                Step::SleepSeconds(name) => {
                    let seconds = arguments.get(name).and_then(Value::as_f64).unwrap_or(0.0);
                    tokio::time::sleep(Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0))).await;
                }
                Step::Progress(progress, total) => caller.progress(*progress, Some(*total), None).await,
                Step::Log(level, text) => caller.log(level, text).await,
                Step::Touch(name) => {
                    if let Some(uri) = arguments.get(name).and_then(Value::as_str) {
                        caller.resource_updated(uri).await;
                    }
                }
                Step::Change(kind) => {
                    let count = if kind == "prompts" { &changes.prompts } else { &changes.tools };
                    count.fetch_add(1, Ordering::Relaxed);
                    caller.list_changed(kind).await;
                }
                Step::Input(round) => ask(round, arguments, &mut answers, caller).await?,
                Step::ProtocolError(error) => return Ok(Reply::Error(error.to_string())),
                Step::Result(result) => {
                    return Ok(Reply::Result(fill(result, &Names { arguments, answers: &answers }).to_string()));
                }
            }
        }
        Err(Reply::error(-32603, "this fixture has no result"))
    }
}

/// The questions of a step, which are nobody's first ones.
fn inputs_alone<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Round, D::Error> {
    let inputs = BTreeMap::deserialize(deserializer)?;
    Ok(Round { inputs, filter_by_client_capabilities: false, state: true })
}

/// Asks all questions of one round at once and keeps the answers.
async fn ask(round: &Round, arguments: &Value, answers: &mut Value, caller: &dyn Caller) -> Result<(), Reply> {
    let names = Names { arguments, answers: &json!({}) };
    let mut asked = Vec::new();
    for (key, input) in &round.inputs {
        let params = fill(&input.params, &names).to_string();
        let question = Question { needs_state: round.state, ..Question::new(key, &input.method, params) };
        if caller.declared(question.capability()) {
            asked.push(async move { (key, caller.ask(question).await) });
        } else if !round.filter_by_client_capabilities {
            return Err(Reply::Missing(json!({ question.capability(): {} })));
        }
    }
    for (key, answer) in futures_util::future::join_all(asked).await {
        let answer = answer.and_then(|answer| serde_json::from_str(&answer).ok());
        answers[key] = answer.ok_or_else(|| Reply::tool_error(&format!("the question {key} got no usable answer")))?;
    }
    Ok(())
}
