//! `[[upstreams]]` and `--upstream`.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::keys::{TOOL_KEYS, UPSTREAM_KEYS};
use super::problem::Problem;
use super::runner::RunnerConfig;
use super::settings::Settings;
use super::sources::Layers;
use super::tasks::shown;
use super::value::{Kind, Located, Raw, Value, is_endpoint, is_upstream_name};
use crate::domain::lease::RestartPolicy;
use crate::domain::mode::TaskMode;
use crate::executor::upstream::Protocol;

/// An MCP server that is started by a command or reached by a URL.
#[derive(Clone)]
pub struct UpstreamConfig {
    pub name: String,
    /// The program and its arguments; empty if it is reached by a URL.
    pub command: Vec<String>,
    /// May hold secrets.
    pub url: Option<SecretString>,
    /// What requests to the URL carry, the bearer token among them.
    pub headers: BTreeMap<String, SecretString>,
    pub env: BTreeMap<String, SecretString>,
    /// An empty folder of its own when not set.
    pub cwd: Option<PathBuf>,
    pub protocol: Protocol,
    pub shared: bool,
    pub prefix: bool,
    pub max_links: u32,
    pub task: Option<TaskMode>,
    pub grace: Option<Duration>,
    /// By the upstream's own name.
    pub tools: BTreeMap<String, ToolConfig>,
}

/// What the configuration says of one tool; `None` leaves it to the upstream or the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolConfig {
    pub task: Option<TaskMode>,
    pub run_limit: Option<Duration>,
    /// On all nodes together.
    pub slots: Option<u64>,
    pub restart: Option<RestartPolicy>,
    pub ttl: Option<Duration>,
    pub poll_interval: Option<Duration>,
    pub grace: Option<Duration>,
    pub input_timeout: Option<Duration>,
    pub ask_first: Option<bool>,
    pub immediate_response: Option<String>,
}

/// Arguments, the URL, headers and the environment may hold secrets.
impl fmt::Debug for UpstreamConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConfig")
            .field("name", &self.name)
            .field("program", &self.command.first())
            .field("arguments", &self.command.len().saturating_sub(1))
            .field("is_remote", &self.url.is_some())
            .field("headers", &self.headers.keys())
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .field("protocol", &self.protocol)
            .field("shared", &self.shared)
            .field("prefix", &self.prefix)
            .field("max_links", &self.max_links)
            .field("task", &self.task)
            .field("grace", &self.grace)
            .field("tools", &self.tools)
            .finish()
    }
}

/// Those of the named variables of our own environment that are set and are text.
#[must_use]
pub fn variables(names: &[&str]) -> Vec<(String, String)> {
    let value = |name: &&str| Some(((*name).to_owned(), std::env::var_os(name)?.into_string().ok()?));
    names.iter().filter_map(value).collect()
}

