//! Load by `taskhold bench`.

use serde_json::Value;
use tokio::process::Command;

use crate::server;
use crate::site::Service;

/// One run of it.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    pub mode: &'a str,
    pub era: &'a str,
    pub connections: usize,
    /// Further arguments.
    pub more: &'a [&'a str],
}

/// What it measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    pub rate: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub operations: u64,
}

impl Load<'_> {
    pub const fn legacy(mode: &str, connections: usize) -> Load<'_> {
        Load { mode, era: "legacy", connections, more: &[] }
    }

    /// Runs until its time or its number is over, which `length` says; no operation may fail.
    pub async fn run(self, service: &Service, length: &[&str]) -> Measured {
        let connections = self.connections.to_string();
        let output = Command::new(server::binary())
            .args(["bench", "--json", "--url", &service.endpoint, "--token", &service.token])
            .args(["--mode", self.mode, "--era", self.era, "--connections", &connections])
            .args(self.more)
            .args(length)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{self:?}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["errors"], 0, "{self:?}: {report}");
        let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report}"));
        Measured {
            rate: number("operations_per_second"),
            p50_ms: number("p50_ms"),
            p99_ms: number("p99_ms"),
            operations: report["operations"].as_u64().unwrap(),
        }
    }
}
