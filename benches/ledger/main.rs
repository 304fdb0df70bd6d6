//! The cost ledger: what each operation costs beside what the database itself can do on the same machine.
//!
//! Run by `scripts/bench`, which says what its arguments are. Starts PostgreSQL (fsync on) and the release binary on databases of
//! its own, loads them by `pgbench` and `taskhold bench`, and prints tables.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]
#![expect(clippy::print_stdout, reason = "its result is the tables that it prints")]

mod costs;
mod instructions;
mod limits;
mod load;
mod matrix;
mod process;
mod ratios;
mod site;

#[path = "../../tests/support/cluster.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
mod cluster;
#[path = "../../tests/support/database.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
mod database;
#[path = "../../tests/support/processes.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
mod processes;
#[path = "../../tests/support/server.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
#[expect(clippy::disallowed_methods, reason = "tests allow them")]
mod server;

use std::time::Duration;

use site::Site;

/// What is measured, in this order.
const PARTS: [&str; 5] = ["ratios", "costs", "process", "instructions", "matrix"];

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Of one load.
    pub time: Duration,
    /// Of which the median is taken.
    pub runs: usize,
    /// Task lives after which the tables' sizes are looked at.
    pub lives: u64,
}

#[tokio::main]
async fn main() {
    let mut effort = Effort { time: Duration::from_secs(5), runs: 5, lives: 1_000_000 };
    let mut parts = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let number = arguments.next().and_then(|text| text.parse::<u64>().ok()).filter(|number| *number > 0);
            number.unwrap_or_else(|| panic!("{argument} takes a whole number of at least 1"))
        };
        match argument.as_str() {
            // Cargo's own.
            "--bench" => {}
            "--seconds" => effort.time = Duration::from_secs(number()),
            "--runs" => effort.runs = usize::try_from(number()).unwrap(),
            "--lives" => effort.lives = number(),
            part if PARTS.contains(&part) => parts.push(argument),
            _ => panic!("there is no {argument}: there are --seconds N, --runs N, --lives N and {}", PARTS.join(", ")),
        }
    }
    println!("{}", process::machine());
    let site = Site::new().await;
    for part in PARTS.into_iter().filter(|part| parts.is_empty() || parts.iter().any(|wanted| wanted == part)) {
        match part {
            "ratios" => ratios::print(&site, effort).await,
            "costs" => costs::print(&site, effort).await,
            "process" => process::print(&site).await,
            "instructions" => instructions::print(&site).await,
            _ => matrix::print(&site, effort).await,
        }
    }
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
