//! The machine, and what a process of the service takes of it.

use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use crate::database::Backend;
use crate::load::Load;
use crate::median;
use crate::site::{Service, Site};

/// After a start, before memory is read.
const SETTLING: Duration = Duration::from_secs(5);
const STARTS: usize = 9;
const LIVE: &str = "100000";
const LONG: &[&str] = &["--tool", "wait", "--arguments", r#"{"seconds":3600}"#];

/// What it is measured on.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model =
        processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = read("/proc/meminfo").lines().find_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    format!(
        "{count} x {}, {:.0} GiB, Linux {}; {}; commit {}, {}",
        model.unwrap_or("unknown processor"),
        memory.unwrap_or(0) as f64 / 1_048_576.0,
        read("/proc/sys/kernel/osrelease").trim(),
        said(&crate::cluster::programs().join("postgres").display().to_string(), &["--version"]),
        said("git", &["rev-parse", "--short=12", "HEAD"]),
        said("date", &["--utc", "+%Y-%m-%d"]),
    )
}

pub async fn print(site: &Site) {
    println!("\n## A process\n");
    println!("| database | start to ready | aim | resident, idle | aim | resident with {LIVE} live tasks |");
    println!("|---|---|---|---|---|---|");
    for (backend, name, ready_aim, idle_aim) in
        [(Backend::Sqlite, "SQLite", "150 ms", "30 MiB"), (Backend::Postgres, "PostgreSQL", "", "")]
    {
        let mut service = site.service(backend, "process", "").await;
        let mut starts = Vec::new();
        for _ in 0..STARTS {
            let (again, took) = started_again(service).await;
            (service, _) = (again, starts.push(took.as_secs_f64() * 1000.0));
        }
        tokio::time::sleep(SETTLING).await;
        let idle = resident(&service);
        let load = Load { more: LONG, ..Load::legacy("create", 64) };
        load.run(&service, &["--requests", LIVE]).await;
        tokio::time::sleep(SETTLING).await;
        let full = resident(&service);
        println!("| {name} | {:.0} ms | {ready_aim} | {idle:.1} MiB | {idle_aim} | {full:.1} MiB |", median(starts));
        drop(service);
    }
}

/// Restarts it; answers how long it took from its start until it listened.
async fn started_again(service: Service) -> (Service, Duration) {
    let stopped = service.stopped().await;
    let began = Instant::now();
    let service = stopped.start().await;
    (service, began.elapsed())
}

/// MiB of memory that the service itself has in use; its upstreams are processes of their own.
fn resident(service: &Service) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
