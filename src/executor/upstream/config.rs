//! What is configured of upstreams, as plain values.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::stdio::{Launcher, Program};
use crate::domain::lease::RestartPolicy;
use crate::domain::mode::TaskMode;

/// What all upstreams have in common.
#[derive(Debug, Clone)]
pub struct Settings {
    pub launcher: Launcher,
    /// The largest result that is taken, in bytes (EXEC-05).
    pub result_limit: usize,
    /// How long a process has to answer `initialize`, which may include downloading itself.
    pub start_timeout: Duration,
}

impl Settings {
    /// Results up to 16 MiB, a minute to start.
    #[must_use]
    pub const fn new(launcher: Launcher) -> Self {
        Self { launcher, result_limit: 16 << 20, start_timeout: Duration::from_secs(60) }
    }
}

/// One upstream by stdio.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Unique; comes in front of tool names where they would collide.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What its environment has besides [`super::KEPT_VARIABLES`].
    pub env: Vec<(String, String)>,
    /// Its working directory; an empty one of its own if there is none.
    pub cwd: Option<PathBuf>,
    /// One process for all callers instead of one per authorization context.
    pub shared: bool,
    /// Puts the upstream's name in front of all its tools.
    pub prefix: bool,
    /// How many processes may serve calls at once, at least 1.
    pub max_links: u32,
    /// The task mode of its tools; their own hints count where it is not set.
    pub task: Option<TaskMode>,
    /// By the tools' names at the upstream.
    pub tools: Vec<(String, ToolConfig)>,
}

/// What is configured of one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolConfig {
    pub task: Option<TaskMode>,
    pub run_limit: Option<Duration>,
    pub restart: Option<RestartPolicy>,
    pub ttl: Option<Duration>,
    pub poll_interval: Option<Duration>,
    pub immediate_response: Option<String>,
}

impl UpstreamConfig {
    /// An upstream with the defaults.
    #[must_use]
    pub fn new(name: impl Into<String>, command: Vec<String>) -> Self {
        Self {
            name: name.into(),
            command,
            env: Vec::new(),
            cwd: None,
            shared: false,
            prefix: false,
            max_links: 32,
            task: None,
            tools: Vec::new(),
        }
    }

    /// The program without its arguments, which may hold secrets (EXEC-25).
    #[must_use]
    pub fn program(&self) -> &str {
        self.command.first().map_or("", String::as_str)
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

    /// What to start. A program given by a relative path is looked for where the service runs, not where it will run.
    pub(super) fn to_program(&self) -> Program {
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
