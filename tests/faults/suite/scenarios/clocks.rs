//! Nodes whose clocks are wrong, and are set while they run. The monotonic clocks are left alone, as `ntpd` leaves them.

use std::path::Path;
use std::time::Duration;

use crate::faults::suite::checker::Allowed;
use crate::faults::suite::fleet::{Fleet, FleetPlan};
use crate::faults::suite::stage::play;
use crate::support::database::{Backend, TestDatabase};

/// Where Debian and others have it.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];
const MINUTES: i64 = 10;
/// The first node is ahead, the second behind, the third is right.
const AT_FIRST: [i64; 3] = [MINUTES, -MINUTES, 0];

/// The library looks at its file once a second.
const READ: Duration = Duration::from_millis(1_500);

/// The library that lies about the time, and the file that says by how much.
fn environment(node: usize, folder: &Path) -> Vec<(String, String)> {
    let library = LIBRARIES.into_iter().find(|path| Path::new(path).exists());
    let library = library.expect("libfaketime is installed; scripts/test does it");
    if !folder.join("offset").exists() {
        offset(folder, AT_FIRST[node]);
    }
    let variables = [
        ("LD_PRELOAD", library.to_owned()),
        ("FAKETIME_TIMESTAMP_FILE", folder.join("offset").display().to_string()),
        ("FAKETIME_CACHE_DURATION", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    variables.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn offset(folder: &Path, minutes: i64) {
    // Whole, so that nobody reads half of it.
    std::fs::write(folder.join("offset.new"), format!("{minutes:+}m\n")).unwrap();
    std::fs::rename(folder.join("offset.new"), folder.join("offset")).unwrap();
}

/// How far a node's clock is from ours, in minutes, as its HTTP answers say.
async fn seen(fleet: &Fleet, node: usize) -> i64 {
    let url = fleet.urls()[node].replace("/mcp", "/healthz");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.get(url).send().await.unwrap();
    let date = answer.headers()["date"].to_str().unwrap().to_owned();
    let format = time::macros::format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    let there = time::PrimitiveDateTime::parse(&date, format).unwrap().assume_utc();
    #[expect(clippy::disallowed_methods, reason = "the clock of this machine is what the nodes' are compared with")]
    let here = time::OffsetDateTime::now_utc();
    ((there - here).whole_seconds() + 30).div_euclid(60)
}

// req: KEEP-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_offsets() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let plan = FleetPlan { environment, ..FleetPlan::of_three(&database.url) };
    play("clock +10 and -10 min", plan, Allowed::default(), async |stage| {
        for (node, minutes) in AT_FIRST.into_iter().enumerate() {
            stage.until("a clock to be wrong", async || seen(&stage.fleet, node).await == minutes).await;
        }
        // Further on the nodes' own answers say nothing: their `Date` waits until a clock that was set back has caught up.
        for offsets in [AT_FIRST.map(|minutes| -minutes), [0, MINUTES, -MINUTES]] {
            for (node, minutes) in offsets.into_iter().enumerate() {
                offset(&stage.fleet.folder_of(node), minutes);
            }
            stage.pass((stage.plan.third() / 2).max(READ)).await;
        }
        assert_eq!(
            database.number("SELECT COUNT(*) FROM nodes WHERE dead = 1").await,
            0,
            "nobody is judged for its clock"
        );
    })
    .await;
}
