//! What is configured of upstreams, as plain values.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;

use super::era::Protocol;
use super::http::Remote;
use super::stdio::{Launcher, Program};
use crate::domain::lease::RestartPolicy;
use crate::domain::mode::TaskMode;

/// What all upstreams have in common.
#[derive(Debug, Clone)]
pub struct Settings {
    pub launcher: Launcher,
    /// The largest result that is taken, in bytes (EXEC-05).
    pub result_limit: usize,
    /// How long a process has to answer when it is asked which era it speaks; a server elsewhere has five times that.
    pub probe_timeout: Duration,
    /// How long an upstream has to answer `initialize`, which may include downloading itself.
    pub start_timeout: Duration,
    /// How often a call that waits for its link says so: hosts give up those of which they hear nothing.
    pub still_waiting: Duration,
    /// How long a task of an upstream that gives no usable answer is asked for before the attempt is given up.
    pub reach: Duration,
    /// Questions of one call that may be open at once.
    pub open_questions: usize,
}

impl Settings {
    /// Results up to 16 MiB, a minute to start and for a task out of reach, 32 open questions.
    #[must_use]
    pub const fn new(launcher: Launcher) -> Self {
        Self {
            launcher,
            result_limit: 16 << 20,
            probe_timeout: Duration::from_secs(2),
            start_timeout: Duration::from_secs(60),
            still_waiting: Duration::from_secs(5),
            reach: Duration::from_secs(60),
            open_questions: 32,
        }
    }
}

/// One upstream, by command or by URL.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Unique; comes in front of tool names where they would collide.
    pub name: String,
    /// Where it is reached; `None` if it is a program that is started.
    pub endpoint: Option<Endpoint>,
    /// The program and its arguments, if it is one.
    pub command: Vec<String>,
    /// What its environment has besides [`super::KEPT_VARIABLES`].
    pub env: Vec<(String, String)>,
    /// Its working directory; an empty one of its own if there is none.
    pub cwd: Option<PathBuf>,
    /// Which era it speaks.
    pub protocol: Protocol,
    /// One link for all callers instead of one per authorization context.
    pub shared: bool,
    /// Puts the upstream's name in front of all its tools.
    pub prefix: bool,
    /// How many links may serve calls at once, at least 1.
    pub max_links: u32,
    /// The task mode of its tools; their own hints count where it is not set.
    pub task: Option<TaskMode>,
    /// How long calls of its tools may run before they become tasks, where the service decides that.
    pub grace: Option<Duration>,
    /// By the tools' names at the upstream.
    pub tools: Vec<(String, ToolConfig)>,
}

/// An MCP server's URL.
#[derive(Clone)]
pub struct Endpoint {
    /// May hold secrets in its user info and query.
    pub url: String,
    /// What each request carries besides the protocol's own headers.
    pub headers: Vec<(String, SecretString)>,
}

/// What a link is made to.
#[derive(Clone)]
pub(super) enum Target {
    Program(Program),
    /// An error says what of the configuration cannot be used.
    Remote(Result<Arc<Remote>, Arc<str>>),
}

impl Endpoint {
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), headers: Vec::new() }
    }

    /// The URL without user info and query (EXEC-25).
    #[must_use]
    pub fn shown(&self) -> String {
        let bare = self.url.split(['?', '#']).next().unwrap_or_default();
        match bare.split_once("://") {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let host = authority.rsplit('@').next().unwrap_or_default();
                format!("{scheme}://{host}{path}")
            }
            None => "(no URL)".to_owned(),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Endpoint").field("url", &self.shown()).field("headers", &names).finish()
    }
}

/// What is configured of one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolConfig {
    pub task: Option<TaskMode>,
    pub run_limit: Option<Duration>,
    pub slots: Option<u64>,
    pub restart: Option<RestartPolicy>,
    pub ttl: Option<Duration>,
    pub poll_interval: Option<Duration>,
    pub grace: Option<Duration>,
    pub input_timeout: Option<Duration>,
    pub ask_first: Option<bool>,
    pub immediate_response: Option<String>,
}

impl UpstreamConfig {
    /// An upstream by URL, with the defaults.
    #[must_use]
    pub fn at(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self { endpoint: Some(Endpoint::new(url)), ..Self::new(name, Vec::new()) }
    }

