//! `taskhold demo-server`.

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
}

impl DemoServerArgs {
    pub async fn run(self) -> anyhow::Result<()> {
        demo::run(demo::Options { fixtures: self.fixtures, test_tools: self.test_tools }).await
    }
}
