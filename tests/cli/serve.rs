//! `taskhold serve` from its first line to its exit code.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use super::run;

/// A running service that has said that it listens; killed when dropped.
struct Serving {
    child: Child,
    lines: BufReader<ChildStderr>,
    /// Standard error up to and with the readiness line.
    said: String,
    url: String,
}

impl Serving {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskhold"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TASKHOLD")) {
            command.env_remove(name);
        }
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(folder);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let ready = loop {
            let before = said.len();
            assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it ended: {said}");
            if let Some(url) = said[before..].trim_end().strip_prefix("taskhold is listening on ") {
                break url.to_owned();
            }
        };
        Self { child, lines, said, url: ready }
    }

    fn ask_to_stop(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Reads standard error up to a line that contains `part`.
    fn until_it_says(&mut self, part: &str) {
        let mut before = self.said.len();
        while !self.said[before..].contains(part) {
            before = self.said.len();
            assert_ne!(self.lines.read_line(&mut self.said).unwrap(), 0, "it ended: {}", self.said);
        }
    }

    /// Reads standard error until each of these stands there, in whichever order.
    fn until_it_has_said(&mut self, parts: &[&str]) {
        while !parts.iter().all(|part| self.said.contains(part)) {
            assert_ne!(self.lines.read_line(&mut self.said).unwrap(), 0, "it ended: {}", self.said);
        }
    }

    /// SIGTERM; answers the exit code and all of standard error.
    fn stop(mut self) -> (Option<i32>, String) {
        self.ask_to_stop();
        let mut said = std::mem::take(&mut self.said);
        std::io::Read::read_to_string(&mut self.lines, &mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

async fn post(url: &str, headers: &[(&str, &str)], body: String) -> reqwest::Response {
    let mut request = reqwest::Client::new().post(url).header("Content-Type", "application/json").body(body);
    for (name, value) in [("Accept", "application/json")].iter().chain(headers) {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

/// The HTTP status of an `initialize`.
fn initialize(url: &str, token: Option<&str>) -> u16 {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(post(url, &headers, INITIALIZE.to_owned())).status().as_u16()
}

/// A service without authentication whose tool `charge` has begun to run as a plain call of `ms`.
struct Charging {
    serving: Serving,
    runtime: tokio::runtime::Runtime,
    answer: tokio::task::JoinHandle<Result<String, reqwest::Error>>,
}

impl Charging {
    fn start(folder: &Path, ms: u32) -> Self {
        let upstream = format!("test={} demo-server --test-tools", env!("CARGO_BIN_EXE_taskhold"));
        let serving = Serving::start(folder, &["--auth", "none", "--upstream", &upstream]);
        let file = folder.join("charged");
        let call = serde_json::json!({
            "jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": { "name": "charge", "arguments": { "file": file, "ms": ms } },
        });
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let url = serving.url.clone();
        let session = runtime.block_on(async {
            let initialized = post(&url, &[], INITIALIZE.to_owned()).await;
            let session = initialized.headers()["mcp-session-id"].to_str().unwrap().to_owned();
            let list = r#"{"jsonrpc":"2.0","id":3,"method":"tools/list"}"#.to_owned();
            let headers = [("Mcp-Session-Id", session.as_str())];
            until(async || post(&url, &headers, list.clone()).await.text().await.unwrap().contains("charge")).await;
            session
        });
        let answer = runtime.spawn(async move {
            post(&url, &[("Mcp-Session-Id", session.as_str())], call.to_string()).await.text().await
        });
        runtime.block_on(until(async || file.exists()));
        Self { serving, runtime, answer }
    }
}

/// Polls a condition of another process.
async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), wait).await.unwrap();
}

// req: OPS-03
#[test]
fn without_tokens_it_prints_the_command_that_makes_one_and_that_command_works() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start(folder.path(), &["--database-url", "sqlite://my tasks.db"]);
    let hint = serving.said.lines().find_map(|line| line.strip_prefix("  taskhold ")).unwrap();
    assert_eq!(hint, "token create --name NAME --database-url 'sqlite://my tasks.db'");
    let arguments = shell_words::split(hint).unwrap();
    let (code, stdout, stderr) = run(folder.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(initialize(&serving.url, Some(stdout.trim())), 200, "at once, without a restart");
    assert_eq!(initialize(&serving.url, None), 401);
    serving.stop();
    let again = Serving::start(folder.path(), &["--database-url", "sqlite://my tasks.db"]);
    assert!(!again.said.contains("token create"), "{}", again.said);
}

// req: OPS-08
#[test]
fn it_stops_with_0_when_asked_to_and_logs_json_lines_where_no_terminal_is() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) = Serving::start(folder.path(), &["--auth", "none"]).stop();
    assert_eq!(code, Some(0), "{said}");
    let logged: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(logged.iter().any(|line| line["level"] == "INFO" && line["signal"] == "SIGTERM"), "{said}");
}

