//! The figures that are judged: each beside its limit, taken in turn in one run.

use crate::database::{Backend, number};
use crate::limits::{Limits, Raw};
use crate::load::Load;
use crate::site::{Service, Site};
use crate::{Effort, median};

const CONNECTIONS: usize = 64;
/// Some loads before anything is measured: caches fill, tables get their first pages.
const WARM_UP: &[&str] = &["--requests", "5000"];
/// Its only slot is held, so nothing that is created runs.
const ONE_SLOT: &str = "[runner]\nslots = 1\n";
const HOLD_THE_SLOT: &[&str] = &["--tool", "wait", "--arguments", r#"{"seconds":3600}"#];

#[derive(Default)]
struct Figures {
    insert: Vec<f64>,
    batched: Vec<f64>,
    select: Vec<f64>,
    create: Vec<f64>,
    paused: Vec<f64>,
    lifecycle: Vec<f64>,
    get: Vec<f64>,
    lite_create: Vec<f64>,
    lite_lifecycle: Vec<f64>,
    lite_get: Vec<f64>,
}

pub async fn print(site: &Site, effort: Effort) {
    let postgres = site.service(Backend::Postgres, "ratios", "").await;
    let paused = site.service(Backend::Postgres, "paused", ONE_SLOT).await;
    let lite = site.service(Backend::Sqlite, "", "").await;
    Load { more: HOLD_THE_SLOT, ..Load::legacy("create", 1) }.run(&paused, &["--requests", "1"]).await;
    for service in [&postgres, &paused, &lite] {
        Load::legacy("create", CONNECTIONS).run(service, WARM_UP).await;
        if !std::ptr::eq(service, &paused) {
            settled(service).await;
        }
    }
    let bytes = new_row_bytes(&paused).await;
    let limits = Limits::new(site, "limits", bytes).await;

    let seconds = format!("{}s", effort.time.as_secs());
    let length = ["--duration", seconds.as_str()];
    let mut figures = Figures::default();
    for _ in 0..effort.runs {
        figures.insert.push(limits.measure(Raw::Insert, CONNECTIONS, effort.time).await);
        figures.create.push(rate("create", &postgres, &length).await);
        figures.paused.push(Load::legacy("create", CONNECTIONS).run(&paused, &length).await.rate);
        figures.lifecycle.push(rate("lifecycle", &postgres, &length).await);
        figures.lite_create.push(rate("create", &lite, &length).await);
        figures.lite_lifecycle.push(rate("lifecycle", &lite, &length).await);
        figures.select.push(limits.measure(Raw::SelectByKey, CONNECTIONS, effort.time).await);
        figures.get.push(rate("get", &postgres, &length).await);
        figures.lite_get.push(rate("get", &lite, &length).await);
        figures.batched.push(limits.measure(Raw::BatchedInsert, 2, effort.time).await);
    }
    let mut late = Vec::new();
    for (service, peak) in [(&postgres, &figures.create), (&lite, &figures.lite_create)] {
        let half = (median(peak.clone()) / 2.0).round().to_string();
        let mut p99 = Vec::new();
        for _ in 0..effort.runs {
            let load = Load { more: &["--rate", &half], ..Load::legacy("create", CONNECTIONS) };
            p99.push(load.run(service, &length).await.p99_ms);
            settled(service).await;
        }
        late.push((half, median(p99)));
    }
    show(&figures, bytes, &late);
    for service in [postgres, paused, lite] {
        service.stopped().await;
    }
}

async fn rate(mode: &str, service: &Service, length: &[&str]) -> f64 {
    let measured = Load::legacy(mode, CONNECTIONS).run(service, length).await;
    // What was created goes on running, and would take its part of what is measured next.
    settled(service).await;
    measured.rate
}

async fn settled(service: &Service) {
    while number(&service.url, "SELECT COUNT(*) FROM task_live").await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// The bytes of all rows of a task that was just created.
async fn new_row_bytes(service: &Service) -> i64 {
    let of = |table: &str| format!("(SELECT AVG(pg_column_size(r.*)) FROM {table} r)");
    let all = ["tasks", "task_requests", "task_live"].map(of).join(" + ");
    number(&service.url, &format!("SELECT ({all})::bigint")).await
}

fn show(figures: &Figures, bytes: i64, late: &[(String, f64)]) {
    let Figures { insert, batched, select, create, paused, lifecycle, get, lite_create, lite_lifecycle, lite_get } =
        figures;
    println!("\n## At {CONNECTIONS} connections, medians; a like row has {bytes} bytes\n");
    println!("| what | a second |\n|---|---|");
    for (what, rates) in [
        ("pgbench: insert of a like row, 64 clients", insert),
        ("pgbench: the same, 64 rows an insert, 2 clients", batched),
        ("create, PostgreSQL", create),
        ("create, PostgreSQL, runner paused", paused),
        ("lifecycle, PostgreSQL", lifecycle),
        ("create, SQLite", lite_create),
        ("lifecycle, SQLite", lite_lifecycle),
        ("pgbench: select of a like row by key, 64 clients", select),
        ("get, PostgreSQL", get),
        ("get, SQLite", lite_get),
    ] {
        println!("| {what} | {:.0} |", median(rates.clone()));
    }
    println!("\n| figure | is | aim |\n|---|---|---|");
    for (figure, (of, to), aim) in [
        ("create, PostgreSQL / insert", (create, insert), "0.8"),
        ("create with the runner paused / insert", (paused, insert), ""),
        ("get, PostgreSQL / select", (get, select), "0.6"),
        ("lifecycle / create, PostgreSQL", (lifecycle, create), "0.35"),
        ("lifecycle / create, SQLite", (lite_lifecycle, lite_create), ""),
        ("create, SQLite / create, PostgreSQL", (lite_create, create), "1.0"),
    ] {
        // Of each run: what else the machine does meets both alike.
        let ratios = of.iter().zip(to).map(|(of, to)| of / to).collect();
        println!("| {figure} | {:.2} | {aim} |", median(ratios));
    }
    for ((half, p99), database) in late.iter().zip(["PostgreSQL", "SQLite"]) {
        println!("| p99 of create at {half}/s, half of the peak, {database} | {p99:.1} ms | 10 ms |");
    }
}