    /// An upstream by command, with the defaults.
    #[must_use]
    pub fn new(name: impl Into<String>, command: Vec<String>) -> Self {
        Self {
            name: name.into(),
            endpoint: None,
            command,
            env: Vec::new(),
            cwd: None,
            protocol: Protocol::Auto,
            shared: false,
            prefix: false,
            max_links: 32,
            task: None,
            grace: None,
            tools: Vec::new(),
        }
    }

    /// The program without its arguments, or the URL without user info and query, which may hold secrets (EXEC-25).
    #[must_use]
    pub fn shown(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => endpoint.shown(),
            None => self.command.first().cloned().unwrap_or_default(),
        }
    }

    pub(super) fn tool(&self, name: &str) -> ToolConfig {
        self.tools.iter().find(|(tool, _)| tool == name).map(|(_, config)| config.clone()).unwrap_or_default()
    }

    /// Which argument of the command, counted from 1, looks like a path and names something where the service runs: the
    /// upstream works in an empty directory of its own and will not find it.
    pub(super) fn stray_argument(&self) -> Option<usize> {
        if self.cwd.is_some() {
            return None;
        }
        let is_stray = |argument: &String| {
            let path = Path::new(argument);
            let looks_like_one = argument.contains('/') || argument.starts_with('.') || path.extension().is_some();
            looks_like_one && path.is_relative() && path.exists()
        };
        self.command.iter().skip(1).position(is_stray).map(|at| at + 1)
    }

    pub(super) fn to_target(&self, settings: &Settings) -> Target {
        match &self.endpoint {
            Some(endpoint) => Target::Remote(Remote::new(endpoint, settings).map(Arc::new).map_err(Arc::from)),
            None => Target::Program(self.to_program()),
        }
    }

    /// What to start. A program given by a relative path is looked for where the service runs, not where it will run.
    fn to_program(&self) -> Program {
        let mut command = self.command.clone();
        if let Some(program) = command.first_mut()
            && program.contains('/')
            && let Ok(absolute) = std::path::absolute(&*program)
        {
            *program = absolute.to_string_lossy().into_owned();
        }
        Program { command, environment: self.env.clone(), directory: self.cwd.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: EXEC-25
    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        let shown = |url: &str| Endpoint::new(url).shown();
        assert_eq!(shown("https://user:pa@ss@host.example:8443/mcp/x?key=secret#f"), "https://host.example:8443/mcp/x");
        assert_eq!(shown("http://host?key=a/b@c"), "http://host");
        assert_eq!(shown("http://[::1]:80/mcp"), "http://[::1]:80/mcp");
        let endpoint = Endpoint {
            headers: vec![("x-key".to_owned(), "hunter2".into())],
            ..Endpoint::new("http://a:hunter2@h/?k=hunter2")
        };
        let debug =
            format!("{:?}", UpstreamConfig { endpoint: Some(endpoint), ..UpstreamConfig::new("u", Vec::new()) });
        assert!(!debug.contains("hunter2") && debug.contains("x-key"), "{debug}");
    }

    #[test]
    fn an_argument_that_names_a_file_of_ours_is_noticed_unless_the_directory_is_set() {
        // Tests run in the package's folder.
        let stray = |command: &[&str], cwd: Option<&str>| {
            let command = command.iter().map(|&word| word.to_owned()).collect();
            UpstreamConfig { cwd: cwd.map(PathBuf::from), ..UpstreamConfig::new("u", command) }.stray_argument()
        };
        assert_eq!(stray(&["node", "--flag", "Cargo.toml"], None), Some(2));
        assert_eq!(stray(&["server-filesystem", "."], None), Some(1));
        assert_eq!(stray(&["ls", "./src"], None), Some(1));
        assert_eq!(stray(&["node", "Cargo.toml"], Some(".")), None);
        for fine in ["src", "no-such-file.py", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "@scope/package"] {
            assert_eq!(stray(&["node", fine], None), None, "{fine}");
        }
        assert_eq!(stray(&["./Cargo.toml"], None), None, "the program itself is found where the service runs");
    }
}
