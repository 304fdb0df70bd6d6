//! `taskhold tasks`: what operators see and do, across contexts.

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::value::RawValue;

use super::output;
use crate::app;
use crate::config::Config;
use crate::domain::clock::{Clock, SystemClock, Timestamp};
use crate::domain::cursor::Position;
use crate::domain::ids::TaskId;
use crate::domain::outcome::{Ending, Outcome};
use crate::domain::retention::TtlRules;
use crate::domain::task::Status;
use crate::store::{End, Ended, SystemStore, TaskDetails};

#[derive(Debug, Subcommand)]
pub(super) enum TasksCommand {
    /// List tasks, newest first, expired ones that still lie in the database too
    ///
    /// Statuses: working, input_required, completed, tool_error (a result that says it is an error), failed, cancelled.
    List(List),
    /// Show one task and how it ended, its result included
    Show(Show),
    /// Cancel a task that has not ended
    ///
    /// Work that runs is told as soon as its node notices; what it still answers is dropped.
    Cancel(Cancel),
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// The most tasks to list
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print a JSON array of objects, with the members that `tasks show --json` has but the outcome
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// The task's id
    id: TaskId,
    /// Print one JSON object: id, status, tool, upstream, upstream_tool, tenant, context, created, updated, expires,
    /// ttl_ms, attempt, node, message, outcome (kind: result, error or cancelled; json)
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Cancel {
    /// The task's id
    id: TaskId,
    /// Print one JSON object: id, status
    #[arg(long)]
    json: bool,
}

/// Rows that one query reads.
const PAGE: u32 = 500;

impl TasksCommand {
    pub async fn run(self, config: &Config) -> anyhow::Result<()> {
        let store = app::open_store_as_it_is(config).await?;
        let system = store.system();
        let now = SystemClock::new().now();
        let result = match self {
            Self::List(list) => list.run(&system, now, &config.tasks.ttl).await,
            Self::Show(show) => show.run(&system, now, &config.tasks.ttl).await,
            Self::Cancel(cancel) => cancel.run(&system, now, &config.tasks.ttl).await,
        };
        system.close().await;
        result
    }
}

impl List {
    async fn run(&self, store: &SystemStore, now: Timestamp, rules: &TtlRules) -> anyhow::Result<()> {
        let mut tasks: Vec<TaskDetails> = Vec::new();
        loop {
            let after = tasks.last().map(|last| Position { created: last.task.created, id: last.task.id });
            let wanted = self.limit.saturating_sub(tasks.len().try_into().unwrap_or(u32::MAX)).min(PAGE);
            let page = store.all_tasks(after, wanted).await?;
            let done = page.len() < wanted as usize;
            tasks.extend(page);
            if done || tasks.len() >= self.limit as usize {
                break;
            }
        }
        let shown: Vec<Shown> = tasks.iter().map(|details| Shown::new(details, now, rules)).collect();
        if self.json {
            return output::json(&shown);
        }
        let rows: Vec<_> = shown
            .into_iter()
            .map(|task| {
                let (tenant, message) = (task.tenant.unwrap_or_default(), task.message.unwrap_or_default());
                [task.id, task.status.to_owned(), task.tool, tenant, task.created, message]
            })
            .collect();
        Ok(output::table(["ID", "STATUS", "TOOL", "TENANT", "CREATED", "MESSAGE"], &rows)?)
    }
}

impl Show {
    async fn run(&self, store: &SystemStore, now: Timestamp, rules: &TtlRules) -> anyhow::Result<()> {
        // A stored call that is no task is shown to nobody.
        let details = store.details(self.id).await?.filter(|details| !details.parked);
        let Some(details) = details else { bail!("there is no task {}", self.id) };
        let mut shown = Shown::new(&details, now, rules);
        shown.outcome = details.outcome.as_ref().map(ShownOutcome::new).transpose()?;
        if self.json {
            return output::json(&shown);
        }
        let outcome = shown.outcome.as_ref().map(|outcome| {
            let json = outcome.json.as_ref().map(|json| format!(" {}", json.get()));
            format!("{}{}", outcome.kind, json.unwrap_or_default())
        });
        let ttl = shown.ttl_ms.map_or_else(|| "without end".to_owned(), |ms| format!("{ms} ms"));
        for (name, value) in [
            ("id", Some(shown.id)),
            ("status", Some(shown.status.to_owned())),
            ("message", shown.message),
            ("tool", Some(shown.tool)),
            ("upstream", Some(format!("{} of {}", shown.upstream_tool, shown.upstream))),
            ("tenant", shown.tenant),
            ("context", Some(shown.context)),
            ("created", Some(shown.created)),
            ("updated", Some(shown.updated)),
            ("time to live", Some(ttl)),
            ("expires", shown.expires),
            ("attempt", Some(shown.attempt.to_string())),
            ("node", shown.node),
            ("outcome", outcome),
        ] {
            if let Some(value) = value {
                output::line(&format!("{name:<13} {}", output::plain(&value)))?;
            }
        }
        Ok(())
    }
}

impl Cancel {
    async fn run(&self, store: &SystemStore, now: Timestamp, rules: &TtlRules) -> anyhow::Result<()> {
        let Some(details) = store.details(self.id).await? else { bail!("there is no task {}", self.id) };
        if details.parked {
            bail!(
                "{} is no task but a call that its client waits for or comes back to: it is not cancelled here",
                self.id
            );
        }
        let end = End {
            outcome: Outcome::Cancelled,
            message: Some("cancelled by an operator".to_owned()),
            now,
            expires: rules.expires(details.task.created, details.task.granted, now),
        };
        match store.end(self.id, end).await? {
            Ended::Done(task) if self.json => {
                output::json(&serde_json::json!({ "id": self.id.to_string(), "status": word(task.status) }))
            }
            Ended::Done(_) => {
                output::complain(&format!("cancelled {}", self.id));
                Ok(())
            }
            Ended::Refused => bail!("task {} has already ended", self.id),
        }
    }
}

/// A task as people and programs read it.
#[derive(Serialize)]
struct Shown {
    id: String,
    status: &'static str,
    tool: String,
    upstream: String,
    upstream_tool: String,
    tenant: Option<String>,
    context: String,
    created: String,
    updated: String,
    expires: Option<String>,
    ttl_ms: Option<i64>,
    attempt: u32,
    node: Option<String>,
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<ShownOutcome>,
}

#[derive(Serialize)]
struct ShownOutcome {
    kind: &'static str,
    /// As it arrived.
    json: Option<Box<RawValue>>,
}

impl Shown {
    fn new(details: &TaskDetails, now: Timestamp, rules: &TtlRules) -> Self {
        let task = &details.task;
        Self {
            id: task.id.to_string(),
            status: word(task.status),
            tool: task.tool.clone(),
            upstream: details.upstream.clone(),
            upstream_tool: details.upstream_tool.clone(),
            tenant: (!details.tenant.is_empty()).then(|| details.tenant.clone()),
            context: task.context.to_string(),
            created: task.created.to_rfc3339(),
            updated: task.updated.to_rfc3339(),
            expires: task.expires.map(Timestamp::to_rfc3339),
            ttl_ms: task.shown_ttl(now, rules).milliseconds(),
            attempt: details.attempt,
            node: details.node.map(|node| node.to_string()),
            message: task.message.clone(),
            outcome: None,
        }
    }
}

impl ShownOutcome {
    fn new(outcome: &Outcome) -> anyhow::Result<Self> {
        let kind = match outcome {
            Outcome::Result { .. } => "result",
            Outcome::Error { .. } => "error",
            Outcome::Cancelled => "cancelled",
        };
        let json = outcome.json().map(|json| RawValue::from_string(json.as_str().to_owned())).transpose()?;
        Ok(Self { kind, json })
    }
}

const fn word(status: Status) -> &'static str {
    match status {
        Status::Working => "working",
        Status::InputRequired => "input_required",
        Status::Ended(Ending::Completed) => "completed",
        Status::Ended(Ending::ToolError) => "tool_error",
        Status::Ended(Ending::Failed) => "failed",
        Status::Ended(Ending::Cancelled) => "cancelled",
    }
}
