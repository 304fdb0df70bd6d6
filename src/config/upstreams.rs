//! `[[upstreams]]` and `--upstream`.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use super::keys::{TOOL_KEYS, UPSTREAM_KEYS};
use super::problem::Problem;
use super::runner::RunnerConfig;
use super::settings::Settings;
use super::sources::Layers;
use super::tasks::shown;
use super::value::{Kind, Located, Raw, Value, is_upstream_name};
use crate::domain::lease::RestartPolicy;
use crate::domain::mode::TaskMode;

/// An MCP server that is started by a command.
#[derive(Clone)]
pub struct UpstreamConfig {
    pub name: String,
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    pub env: BTreeMap<String, SecretString>,
    /// An empty folder of its own when not set.
    pub cwd: Option<PathBuf>,
    pub shared: bool,
    pub prefix: bool,
    pub max_links: u32,
    pub task: Option<TaskMode>,
    /// By the upstream's own name.
    pub tools: BTreeMap<String, ToolConfig>,
}

/// What the configuration says of one tool; `None` leaves it to the upstream or the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolConfig {
    pub task: Option<TaskMode>,
    pub run_limit: Option<Duration>,
    pub restart: Option<RestartPolicy>,
    pub ttl: Option<Duration>,
    pub poll_interval: Option<Duration>,
    pub immediate_response: Option<String>,
}

/// Arguments and the environment may hold secrets.
impl fmt::Debug for UpstreamConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConfig")
            .field("name", &self.name)
            .field("program", &self.command.first())
            .field("arguments", &self.command.len().saturating_sub(1))
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .field("shared", &self.shared)
            .field("prefix", &self.prefix)
            .field("max_links", &self.max_links)
            .field("task", &self.task)
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
    if problems.len() == before {
        for (key, given) in [("name", name.is_some()), ("command", !command.is_empty())] {
            if !given {
                problems.push(Problem::new(format!("{path}.{key} is missing ({place})")));
            }
        }
    }
    let env = substitute(&path, &settings.table("env"), &layers.environment, problems);
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
        command: (!command.is_empty()).then_some(command)?,
        env,
        cwd: settings.maybe_text("cwd").map(PathBuf::from),
        shared: settings.flag("shared"),
        prefix: settings.flag("prefix"),
        max_links: settings.number("max_links"),
        task: mode(&settings),
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
        restart: restart.map(|word| if word == "retry" { RestartPolicy::Retry } else { RestartPolicy::Fail }),
        ttl: settings.maybe_duration("ttl"),
        poll_interval: settings.maybe_duration("poll_interval"),
        immediate_response: settings.maybe_text("immediate_response"),
    }
}

fn mode(settings: &Settings) -> Option<TaskMode> {
    settings.maybe_text("task").and_then(|word| word.parse().ok())
}

/// `NAME=COMMAND LINE`.
fn read_flag(flag: &str, problems: &mut Vec<Problem>) -> Option<UpstreamConfig> {
    let parts = flag.split_once('=').filter(|(name, _)| is_upstream_name(name));
    let Some((name, line)) = parts else {
        // What follows the first word may hold a secret.
        let shown = flag.split(|end: char| end == '=' || end.is_whitespace()).next().unwrap_or_default();
        problems.push(Problem::new(format!(
            "--upstream {shown:?}: expected NAME=COMMAND LINE, with {} as the name",
            Kind::UpstreamName
        )));
        return None;
    };
    match Kind::Command.read(&Raw::Text(line.to_owned())) {
        Ok(Value::List(command)) => Some(UpstreamConfig {
            name: name.to_owned(),
            command,
            env: BTreeMap::new(),
            cwd: None,
            shared: false,
            prefix: false,
            max_links: 32,
            task: None,
            tools: BTreeMap::new(),
        }),
        _ => {
            problems.push(Problem::new(format!(
                "--upstream {name}=...: expected a command line with balanced quotes behind the ="
            )));
            None
        }
    }
}

/// Puts variables of ours in the place of `${NAME}`.
fn substitute(
    path: &str,
    env: &BTreeMap<String, String>,
    ours: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, SecretString> {
    let mut result = BTreeMap::new();
    for (name, template) in env {
        if name.is_empty() || name.contains(['=', '\0']) {
            problems.push(Problem::new(format!("{path}.env has the name {name:?}, which no variable can have")));
            continue;
        }
        match expand(template, ours) {
            Ok(value) => {
                result.insert(name.clone(), value.into());
            }
            Err(missing) => problems.push(Problem::new(format!("{path}.env.{name}: {missing}"))),
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
