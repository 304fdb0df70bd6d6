use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    taskhold::cli::Cli::parse().run()
}
