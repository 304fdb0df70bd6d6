//! Upstreams under test, and how to wait for what they do.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use taskhold::domain::clock::{Clock, SystemClock};
use taskhold::domain::ids::ContextId;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::upstream::{KEPT_VARIABLES, Launcher, Protocol, Settings, UpstreamConfig, Upstreams};
use taskhold::executor::{Attempt, Call, Catalogue, Executor};
use tokio_util::sync::CancellationToken;

use crate::support::database::{Backend, TestDatabase};
use crate::support::host::{Heard, listener};

pub const BINARY: &str = env!("CARGO_BIN_EXE_taskhold");
/// Long for what takes milliseconds: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

#[expect(clippy::disallowed_methods, reason = "stands for the configuration, which reads the environment")]
pub fn settings() -> Settings {
    let environment = std::env::vars().filter(|(name, _)| KEPT_VARIABLES.contains(&name.as_str())).collect();
    Settings::new(Launcher { supervisor: PathBuf::from(BINARY), environment })
}

/// The demo server with its test tools, in the legacy era.
pub fn test_tools(name: &str) -> UpstreamConfig {
    let command = [BINARY, "demo-server", "--test-tools"];
    legacy(UpstreamConfig::new(name, command.map(str::to_owned).into()))
}

/// A shell script as an upstream of the legacy era.
pub fn script(name: &str, script: &str) -> UpstreamConfig {
    legacy(UpstreamConfig::new(name, vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()]))
}

/// An upstream that is not asked which era it speaks.
pub fn legacy(config: UpstreamConfig) -> UpstreamConfig {
    UpstreamConfig { protocol: Protocol::Legacy, ..config }
}

pub struct World {
    pub upstreams: Arc<Upstreams>,
    pub database: TestDatabase,
}

impl World {
    /// Started, and every upstream heard of.
    pub async fn new(configs: Vec<UpstreamConfig>) -> Self {
        Self::with(settings(), configs).await
    }

    pub async fn with(settings: Settings, configs: Vec<UpstreamConfig>) -> Self {
        Self::at(SystemClock::new(), settings, configs).await
    }

    pub async fn at(clock: Arc<dyn Clock>, settings: Settings, configs: Vec<UpstreamConfig>) -> Self {
        let database = TestDatabase::new(Backend::Sqlite).await;
        let upstreams = Upstreams::start(configs, settings, database.store.system(), clock).await;
        within("the upstreams to settle", upstreams.settled()).await;
        Self { upstreams, database }
    }

    /// Starts a call; its end comes from the handle.
    pub fn call(&self, context: ContextId, tool: &str, arguments: &str) -> Running {
        self.run(self.prepare(context, tool, arguments))
    }

    /// Starts a call that its caller has as a task.
    pub fn call_stored(&self, context: ContextId, tool: &str, arguments: &str) -> Running {
        self.run(Call { is_task: true, ..self.prepare(context, tool, arguments) })
    }

    pub fn run(&self, call: Call) -> Running {
        let (host, heard) = listener();
        let stop = CancellationToken::new();
        let upstreams = Arc::clone(&self.upstreams);
        let stopper = stop.clone();
        let work = taskhold::lifecycle::spawn("test call", async move { upstreams.run(call, host, stop).await });
        Running { work, heard, stop: stopper }
    }

    /// Runs a call to its end.
    pub async fn answer(&self, context: ContextId, tool: &str, arguments: &str) -> Attempt {
        self.call(context, tool, arguments).end().await
    }

    pub fn prepare(&self, context: ContextId, tool: &str, arguments: &str) -> Call {
        let tool = self.upstreams.tool(tool).unwrap_or_else(|| panic!("{tool} is offered"));
        Call {
            context,
            upstream: tool.upstream.clone(),
            upstream_tool: tool.upstream_tool.clone(),
            params: RawJson::trusted(format!(
                r#"{{"name":"{}","arguments":{arguments},"_meta":{{"progressToken":"theirs"}}}}"#,
                tool.exposed
            )),
            capabilities: RawJson::trusted(r#"{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}"#),
            attempt: 1,
            is_task: false,
            resume: None,
        }
    }

    pub fn tool_names(&self) -> Vec<String> {
        self.upstreams.tools().iter().map(|tool| tool.exposed.clone()).collect()
    }
}

pub struct Running {
    pub work: tokio::task::JoinHandle<Attempt>,
    pub heard: Heard,
    pub stop: CancellationToken,
}

impl Running {
    /// Its end; who asks on the way gets no answer but an error.
    pub async fn end(self) -> Attempt {
        let Self { work, heard, stop: _stop } = self;
        drop(heard.questions);
        within("a call to end", work).await.unwrap()
    }
}

pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// Asks again and again until the answer is yes.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The text of a result's first block.
pub fn text(attempt: &Attempt) -> String {
    let Attempt::Answered(Outcome::Result { json, .. }) = attempt else { panic!("a result, not {attempt:?}") };
    let result: Value = serde_json::from_str(json.as_str()).unwrap();
    result["content"][0]["text"].as_str().unwrap().to_owned()
}

/// The error of an outcome.
pub fn error(attempt: &Attempt) -> Value {
    let Attempt::Answered(Outcome::Error { json }) = attempt else { panic!("an error, not {attempt:?}") };
    serde_json::from_str(json.as_str()).unwrap()
}

pub fn is_running(pid: i32) -> bool {
    // A zombie has ended; only its parent has not looked yet.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
}

/// The process id that a script wrote to a file.
pub async fn pid_in(file: &Path) -> i32 {
    let read = || std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
    until("a process id", || read().is_some()).await;
    read().unwrap()
}
