use std::process::ExitCode;

use clap::Parser as _;

/// Thousands of streams live among short requests: the system's allocator keeps the holes between them (ADR 2).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    taskhold::cli::Cli::parse().run()
}
