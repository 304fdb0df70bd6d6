//! Whether a tool's calls may, should or must be tasks (design section 4, "Task mode").

use std::fmt;
use std::str::FromStr;

/// One mode per tool: from its own configuration, else its upstream's, else the upstream's hint, else `optional`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TaskMode {
    /// Never a task.
    Never,
    /// A task when the caller asks for one.
    #[default]
    Optional,
    /// Like `optional` to legacy clients; modern ones get a task at once.
    Eager,
    /// Only as a task.
    Always,
}

/// What legacy clients read in `execution.taskSupport` (CAP-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskSupport {
    Forbidden,
    Optional,
    Required,
}

impl TaskMode {
    #[must_use]
    pub const fn support(self) -> TaskSupport {
        match self {
            Self::Never => TaskSupport::Forbidden,
            Self::Optional | Self::Eager => TaskSupport::Optional,
            Self::Always => TaskSupport::Required,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Optional => "optional",
            Self::Eager => "eager",
            Self::Always => "always",
        }
    }
}

impl TaskSupport {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

impl fmt::Display for TaskMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no task mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no task mode; allowed are never, optional, eager, always")]
pub struct NotAMode(String);

impl FromStr for TaskMode {
    type Err = NotAMode;

    fn from_str(text: &str) -> Result<Self, NotAMode> {
        [Self::Never, Self::Optional, Self::Eager, Self::Always]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| NotAMode(text.to_owned()))
    }
}