/// The program that a command starts: a path as it is, a bare name by our own `PATH`, which the child gets too.
#[must_use]
pub fn find_program(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return is_executable(Path::new(program)).then(|| PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.is_file()
}

pub(super) fn read(layers: &Layers, runner: &RunnerConfig, problems: &mut Vec<Problem>) -> Vec<UpstreamConfig> {
    let mut upstreams = Vec::new();
    for (at, (table, place)) in layers.upstreams.iter().enumerate() {
        upstreams.extend(read_entry(at, table, place, layers, runner, problems));
    }
    for flag in &layers.upstream_flags {
        upstreams.extend(read_flag(flag, problems));
    }
    let mut names = HashSet::new();
    for upstream in &upstreams {
        if !names.insert(upstream.name.as_str()) {
            problems.push(Problem::new(format!("two upstreams have the name {:?}: names are unique", upstream.name)));
        }
    }
    upstreams
}

fn read_entry(
    at: usize,
    table: &Located,
    place: &str,
    layers: &Layers,
    runner: &RunnerConfig,
    problems: &mut Vec<Problem>,
) -> Option<UpstreamConfig> {
    let name = match &table.raw {
        Raw::Table(entries) => match entries.get("name").map(|name| &name.raw) {
            Some(Raw::Text(name)) if is_upstream_name(name) => Some(name.clone()),
            _ => None,
        },
        _ => None,
    };
    let path = name.as_ref().map_or_else(|| format!("upstreams[{at}]"), |name| format!("upstreams.{name}"));
    let before = problems.len();
    let (settings, mut rest) = Settings::read_table(UPSTREAM_KEYS, &["tools"], &path, table, place, problems);
    let command = settings.list("command");
    let url = settings.maybe_text("url");
    if problems.len() == before {
        if name.is_none() {
            problems.push(Problem::new(format!("{path}.name is missing ({place})")));
        }
        check_kind(&path, place, &settings, problems);
    }
    let env = substitute(&path, "env", &settings.table("env"), &layers.environment, problems);
    let headers = read_headers(&path, &settings, &layers.environment, problems);
    let mut tools = BTreeMap::new();
    if let Some(table) = rest.remove("tools") {
        match table.raw {
            Raw::Table(entries) => {
                for (tool, entry) in entries {
                    let path = format!("{path}.tools.{tool}");
                    tools.insert(tool, read_tool(&path, &entry, place, runner, problems));
                }
            }
            other => problems.push(Problem::new(format!(
                "{path}.tools = {other} ({place}): expected tables, as in [upstreams.tools.TOOL]"
            ))),
        }
    }
    Some(UpstreamConfig {
        name: name?,
        command: (url.is_some() || !command.is_empty()).then_some(command)?,
        url: url.map(SecretString::from),
        headers,
        env,
        cwd: settings.maybe_text("cwd").map(PathBuf::from),
        protocol: settings.maybe_text("protocol").and_then(|word| Protocol::from_word(&word)).unwrap_or_default(),
        shared: settings.flag("shared"),
        prefix: settings.flag("prefix"),
        max_links: settings.number("max_links"),
        task: mode(&settings),
        grace: settings.maybe_duration("grace"),
        tools,
    })
}

fn read_tool(
    path: &str,
    table: &Located,
    place: &str,
    runner: &RunnerConfig,
    problems: &mut Vec<Problem>,
) -> ToolConfig {
    let (settings, _) = Settings::read_table(TOOL_KEYS, &[], path, table, place, problems);
    let run_limit = settings.maybe_duration("run_limit");
    if run_limit.is_some_and(|limit| limit > runner.hard_run_limit) {
        problems.push(Problem::new(format!(
            "{path}.run_limit = {} is more than runner.hard_run_limit = {}",
            shown(run_limit),
            shown(Some(runner.hard_run_limit))
        )));
    }
    let restart = settings.maybe_text("restart");
    ToolConfig {
        task: mode(&settings),
        run_limit,
        slots: settings.maybe_number("slots"),
        restart: restart.map(|word| if word == "retry" { RestartPolicy::Retry } else { RestartPolicy::Fail }),
        ttl: settings.maybe_duration("ttl"),
        poll_interval: settings.maybe_duration("poll_interval"),
        grace: settings.maybe_duration("grace"),
        input_timeout: settings.maybe_duration("input_timeout"),
        ask_first: settings.maybe_flag("ask_first"),
        immediate_response: settings.maybe_text("immediate_response"),
    }
}

/// An upstream has a command or a URL, and no key of the other kind.
fn check_kind(path: &str, place: &str, settings: &Settings, problems: &mut Vec<Problem>) {
    let is_given = |key: &&&str| match **key {
        "command" => !settings.list(key).is_empty(),
        "env" | "headers" => !settings.table(key).is_empty(),
        _ => settings.maybe_text(key).is_some(),
    };
    let (of_command, of_url) = (["command", "env", "cwd"], ["url", "headers", "bearer_env"]);
    let (main, others) = match (is_given(&&"command"), is_given(&&"url")) {
        (false, false) => {
            problems.push(Problem::new(format!("{path} has neither command nor url ({place}): it needs one of them")));
            return;
        }
        (true, _) => ("command", of_url),
        (false, true) => ("url", of_command),
    };
    for key in others.iter().filter(is_given) {
        problems
            .push(Problem::new(format!("{path}.{key} does not go with {path}.{main} ({place}): remove one of them")));
    }
}

/// Headers that the protocol or the transport sets.
const RESERVED_HEADERS: [&str; 17] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "transfer-encoding",
    "upgrade",
];