// req: KEEP-10
#[test]
fn a_plain_call_that_runs_gets_the_drain_period() {
    let folder = tempfile::tempdir().unwrap();
    let Charging { serving, runtime, answer } = Charging::start(folder.path(), 3_000);
    let (code, said) = serving.stop();
    assert_eq!(code, Some(0), "{said}");
    let answer = runtime.block_on(answer).unwrap().unwrap();
    assert!(answer.contains(r#""text":"charged""#), "{answer}");
}

// req: KEEP-10
#[test]
fn a_plain_call_that_outlasts_the_drain_is_told_that_its_outcome_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("taskhold.toml"), "[server]\ndrain = \"0s\"\n").unwrap();
    let Charging { serving, runtime, answer } = Charging::start(folder.path(), 60_000);
    let (code, said) = serving.stop();
    assert_eq!(code, Some(0), "{said}");
    let answer = runtime.block_on(answer).unwrap().unwrap();
    assert!(answer.contains("-32603") && answer.contains(r#""reason":"outcome_unknown""#), "{answer}");
}

#[test]
fn a_second_signal_stops_at_once() {
    let folder = tempfile::tempdir().unwrap();
    // Its client must go on waiting: a call that nobody waits for holds nothing up.
    let Charging { mut serving, runtime: _waits, .. } = Charging::start(folder.path(), 60_000);
    serving.ask_to_stop();
    serving.until_it_says("stopping: running work gets time to end");
    let (code, said) = serving.stop();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("stopping at once"), "{said}");
}

// req: AUTH-09
#[test]
fn without_authentication_the_log_says_what_that_means() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start(folder.path(), &["--auth", "none"]);
    assert_eq!(initialize(&serving.url, None), 200);
    let (_, said) = serving.stop();
    let warning = said.lines().find(|line| line.contains("authentication is off")).unwrap();
    assert!(warning.contains("tasks are not listed"), "{warning}");
    assert!(!said.contains("token create"), "{said}");
}

#[test]
fn every_demo_token_is_fresh_and_sees_the_tasks_of_earlier_runs() {
    let folder = tempfile::tempdir().unwrap();
    let token = |said: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix("TOKEN=")).unwrap();
        line.to_owned()
    };
    let tokens: Vec<String> = (0..2)
        .map(|_| {
            let serving = Serving::start(folder.path(), &["--demo"]);
            assert!(serving.said.contains(&format!("URL={}\n", serving.url)), "{}", serving.said);
            let token = token(&serving.said);
            assert_eq!(initialize(&serving.url, Some(&token)), 200);
            serving.stop();
            token
        })
        .collect();
    assert_ne!(tokens[0], tokens[1]);
    let (_, listed, _) = run(folder.path(), &["token", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((listed[0]["name"].as_str(), listed.as_array().unwrap().len()), (Some("demo"), 2));
    assert_eq!(listed[0]["context"], listed[1]["context"]);
    assert!(listed[0]["expires"].is_string());
}

#[test]
fn what_stands_in_its_way_is_said_once_and_exits_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    std::fs::write(folder.path().join("off.toml"), "[database]\nmigrate = \"off\"\n").unwrap();
    let listen = format!("taskhold: cannot listen on {address}: ");
    for (arguments, message) in [
        (&["serve", "--listen", &address][..], listen.as_str()),
        (
            &["serve", "--config", "off.toml", "--database-url", "sqlite://new.db"],
            "taskhold: cannot use the database sqlite://new.db: there is no file /",
        ),
        (
            &["serve", "--database-url", "sqlite://no/such/folder/x.db"],
            "taskhold: cannot use the database sqlite://no/such/folder/x.db: the folder of the database file",
        ),
    ] {
        let (code, stdout, stderr) = run(folder.path(), arguments);
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}");
        assert_eq!(stderr.matches(message).count(), 1, "{stderr}");
    }
}

