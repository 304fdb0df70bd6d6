//! The demo upstream: an MCP server of both eras (2026-07-28, and 2025-11-25 and 2025-06-18) that this binary brings along.
//!
//! It shows what a slow tool looks like behind the service, serves the tools of a fixtures file, and gives tests the
//! tools that misbehave on request; for the official conformance suite it also has prompts, resources and more. It knows
//! nothing of the service: it speaks MCP on its standard streams or by HTTP and keeps nothing. The era is chosen by each
//! message: `legacy` and `modern` serve the same toolboxes. To add a tool: an entry in one of the toolboxes.

mod conformance;
mod demo_tools;
mod fixtures;
mod http;
mod legacy;
mod modern;
mod placeholders;
mod primes;
mod shelf;
mod stdio;
mod test_tools;
mod toolbox;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;

use self::toolbox::Toolbox;

/// What the demo server offers.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Offer the tools of this file only, in its order.
    pub fixtures: Option<PathBuf>,
    /// Offer the tools that tests need instead of the demo's.
    pub test_tools: bool,
    /// Serve by Streamable HTTP at this address instead of the standard streams.
    pub http: Option<SocketAddr>,
    /// With `http`: stop when standard input is closed.
    pub stop_with_input: bool,
    /// Run calls as tasks of its own: where a client of the legacy era asks for that, and for clients of the modern era that
    /// declare the extension by each tool's mode.
    pub tasks: Option<TaskOptions>,
    /// Offer what the official conformance suite calls.
    pub conformance: bool,
}

/// How the server runs calls as tasks.
#[derive(Debug, Clone, Default)]
pub struct TaskOptions {
    /// What the ids of its tasks begin with, before a number (legacy era) or something random (modern era).
    pub id_prefix: String,
}

/// Serves standard input and output until the input is closed, or HTTP until the process is ended.
///
/// # Errors
/// If the fixtures file cannot be used, a standard stream fails, or the address cannot be had.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let toolbox: Arc<dyn Toolbox> = match options.fixtures {
        Some(file) => Arc::new(
            fixtures::Fixtures::load(&file)
                .with_context(|| format!("cannot use the fixtures file {}", file.display()))?,
        ),
        None if options.conformance => Arc::new(conformance::Conformance::new()?),
        None if options.test_tools => Arc::new(test_tools::TestTools),
        None => Arc::new(demo_tools::DemoTools),
    };
    match options.http {
        Some(address) => http::serve(toolbox, options.tasks, address, options.stop_with_input).await,
        None => stdio::serve(toolbox, options.tasks).await,
    }
}
