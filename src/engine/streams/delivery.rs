//! What goes to a client on a stream, neutral of the wire.

use std::time::Duration;

use crate::domain::ids::TaskId;
use crate::domain::input::Question;
use crate::domain::json::RawJson;
use crate::domain::task::Task;

/// What a message holds beside its texts.
const BARE: usize = 256;

/// One message on a stream. `task` is what it is about, `None` for a call that is no task.
#[derive(Debug, Clone, PartialEq)]
pub enum Delivery {
    /// The task as it stands now (NOTE-01).
    Status(Box<Task>),
    /// `params` as they arrived, to go out under the client's own `token` (NOTE-03).
    Progress {
        task: Option<TaskId>,
        token: RawJson,
        params: RawJson,
    },
    Log {
        task: Option<TaskId>,
        params: RawJson,
    },
    /// A question under this JSON-RPC id (INPUT-02, INPUT-15); as a task that the client keeps for `as_task`, if given
    /// (CAP-08).
    Ask {
        id: String,
        task: Option<TaskId>,
        question: Question,
        as_task: Option<Duration>,
    },
    /// A request about the client's own task for a question. `client_task` is its id as the client wrote it (CAP-08).
    ClientTask {
        id: String,
        step: Step,
        client_task: RawJson,
    },
    /// The question with this id is not open any more (INPUT-12).
    Withdrawn {
        id: String,
        task: Option<TaskId>,
        reason: &'static str,
    },
    ElicitationComplete {
        task: Option<TaskId>,
        params: RawJson,
    },
    ToolsChanged,
    PromptsChanged,
    ResourcesChanged,
    ResourceUpdated {
        params: RawJson,
    },
}

/// What is asked of a client about its own task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Get,
    Result,
    Cancel,
}

impl Delivery {
    /// What the client can do without: it is dropped for a reader that does not keep up (NOTE-10).
    pub(super) const fn is_best_effort(&self) -> bool {
        !matches!(self, Self::Ask { .. } | Self::ClientTask { .. } | Self::Withdrawn { .. })
    }

    /// Whether it takes a question back from a client that has it.
    pub(super) const fn withdraws(&self) -> bool {
        matches!(self, Self::Withdrawn { .. } | Self::ClientTask { step: Step::Cancel, .. })
    }

    /// The weight of a message that asks this.
    pub(super) fn weight_of(question: &Question) -> usize {
        BARE + question.params.as_ref().map_or(0, RawJson::len)
    }

    /// About how many bytes it holds in memory.
    pub(super) fn weight(&self) -> usize {
        BARE + match self {
            Self::Status(task) => {
                task.message.as_ref().map_or(0, String::len) + task.progress.as_ref().map_or(0, RawJson::len)
            }
            Self::Progress { token, params, .. } => token.len() + params.len(),
            Self::Log { params, .. } | Self::ElicitationComplete { params, .. } | Self::ResourceUpdated { params } => {
                params.len()
            }
            Self::Ask { question, .. } => return Self::weight_of(question),
            Self::ClientTask { client_task, .. } => client_task.len(),
            Self::Withdrawn { .. } | Self::ToolsChanged | Self::PromptsChanged | Self::ResourcesChanged => 0,
        }
    }

    /// Whether an older state of its task must not follow this one.
    pub(super) fn overtakes(&self, older: &Self) -> bool {
        match (self, older) {
            (Self::Status(new), Self::Status(old)) => new.id == old.id,
            (Self::Status(new), Self::Progress { task: Some(old), .. }) => new.id == *old,
            (Self::Progress { task: Some(new), .. }, Self::Progress { task: Some(old), .. }) => new == old,
            _ => false,
        }
    }

    /// Whether an earlier one that is still unread says nothing beside this one.
    pub(super) fn replaces(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Status(new), Self::Status(old)) => new.id == old.id,
            (Self::ToolsChanged, Self::ToolsChanged)
            | (Self::PromptsChanged, Self::PromptsChanged)
            | (Self::ResourcesChanged, Self::ResourcesChanged) => true,
            (Self::ResourceUpdated { params: new }, Self::ResourceUpdated { params: old }) => new == old,
            _ => false,
        }
    }
}
