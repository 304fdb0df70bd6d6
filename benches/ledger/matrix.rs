//! Every operation at 1, 16 and 64 connections, in both eras, on both databases.

use crate::database::Backend;
use crate::load::{Load, Measured};
use crate::site::Site;
use crate::{Effort, median};

const OPERATIONS: [(&str, &str); 9] = [
    ("legacy", "create"),
    ("legacy", "get"),
    ("legacy", "lifecycle"),
    ("legacy", "list"),
    ("legacy", "call"),
    ("modern", "create"),
    ("modern", "get"),
    ("modern", "lifecycle"),
    ("modern", "call"),
];
const CONNECTIONS: [usize; 3] = [1, 16, 64];

pub async fn print(site: &Site, effort: Effort) {
    println!("\n## Over HTTP: operations a second, p50 / p99 in ms, medians of {} runs\n", effort.runs);
    println!("| era | operation | connections | PostgreSQL | SQLite |\n|---|---|---|---|---|");
    let seconds = format!("{}s", effort.time.as_secs());
    for (era, mode) in OPERATIONS {
        for connections in CONNECTIONS {
            let mut cells = Vec::new();
            for backend in [Backend::Postgres, Backend::Sqlite] {
                // New for each, so that none pays for what another has left.
                let name = format!("matrix_{era}_{mode}_{connections}");
                let service = site.service(backend, &name, "").await;
                let load = Load { era, ..Load::legacy(mode, connections) };
                load.run(&service, &["--requests", "500"]).await;
                let mut runs = Vec::new();
                for _ in 0..effort.runs {
                    runs.push(load.run(&service, &["--duration", &seconds]).await);
                }
                service.stopped().await;
                let middle = |of: fn(&Measured) -> f64| median(runs.iter().map(of).collect());
                cells.push(format!(
                    "{:.0}, {:.2} / {:.2}",
                    middle(|run| run.rate),
                    middle(|run| run.p50_ms),
                    middle(|run| run.p99_ms)
                ));
            }
            println!("| {era} | {mode} | {connections} | {} |", cells.join(" | "));
        }
    }
}