// req: OPS-03
#[test]
fn check_tries_each_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let binary = env!("CARGO_BIN_EXE_taskhold");
    let file = |command: &str| {
        let text = format!("[[upstreams]]\nname = \"demo\"\ncommand = \"{command}\"\n");
        std::fs::write(folder.path().join("taskhold.toml"), text).unwrap();
    };
    file(&format!("{binary} demo-server"));
    assert_eq!(run(folder.path(), &["migrate"]).0, 0);
    let (code, stdout, stderr) = run(folder.path(), &["check"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert_eq!(
        stdout,
        "configuration: ok\ndatabase: ok: sqlite://taskhold.db\nmigrations: ok\n\
         upstream demo: ok: revision 2026-07-28, 5 tools\n"
    );
    file("sh -c 'echo out of order >&2; exit 3'");
    let (code, stdout, _) = run(folder.path(), &["check"]);
    assert_eq!(code, 1);
    assert!(stdout.contains("\nupstream demo: to do: ") && stdout.contains("out of order"), "{stdout}");
}

#[test]
fn check_tries_an_upstream_of_the_command_line_and_says_why_it_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(folder.path(), &["migrate"]).0, 0);
    std::fs::write(folder.path().join("server.sh"), "exit 0\n").unwrap();
    let check = |upstream: &str| {
        let (code, stdout, _) = run(folder.path(), &["check", "--upstream", upstream]);
        (code, stdout)
    };
    let (code, said) = check(&format!("demo={} demo-server", env!("CARGO_BIN_EXE_taskhold")));
    assert!(code == 0 && said.ends_with("\nupstream demo: ok: revision 2026-07-28, 5 tools\n"), "{said}");
    let (code, said) = check("mine=sh server.sh");
    let hint = "argument 1 of its command names a file where the service runs, but the server works in an empty \
                directory of its own: give the full path, or set cwd";
    assert!(code == 1 && said.contains(hint), "{said}");
    let (code, said) = check("mine=sh -c no-such-program");
    assert!(code == 1 && said.contains("exit code 127: the program is not there or cannot be run"), "{said}");
    let file = "[[upstreams]]\nname = \"u\"\ncommand = \"sh server.sh\"\ncwd = \"nowhere\"\n";
    std::fs::write(folder.path().join("taskhold.toml"), file).unwrap();
    let (code, said, _) = run(folder.path(), &["check"]);
    assert!(code == 1 && said.contains("its working directory nowhere is not there"), "{said}");
}

#[test]
fn each_upstreams_revision_and_configured_tools_that_are_not_there_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let binary = env!("CARGO_BIN_EXE_taskhold");
    let upstream = |name: &str, protocol: &str, tools: &str| {
        format!(
            "[[upstreams]]\nname = \"{name}\"\ncommand = \"{binary} demo-server\"\nprotocol = \"{protocol}\"\n{tools}"
        )
    };
    let misspelt = "[upstreams.tools.wait]\ntask = \"never\"\n[upstreams.tools.count_prime]\ntask = \"always\"\n";
    let text = format!("{}{}", upstream("new", "auto", misspelt), upstream("old", "2025-11-25", ""));
    std::fs::write(folder.path().join("taskhold.toml"), text).unwrap();
    assert_eq!(run(folder.path(), &["migrate"]).0, 0);
    let (code, said, stderr) = run(folder.path(), &["check"]);
    assert_eq!(code, 1, "{said}{stderr}");
    let named = "upstream new: ok: revision 2026-07-28, 5 tools\nupstream new, tool count_prime: to do: it is configured in \
                 [upstreams.tools], and the upstream does not list it: correct the name, or take it out\n\
                 upstream old: ok: revision 2025-11-25, 5 tools\n";
    assert!(said.ends_with(named), "{said}");
    let mut serving = Serving::start(folder.path(), &["--auth", "none"]);
    serving.until_it_has_said(&[
        "an upstream speaks protocol revision 2026-07-28",
        "an upstream speaks protocol revision 2025-11-25",
        "a tool is configured and its upstream does not list it",
    ]);
    let (_, said) = serving.stop();
    assert_eq!(said.matches("does not list it").count(), 1, "only the one that is misspelt: {said}");
    assert!(said.contains("\"item.name\":\"count_prime\""), "{said}");
}

#[test]
fn without_upstreams_it_says_that_there_are_no_tools() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = "no upstream is configured, so there are no tools";
    let (_, said) = Serving::start(folder.path(), &["--auth", "none"]).stop();
    assert!(said.contains(nothing), "{said}");
    let (_, said) = Serving::start(folder.path(), &["--auth", "none", "--demo"]).stop();
    assert!(!said.contains(nothing), "{said}");
}

#[test]
fn a_request_without_a_caller_or_a_known_method_has_no_empty_fields_in_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start(folder.path(), &[]);
    assert_eq!(initialize(&serving.url, None), 401);
    let (_, said) = serving.stop();
    let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.into_iter().find(|line| line["message"] == "request answered").unwrap();
    assert_eq!(
        (line["http.status"].as_u64(), line.get("rpc.method"), line.get("auth.context")),
        (Some(401), None, None)
    );
}

// req: MOD-13
#[test]
fn a_request_that_belongs_to_a_trace_says_so_in_its_line() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let folder = tempfile::tempdir().unwrap();
    let serving = Serving::start(folder.path(), &["--auth", "none"]);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}},"traceparent":"00-{TRACE}-00f067aa0ba902b7-01"}}}}}}"#
    );
    let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/list")];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let response = runtime.block_on(post(&serving.url, &headers, body));
    assert_eq!(response.status().as_u16(), 200);
    let (_, said) = serving.stop();
    let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.into_iter().find(|line| line["message"] == "request answered").unwrap();
    assert_eq!((&line["rpc.method"], &line["trace.id"]), (&"tools/list".into(), &TRACE.into()));
}
