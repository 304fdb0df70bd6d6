//! The demo upstream: a stdio MCP server of 2025-11-25 (and 2025-06-18) that this binary brings along.
//!
//! It shows what a slow tool looks like behind the service, serves the tools of a fixtures file, and gives tests the
//! tools that misbehave on request. It knows nothing of the service: it speaks MCP on its standard streams and keeps
//! nothing. To add a tool: an entry in one of the toolboxes.

mod demo_tools;
mod fixtures;
mod placeholders;
mod primes;
mod rpc;
mod test_tools;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;

use self::rpc::Toolbox;

/// What the demo server offers.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Offer the tools of this file only, in its order.
    pub fixtures: Option<PathBuf>,
    /// Offer the tools that tests need instead of the demo's.
    pub test_tools: bool,
}

/// Serves standard input and output until the input is closed.
///
/// # Errors
/// If the fixtures file cannot be used, or a standard stream fails.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let toolbox: Arc<dyn Toolbox> = match options.fixtures {
        Some(file) => Arc::new(
            fixtures::Fixtures::load(&file)
                .with_context(|| format!("cannot use the fixtures file {}", file.display()))?,
        ),
        None if options.test_tools => Arc::new(test_tools::TestTools),
        None => Arc::new(demo_tools::DemoTools),
    };
    rpc::serve(toolbox).await
}
