//! `taskhold demo-server`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::demo;

#[derive(Debug, Args)]
pub(super) struct DemoServerArgs {
    /// Offer the tools of this file only, in its order
    #[arg(long, value_name = "FILE")]
    fixtures: Option<PathBuf>,
    /// Offer tools for tests instead, some of which misbehave on request
    #[arg(long, conflicts_with = "fixtures")]
    test_tools: bool,
    /// Run calls as tasks of this server where the client asks for that, or takes them and the tool is slow
    #[arg(long)]
    tasks: bool,
    /// What the ids of its tasks begin with
    #[arg(long, hide = true, requires = "tasks", default_value = "task-")]
    task_ids: String,
    /// Serve Streamable HTTP at this address, port 0 for a free one, instead of the standard streams; the URL is printed as JSON
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Stop when standard input is closed
    #[arg(long, hide = true, requires = "http")]
    stop_with_input: bool,
    /// Offer what the official conformance suite calls instead: tools, prompts, resources, completions, logging
    #[arg(long, conflicts_with_all = ["fixtures", "test_tools"])]
    conformance: bool,
}

impl DemoServerArgs {
    pub async fn run(self) -> anyhow::Result<()> {
        let Self { fixtures, test_tools, tasks, task_ids, conformance, http, stop_with_input } = self;
        let tasks = tasks.then_some(demo::TaskOptions { id_prefix: task_ids });
        demo::run(demo::Options { fixtures, test_tools, tasks, conformance, http, stop_with_input }).await
    }
}