fn read_headers(
    path: &str,
    settings: &Settings,
    ours: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, SecretString> {
    let mut headers = BTreeMap::new();
    for (name, value) in substitute(path, "headers", &settings.table("headers"), ours, problems) {
        let lower = name.to_ascii_lowercase();
        let path = format!("{path}.headers.{name}");
        if RESERVED_HEADERS.contains(&lower.as_str()) || lower.starts_with("mcp-param-") {
            problems.push(Problem::new(format!("{path} is set by the service itself: remove it")));
        } else if !is_header_value(value.expose_secret()) {
            problems.push(Problem::new(format!("{path} has a line break or another control character in its value")));
        } else if headers.insert(lower, value).is_some() {
            problems.push(Problem::new(format!("{path} is there twice: letter case makes no difference")));
        }
    }
    let Some(variable) = settings.maybe_text("bearer_env") else { return headers };
    let path = format!("{path}.bearer_env");
    match ours.get(&variable).map(String::as_str) {
        None | Some("") => {
            problems.push(Problem::new(format!("{path} = {variable:?}: the environment has no such variable")));
        }
        Some(token) if token.contains(char::is_whitespace) || !is_header_value(token) => {
            let why = "what that variable holds is no token: it has blanks or control characters";
            problems.push(Problem::new(format!("{path} = {variable:?}: {why}")));
        }
        Some(token) => {
            if headers.insert("authorization".to_owned(), format!("Bearer {token}").into()).is_some() {
                problems
                    .push(Problem::new(format!("{path} does not go with an authorization header: remove one of them")));
            }
        }
    }
    headers
}

fn is_header_value(value: &str) -> bool {
    value.chars().all(|c| c == '\t' || !c.is_control())
}

fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn mode(settings: &Settings) -> Option<TaskMode> {
    settings.maybe_text("task").and_then(|word| word.parse().ok())
}

/// `NAME=COMMAND LINE` or `NAME=URL`.
fn read_flag(flag: &str, problems: &mut Vec<Problem>) -> Option<UpstreamConfig> {
    let parts = flag.split_once('=').filter(|(name, _)| is_upstream_name(name));
    let Some((name, line)) = parts else {
        // What follows the first word may hold a secret.
        let shown = flag.split(|end: char| end == '=' || end.is_whitespace()).next().unwrap_or_default();
        problems.push(Problem::new(format!(
            "--upstream {shown:?}: expected NAME=COMMAND LINE or NAME=URL, with {} as the name",
            Kind::UpstreamName
        )));
        return None;
    };
    let upstream = |command, url: Option<&str>| UpstreamConfig {
        name: name.to_owned(),
        command,
        url: url.map(SecretString::from),
        headers: BTreeMap::new(),
        env: BTreeMap::new(),
        cwd: None,
        protocol: Protocol::Auto,
        shared: false,
        prefix: false,
        max_links: 32,
        task: None,
        grace: None,
        tools: BTreeMap::new(),
    };
    if line.starts_with("http://") || line.starts_with("https://") {
        if is_endpoint(line) {
            return Some(upstream(Vec::new(), Some(line)));
        }
        problems.push(Problem::new(format!("--upstream {name}=...: expected {} behind the =", Kind::Endpoint)));
        return None;
    }
    match Kind::Command.read(&Raw::Text(line.to_owned())) {
        Ok(Value::List(command)) => Some(upstream(command, None)),
        _ => {
            problems.push(Problem::new(format!(
                "--upstream {name}=...: expected a command line with balanced quotes, or a URL, behind the ="
            )));
            None
        }
    }
}

/// Puts variables of ours in the place of `${NAME}`.
fn substitute(
    path: &str,
    key: &str,
    table: &BTreeMap<String, String>,
    ours: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, SecretString> {
    let mut result = BTreeMap::new();
    for (name, template) in table {
        let (is_name, what) = match key {
            "headers" => (is_header_name(name), "header"),
            _ => (!name.is_empty() && !name.contains(['=', '\0']), "variable"),
        };
        if !is_name {
            problems.push(Problem::new(format!("{path}.{key} has the name {name:?}, which no {what} can have")));
            continue;
        }
        match expand(template, ours) {
            Ok(value) => {
                result.insert(name.clone(), value.into());
            }
            Err(missing) => problems.push(Problem::new(format!("{path}.{key}.{name}: {missing}"))),
        }
    }
    result
}

fn expand(template: &str, ours: &BTreeMap<String, String>) -> Result<String, String> {
    let mut value = String::new();
    let mut rest = template;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            // $${ stands for ${.
            value.push_str(&rest[..at]);
            value.push('{');
            rest = &rest[at + 2..];
            continue;
        }
        value.push_str(&rest[..at]);
        let (name, tail) = rest[at + 2..].split_once('}').ok_or("a ${ has no closing }")?;
        let found =
            ours.get(name).ok_or_else(|| format!("the environment has no variable {name}, which ${{{name}}} names"))?;
        value.push_str(found);
        rest = tail;
    }
    value.push_str(rest);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_ours_are_put_in_by_name() {
        let ours = BTreeMap::from([("KEY".to_owned(), "s3cret$".to_owned())]);
        assert_eq!(expand("Bearer ${KEY}!", &ours).unwrap(), "Bearer s3cret$!");
        assert_eq!(expand("${KEY}${KEY}", &ours).unwrap(), "s3cret$s3cret$");
        assert_eq!(expand("$KEY $", &ours).unwrap(), "$KEY $");
        assert_eq!(expand("$${KEY}", &ours).unwrap(), "${KEY}");
        assert!(expand("${NOPE}", &ours).unwrap_err().contains("no variable NOPE"));
        assert!(expand("${KEY", &ours).is_err());
    }
}
