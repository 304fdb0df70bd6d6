//! `taskhold bench`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use super::output;
use crate::bench::{self, BenchError, Era, Mode, Options, Pace, Report};
use crate::domain::clock::SystemClock;
use crate::domain::json::RawJson;
use crate::lifecycle::{StopSignals, spawn};
use crate::protocol::scan::scan;

/// What `serve --demo` offers, and does at once.
const DEMO_TOOL: &str = "wait";
const DEMO_ARGUMENTS: &str = r#"{"seconds":0}"#;
/// How long is measured when nothing is said.
const DURATION: Duration = Duration::from_secs(10);
/// The longest run, and the longest wait for one operation.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest time to live that can be asked for: more milliseconds than this are no number to many servers.
const MOST_TTL_MS: u128 = (1 << 53) - 1;

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// The server's endpoint, http or https
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080/mcp")]
    url: String,
    /// The access token, if the server wants one
    ///
    /// A token on a command line can be seen by others on the machine: prefer --token-file.
    #[arg(long, value_name = "TOKEN", value_parser = secret)]
    token: Option<SecretString>,
    /// A file that holds the access token
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// How the server is spoken to
    #[arg(long, value_enum, default_value = "legacy")]
    era: Era,
    /// What one operation is
    #[arg(long, value_enum, default_value = "lifecycle")]
    mode: Mode,
    /// Connections, each of which has one operation under way at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// How long is measured, such as 30s or 5m; 10s unless --requests is given
    #[arg(long, value_name = "DURATION", value_parser = some_time)]
    duration: Option<Duration>,
    /// End after so many operations
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Begin so many operations a second, by all connections together, whether earlier ones are answered or not
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// The tool that is called; the demo's `wait`, with {"seconds":0}, when not given
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Its arguments, a JSON object; {} for a tool that is given
    #[arg(long, value_name = "JSON", value_parser = object)]
    arguments: Option<RawJson>,
    /// The time to live that is asked for each task; clients of the modern era cannot ask for one
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = time_to_live)]
    ttl: Duration,
    /// How long one operation may take before it is given up and counted as an error
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = some_time)]
    timeout: Duration,
    /// Print one JSON object: era, mode, connections, rate, seconds, operations, operations_per_second, p50_ms, p95_ms,
    /// p99_ms, max_ms, errors, errors_by_kind (kind: count), limited (errors by a limit, such as 429), reconnects, behind
    /// (operations that --rate had planned and that were never begun)
    #[arg(long)]
    json: bool,
}

impl BenchArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let json = self.json;
        let options = match self.options() {
            Ok(options) => options,
            Err(error) => {
                output::complain(&format!("taskhold: {error:#}"));
                return Ok(ExitCode::from(2));
            }
        };
        // One thread: what is measured often runs on the same processors.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let measured = runtime.block_on(async {
            let stop = CancellationToken::new();
            let mut signals = StopSignals::new()?;
            let stopping = stop.clone();
            spawn("bench signals", async move {
                signals.next().await;
                output::complain("stopping: operations that have begun are awaited; once more to stop at once");
                stopping.cancel();
                signals.next().await;
                std::process::exit(1);
            });
            anyhow::Ok(bench::run(&options, SystemClock::new(), &stop).await)
        })?;
        let report = match measured {
            Ok(report) => report,
            Err(error @ BenchError::Unusable(_)) => {
                output::complain(&format!("taskhold: {error}"));
                return Ok(ExitCode::from(2));
            }
            Err(error @ BenchError::Failed(_)) => return Err(error.into()),
        };
        if json {
            output::json(&report)?;
        } else {
            output::line(&text(&report))?;
        }
        if report.operations == 0 {
            output::complain("taskhold: no operation was done");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn options(self) -> anyhow::Result<Options> {
        let token = match self.token_file {
            Some(file) => {
                let text = std::fs::read_to_string(&file)
                    .with_context(|| format!("cannot read the token of {}", file.display()))?;
                Some(SecretString::from(text.trim()))
            }
            None => self.token,
        };
        let usual = if self.tool.is_none() { DEMO_ARGUMENTS } else { "{}" };
        let duration = self.duration.or_else(|| self.requests.is_none().then_some(DURATION));
        Ok(Options {
            url: self.url,
            token,
            era: self.era,
            mode: self.mode,
            connections: self.connections as usize,
            pace: Pace { rate: self.rate, duration, requests: self.requests },
            tool: self.tool.unwrap_or_else(|| DEMO_TOOL.to_owned()),
            arguments: self.arguments.unwrap_or_else(|| RawJson::trusted(usual)),
            ttl: Some(self.ttl),
            timeout: self.timeout,
        })
    }
}

/// A report for people.
fn text(report: &Report) -> String {
    let Report { mode, era, connections, seconds, operations, operations_per_second, .. } = report;
    let (mode, era) = (word(mode), word(era));
    let loop_kind = report.rate.map_or_else(|| "closed loop".to_owned(), |rate| format!("{rate} a second planned"));
    let mut lines = vec![
        format!("{mode}, {era} era, {connections} connections, {loop_kind}"),
        format!("operations  {operations} in {seconds:.2} s: {operations_per_second:.1} a second"),
        format!(
            "latency     p50 {:.2} ms, p95 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
            report.p50_ms, report.p95_ms, report.p99_ms, report.max_ms
        ),
        format!("errors      {}", report.errors),
    ];
    for (kind, count) in &report.errors_by_kind {
        let said = report.first_errors.get(kind).filter(|said| !said.is_empty());
        let said = said.map(|said| format!(", the first one: {}", output::plain(said))).unwrap_or_default();
        lines.push(format!("            {count} {kind}{said}"));
    }
    for (count, what) in [
        (report.limited, "of the errors were refusals by a limit: the server takes no more for now"),
        (report.reconnects, "times a connection had to be made anew"),
        (report.behind, "operations were planned and never begun: the server, or this client, did not keep up"),
    ] {
        if count > 0 {
            lines.push(format!("note        {count} {what}"));
        }
    }
    lines.join("\n")
}

fn word(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn secret(text: &str) -> Result<SecretString, Infallible> {
    Ok(SecretString::from(text))
}

fn some_time(text: &str) -> Result<Duration, String> {
    let fits = |duration: &Duration| !duration.is_zero() && *duration <= LONGEST;
    let parsed = humantime::parse_duration(text).ok().filter(fits);
    parsed.ok_or_else(|| "expected a duration above zero, of 30 days at most, such as 30s or 5m".to_owned())
}

fn time_to_live(text: &str) -> Result<Duration, String> {
    let ttl = humantime::parse_duration(text).ok();
    let fits = |ttl: &Duration| (1..=MOST_TTL_MS).contains(&ttl.as_millis());
    ttl.filter(fits).ok_or_else(|| format!("expected 1ms to {MOST_TTL_MS}ms, such as 10m"))
}

fn object(text: &str) -> Result<RawJson, String> {
    let scanned = scan(text.as_bytes()).map_err(|error| format!("expected a JSON object: {error}"))?;
    if scanned.is_object() {
        Ok(scanned.to_raw())
    } else {
        Err("expected a JSON object, such as {\"seconds\":1}".to_owned())
    }
}
