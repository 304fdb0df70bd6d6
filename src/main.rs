//! Parses arguments, runs a command, turns an error into an exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use taskhold::demo;
use taskhold::executor::upstream::supervisor::{Supervised, supervise};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the demo tools on standard input and output
    DemoServer {
        #[arg(long)]
        fixtures: Option<std::path::PathBuf>,
        #[arg(long)]
        test_tools: bool,
    },
    #[command(hide = true)]
    Supervise {
        #[arg(long)]
        parent: u32,
        #[arg(long)]
        scratch: Option<std::path::PathBuf>,
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::DemoServer { fixtures, test_tools } => {
            tokio::runtime::Runtime::new()?.block_on(demo::run(demo::Options { fixtures, test_tools }))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Supervise { parent, scratch, command } => {
            let code = supervise(&Supervised { parent, scratch, command });
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
        }
    }
}
