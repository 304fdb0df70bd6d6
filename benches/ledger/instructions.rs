//! Instructions of the service per request, which a busy machine does not change.
//!
//! `valgrind --tool=callgrind` counts them over a whole process. Two runs that differ in nothing but the number of requests tell
//! what one request takes.

use std::process::Stdio;

use tokio::process::Command;

use crate::database::Backend;
use crate::load::Load;
use crate::site::{Service, Site};

const FEW: u64 = 200;
const MORE: u64 = 1_200;
/// One after the other: how many are gathered into one batch would be another run's chance.
const CONNECTIONS: usize = 1;

pub async fn print(site: &Site) {
    if std::process::Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("\nInstructions per request: not counted, for want of valgrind (Debian package valgrind).");
        return;
    }
    println!("\n## Thousands of instructions per request, one connection\n");
    println!("| era | operation | PostgreSQL | SQLite |\n|---|---|---|---|");
    for (era, mode) in [
        ("legacy", "get"),
        ("legacy", "create"),
        ("legacy", "lifecycle"),
        ("legacy", "call"),
        ("modern", "get"),
        ("modern", "create"),
    ] {
        let mut cells = Vec::new();
        for backend in [Backend::Postgres, Backend::Sqlite] {
            let load = Load { era, ..Load::legacy(mode, CONNECTIONS) };
            let mut counts = Vec::new();
            for requests in [FEW, MORE] {
                let name = format!("counted_{era}_{mode}_{requests}");
                let service = site.service(backend, &name, "").await;
                counts.push(counted(service, load, requests).await);
            }
            cells.push(format!("{:.0}", (counts[1] - counts[0]) / (MORE - FEW) as f64 / 1000.0));
        }
        println!("| {era} | {mode} | {} |", cells.join(" | "));
    }
}

/// The instructions of a service from its start to its end, with so many requests between.
async fn counted(service: Service, load: Load<'_>, requests: u64) -> f64 {
    let counts = service.stopped().await;
    let out = counts.folder().join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet"]).arg(format!("--callgrind-out-file={}", out.display()));
    let service = counts.start_by(valgrind).await;
    load.run(&service, &["--requests", &requests.to_string()]).await;
    let _stopped = service.stopped().await;
    let text = std::fs::read_to_string(&out).unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("summary: ").or_else(|| line.strip_prefix("totals: ")));
    total.unwrap_or_else(|| panic!("no total in {}", out.display())).trim().parse().unwrap()
}
