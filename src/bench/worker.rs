//! One connection's part: what an operation of each mode is, and one after the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::answer::{created, ended, page, plain, poll_interval, status};
use super::failure::{Failure, Kind};
use super::link::Link;
use super::record::Record;
use super::schedule::Schedule;
use super::session::Session;
use super::template::Template;
use super::{BenchError, Era, Mode, Options};
use crate::domain::clock::Clock;
use crate::domain::json::RawJson;
use crate::protocol::legacy::Method;
use crate::protocol::splice::{quoted, set_members};

/// Tasks that are made before the first operation where operations look at tasks: so many by each connection, or fewer, so
/// that all together make about `MOST_PREPARED`.
const PREPARED: usize = 100;
const MOST_PREPARED: usize = 1000;
/// The pauses between two looks at a task grow from this up to what its server wants.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// What a server wants that does not say.
const USUAL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest that is waited after a failure, and how long when the server does not say.
const MOST_PAUSE: Duration = Duration::from_secs(1);
const BROKEN_PAUSE: Duration = Duration::from_millis(100);

/// A connection and the requests that it sends.
pub(super) struct Worker {
    link: Link,
    session: Session,
    mode: Mode,
    limit: Duration,
    call: Template,
    get: Template,
    result: Template,
    list: Template,
    /// Ids of the tasks that were made before, as JSON strings, and whose turn it is.
    tasks: Vec<String>,
    turn: usize,
}

/// What all workers share while it is measured.
pub(super) struct Shared {
    pub(super) schedule: Schedule,
    /// Gives a permit for each operation that is due, in an open loop.
    pub(super) gate: Option<Semaphore>,
    pub(super) record: Record,
    pub(super) clock: Arc<dyn Clock>,
}

/// The params of the call.
pub(super) fn call_params(options: &Options) -> RawJson {
    let params = format!(r#"{{"name":{},"arguments":{}}}"#, quoted(&options.tool), options.arguments.as_str());
    let params = RawJson::trusted(params);
    if options.era == Era::Modern || !options.mode.needs_tasks() {
        return params;
    }
    let ttl = options.ttl.map(|ttl| format!(r#"{{"ttl":{}}}"#, ttl.as_millis()));
    set_members(&params, &[("task", ttl.as_deref().unwrap_or("{}"))], &[])
}

impl Worker {
    pub(super) fn new(link: Link, session: Session, options: &Options, call: &RawJson) -> Self {
        let Session { era, headers, capabilities, .. } = &session;
        let of_task = |method: Method| Template::of_task(*era, headers, method.as_str(), capabilities);
        let new =
            |method: Method, params: &RawJson| Template::new(*era, headers, method.as_str(), params, capabilities);
        Self {
            call: new(Method::ToolsCall, call).with_headers(&session.argument_headers),
            get: of_task(Method::TasksGet),
            result: of_task(Method::TasksResult),
            list: new(Method::TasksList, &RawJson::trusted("{}")),
            link,
            mode: options.mode,
            limit: options.timeout,
            tasks: Vec::new(),
            turn: 0,
            session,
        }
    }

    /// Makes the tasks that operations will look at.
    pub(super) async fn prepare(&mut self, connections: usize) -> Result<(), BenchError> {
        if !matches!(self.mode, Mode::Get | Mode::List) {
            return Ok(());
        }
        for _ in 0..PREPARED.min(MOST_PREPARED.div_ceil(connections)) {
            let made = timeout(self.limit, self.create()).await.unwrap_or_else(|_| Err(Failure::timeout(self.limit)));
            let (id, ..) =
                made.map_err(|failure| BenchError::Failed(format!("no task to look at can be made: {failure}")))?;
            self.tasks.push(id);
        }
        Ok(())
    }

    /// One operation after the other until it is over.
    pub(super) async fn work(&mut self, shared: &Shared) {
        loop {
            if let Some(gate) = &shared.gate {
                match gate.acquire().await {
                    Ok(permit) => permit.forget(),
                    Err(_closed) => return,
                }
            }
            let Some(planned) = shared.schedule.take(shared.clock.boot()) else { return };
            let done = match timeout(self.limit, self.operate()).await {
                Ok(done) => done,
                Err(_) => {
                    self.link.cut();
                    Err(Failure::timeout(self.limit))
                }
            };
            match done {
                Ok(at) => shared.record.done(at.saturating_sub(planned), at),
                Err(failure) => {
                    let asked = failure.pause.or_else(|| (failure.kind == Kind::Connection).then_some(BROKEN_PAUSE));
                    shared.record.failed(failure, shared.clock.boot());
                    if let Some(pause) = asked {
                        sleep(pause.min(MOST_PAUSE)).await;
                    }
                }
            }
        }
    }

    /// Ends the session; answers how often the connection was made anew.
    pub(super) async fn close(&mut self) -> u64 {
        let reconnects = self.link.reconnects();
        let _not_in_time = timeout(MOST_PAUSE, self.session.close(&mut self.link)).await;
        reconnects
    }

    /// One operation; answers when it was done.
    async fn operate(&mut self) -> Result<Duration, Failure> {
        match self.mode {
            Mode::Create => self.create().await.map(|(_, _, at)| at),
            Mode::Call => {
                let answered = self.link.request(&self.call, None).await?;
                plain(answered.result()?)?;
                Ok(answered.at)
            }
            Mode::Get => {
                self.turn = (self.turn + 1) % self.tasks.len().max(1);
                let answered = self.link.request(&self.get, self.tasks.get(self.turn).map(String::as_str)).await?;
                status(answered.result()?)?;
                Ok(answered.at)
            }
            Mode::List => {
                let answered = self.link.request(&self.list, None).await?;
                page(answered.result()?)?;
                Ok(answered.at)
            }
            Mode::Lifecycle => {
                let (id, interval, _) = self.create().await?;
                match self.session.era {
                    Era::Legacy => self.wait_for(&id).await,
                    Era::Modern => self.poll(&id, interval).await,
                }
            }
        }
    }

    /// A new task's id, how long its server wants a client to wait between looks, and when it was told.
    async fn create(&mut self) -> Result<(String, Duration, Duration), Failure> {
        let answered = self.link.request(&self.call, None).await?;
        let result = answered.result()?;
        let id = created(result)?.to_owned();
        Ok((id, poll_interval(result).unwrap_or(USUAL_INTERVAL), answered.at))
    }

    /// `tasks/result` waits for the end by itself. A server may end its stream before, and is asked again then.
    async fn wait_for(&mut self, id: &str) -> Result<Duration, Failure> {
        loop {
            match self.link.request(&self.result, Some(id)).await {
                Ok(answered) => {
                    plain(answered.result()?)?;
                    return Ok(answered.at);
                }
                Err(failure) if failure.kind == Kind::StreamEnded => {
                    sleep(failure.pause.unwrap_or(BROKEN_PAUSE)).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Looks at once, then after pauses that double: the interval that servers ask for would be most of what is measured.
    async fn poll(&mut self, id: &str, interval: Duration) -> Result<Duration, Failure> {
        let mut pause = FIRST_PAUSE.min(interval);
        loop {
            let answered = self.link.request(&self.get, Some(id)).await?;
            if ended(answered.result()?)?.is_some() {
                return Ok(answered.at);
            }
            sleep(pause).await;
            pause = (pause * 2).min(interval);
        }
    }
}
