//! A load generator: measures a server of MCP with tasks by its front door, as many clients at once would find it.
//!
//! It knows the wire and the clock and nothing of the service, which it meets as it would any other server. It shares its
//! processors with what it measures as a rule, so that what it does for each request is little: one thread, requests written
//! beforehand, answers read no further than is needed. To add a mode: a variant of [`Mode`] and its arm in
//! `worker::operate`.

mod answer;
mod failure;
mod histogram;
mod link;
mod pacer;
mod record;
mod schedule;
mod session;
mod target;
mod template;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use secrecy::SecretString;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::link::Link;
use self::schedule::Schedule;
use self::session::Session;
use self::target::Target;
use self::worker::{Shared, Worker, call_params};
use crate::domain::clock::Clock;
use crate::domain::json::RawJson;
use crate::lifecycle::spawn;

pub use self::record::Report;
pub use self::schedule::Pace;

/// What is measured, and how.
#[derive(Debug)]
pub struct Options {
    /// The endpoint.
    pub url: String,
    pub token: Option<SecretString>,
    pub era: Era,
    pub mode: Mode,
    pub connections: usize,
    pub pace: Pace,
    pub tool: String,
    /// An object.
    pub arguments: RawJson,
    /// The time to live that is asked for each task, where clients may ask.
    pub ttl: Option<Duration>,
    /// How long one operation may take.
    pub timeout: Duration,
}

/// How the server is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    /// Revision 2025-11-25: a session for each connection, and tasks that the client asks for
    Legacy,
    /// Revision 2026-07-28: every request stands alone, and the tasks extension
    Modern,
}

/// What an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A call that becomes a task, up to the answer with the task's id
    Create,
    /// A look at one of some tasks that are made beforehand
    Get,
    /// A task from its creation to its result
    Lifecycle,
    /// The first page of the caller's tasks, some of which are made beforehand; legacy only
    List,
    /// A call without a task
    Call,
}

impl Mode {
    pub(crate) const fn needs_tasks(self) -> bool {
        !matches!(self, Self::Call)
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The options cannot be used; the text says which, and what is allowed.
    #[error("{0}")]
    Unusable(String),
    /// The server cannot be reached, or cannot do what is to be measured.
    #[error("{0}")]
    Failed(String),
}

/// Measures until the pace's end, or until `stop` is cancelled. Operations that have begun are awaited.
///
/// # Errors
/// [`BenchError`]. Operations that fail are no error but counted.
pub async fn run(options: &Options, clock: Arc<dyn Clock>, stop: &CancellationToken) -> Result<Report, BenchError> {
    if options.mode == Mode::List && options.era == Era::Modern {
        let why = "--mode list cannot be used with --era modern, which has no list of tasks: use --era legacy";
        return Err(BenchError::Unusable(why.to_owned()));
    }
    let target = Arc::new(Target::new(&options.url, options.token.as_ref())?);
    let call = call_params(options);
    let mut workers = open_all(&target, &clock, options, &call).await?;
    let prepared = join_all(workers.iter_mut().map(|worker| worker.prepare(options.connections))).await;
    if let Some(error) = prepared.into_iter().find_map(Result::err) {
        close_all(&mut workers).await;
        return Err(error);
    }
    let start = clock.boot();
    let shared = Arc::new(Shared {
        schedule: Schedule::new(options.pace, start),
        gate: options.pace.rate.map(|_| Semaphore::new(0)),
        record: record::Record::new(),
        clock: Arc::clone(&clock),
    });
    let (mut workers, paced) = work_all(workers, &shared, stop).await;
    let behind = shared.schedule.behind(clock.boot());
    let reconnects = close_all(&mut workers).await;
    paced.map_err(|error| BenchError::Failed(format!("the timer of this client failed: {error}")))?;
    Ok(shared.record.report(options, start, reconnects, behind))
}

/// Opens a connection for each worker, and a session where there are sessions. The first one says whether the server offers what
/// is needed.
async fn open_all(
    target: &Arc<Target>,
    clock: &Arc<dyn Clock>,
    options: &Options,
    call: &RawJson,
) -> Result<Vec<Worker>, BenchError> {
    let open = async || {
        let mut link = Link::new(Arc::clone(target), Arc::clone(clock));
        let opening = Session::open(&mut link, options.era, options.mode, call);
        let late = || {
            let limit = humantime::format_duration(options.timeout);
            BenchError::Failed(format!("{} cannot be measured: it did not open a session within {limit}", target.url()))
        };
        let session = timeout(options.timeout, opening).await.unwrap_or_else(|_| Err(late()))?;
        Ok::<_, BenchError>(Worker::new(link, session, options, call))
    };
    let mut workers = vec![open().await?];
    let mut failed = None;
    for opened in join_all((1..options.connections).map(|_| open())).await {
        match opened {
            Ok(worker) => workers.push(worker),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        None => Ok(workers),
        Some(error) => {
            close_all(&mut workers).await;
            Err(error)
        }
    }
}

/// Lets all workers work until it is over.
async fn work_all(
    workers: Vec<Worker>,
    shared: &Arc<Shared>,
    stop: &CancellationToken,
) -> (Vec<Worker>, std::io::Result<()>) {
    let count = workers.len();
    let working = workers.into_iter().map(|mut worker| {
        let shared = Arc::clone(shared);
        spawn("bench worker", async move {
            worker.work(&shared).await;
            worker
        })
    });
    let working = join_all(working.collect::<Vec<_>>());
    let pacing = async {
        match &shared.gate {
            Some(gate) => pacer::pace(&shared.schedule, &*shared.clock, gate, count, stop).await,
            None => Ok(()),
        }
    };
    let stopping = async {
        stop.cancelled().await;
        shared.schedule.stop(shared.clock.boot());
        std::future::pending().await
    };
    tokio::select! {
        (worked, paced) = async { tokio::join!(working, pacing) } => (worked.into_iter().flatten().collect(), paced),
        never = stopping => never,
    }
}

async fn close_all(workers: &mut [Worker]) -> u64 {
    join_all(workers.iter_mut().map(Worker::close)).await.into_iter().sum()
}
