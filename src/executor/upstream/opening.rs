//! Opening a link: how the upstream is reached, which era it speaks, what it says of itself (EXEC-17, EXEC-19).
//!
//! An upstream whose era is not known is asked by `server/discover`. Whatever is no answer of the modern era means the legacy
//! one, by the same process where that is still there.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::config::{Settings, Target};
use super::era::{Era, Eras, Protocol};
use super::http;
use super::inbox::{Inbox, Owner};
use super::link::{CAPABILITIES, Link};
use super::modern::{DISCOVER, REVISION};
use super::outgoing::{Kind, Outgoing, QUEUE};
use super::pipe;
use super::requests::{NoReply, Outbound, Reply};
use super::stdio::Process;
use super::table::Table;
use crate::domain::ids::random_bytes;
use crate::domain::json::RawJson;
use crate::domain::work::PROCESS_SESSION;
use crate::protocol::jsonrpc::{error_code, write_notification};
use crate::protocol::legacy::initialize::initialize_params;
use crate::protocol::modern::client::{Discovered, supported_by};
use crate::protocol::modern::errors::{HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION};
use crate::protocol::scan::string_value;
use crate::protocol::splice::member;

/// Revisions of the legacy era; the first one is asked for.
const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const INITIALIZE: &str = "initialize";
/// What an upstream that answers nothing was asked.
const PROBE_AND_INITIALIZE: &str = "server/discover or initialize";
/// How much longer than one of ours a server elsewhere has to answer the probe: it may have to be woken first.
const FURTHER: u32 = 5;

/// Why there is no link.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum StartError {
    #[error("its program cannot be started: {0}")]
    Spawn(Arc<str>),
    #[error("{0}")]
    Endpoint(Arc<str>),
    #[error("it did not answer {method}: {how}")]
    Lost { method: &'static str, how: String },
    #[error("it refused {method}: {why}")]
    Refused { method: &'static str, why: String },
    #[error("it did not answer {method} within {} s", .limit.as_secs())]
    Late { method: &'static str, limit: Duration },
    #[error("it speaks protocol version {versions:?}; this service speaks {REVISION}, {}", VERSIONS.join(", "))]
    Version { versions: String },
}

impl StartError {
    /// The probe had no answer either.
    fn after_a_silent_probe(self) -> Self {
        let method = PROBE_AND_INITIALIZE;
        match self {
            Self::Lost { how, .. } => Self::Lost { method, how },
            Self::Late { limit, .. } => Self::Late { method, limit },
            other => other,
        }
    }
}

/// An error, and the last lines of standard error.
type Failed = (StartError, Vec<String>);

impl Link {
    /// Starts or reaches the upstream and opens the connection. Standard error's last lines are with the error.
    pub(super) async fn start(settings: &Settings, target: &Target, owner: Owner, eras: &Eras) -> Result<Self, Failed> {
        let opening = Opening { settings, target, owner };
        match (eras.protocol, eras.known()) {
            (Protocol::Legacy, _) => return opening.legacy().await,
            (Protocol::Modern, _) => return opening.modern().await,
            (Protocol::Auto, Some(Era::Legacy)) => {
                let started = opening.legacy().await;
                let Err((error, _)) = &started else { return started };
                eras.learn(None);
                // It may have learned something new.
                let has_spoken = match error {
                    StartError::Refused { .. } | StartError::Version { .. } => true,
                    StartError::Lost { .. } => matches!(target, Target::Remote(_)),
                    StartError::Late { .. } | StartError::Spawn(_) | StartError::Endpoint(_) => false,
                };
                if !has_spoken {
                    return started;
                }
            }
            (Protocol::Auto, _) => {}
        }
        opening.either(eras).await
    }

    /// Goes on in a session that the upstream knows from before.
    pub(super) fn resume(
        settings: &Settings,
        target: &Target,
        owner: Owner,
        session: &str,
        revision: &str,
    ) -> Result<Self, StartError> {
        let remote = match target {
            Target::Remote(Ok(remote)) => Arc::clone(remote),
            Target::Remote(Err(why)) => return Err(StartError::Endpoint(Arc::clone(why))),
            Target::Program(_) => return Err(StartError::Endpoint("a process has no session to go on with".into())),
        };
        let (outbox, queued) = mpsc::channel(QUEUE);
        let table = Table::new(settings.result_limit, outbox, Inbox::new(owner));
        // Numbers of the process before this one may still be told of.
        table.skip_numbers(u64::from(u32::from_le_bytes(random_bytes())) + (1 << 20));
        table.resume_session(session);
        table.inbox().speaks(revision);
        let control = http::carry(remote, Arc::clone(&table), queued);
        let kind = Kind::Resumed { session: session.to_owned(), version: revision.to_owned() };
        table.tell(Outgoing { text: String::new(), kind });
        let mut link = Self::new(table, control, None);
        link.agree(RawJson::trusted("{}"), revision);
        Ok(link)
    }
}

/// A link to be opened.
struct Opening<'a> {
    settings: &'a Settings,
    target: &'a Target,
    owner: Owner,
}

/// What a probe says.
enum Probed {
    Modern(Discovered),
    /// It speaks that era, and not with us.
    Unusable(StartError),
    /// Anything else.
    Other,
}

impl Opening<'_> {
    /// A connection over which nothing is agreed on so far.
    fn open(&self, era: Era) -> Result<Link, Failed> {
        let (outbox, queued) = mpsc::channel(QUEUE);
        let table = Table::new(self.settings.result_limit, outbox, Inbox::new(self.owner.clone()));
        table.turn(era);
        let (control, process) = match self.target {
            Target::Program(program) => {
                let process = Process::start(&self.settings.launcher, program)
                    .map_err(|error| (StartError::Spawn(error.to_string().into()), Vec::new()))?;
                let control = process.control.clone();
                pipe::carry(process, Arc::clone(&table), queued);
                (control, Some(format!("{PROCESS_SESSION}{}", HEXLOWER.encode(&random_bytes::<16>()))))
            }
            Target::Remote(Ok(remote)) => (http::carry(Arc::clone(remote), Arc::clone(&table), queued), None),
            Target::Remote(Err(why)) => return Err((StartError::Endpoint(Arc::clone(why)), Vec::new())),
        };
        Ok(Link::new(table, control, process))
    }

    async fn legacy(&self) -> Result<Link, Failed> {
        let mut link = self.open(Era::Legacy)?;
        match self.initialize(&mut link).await {
            Ok(()) => Ok(link),
            Err(error) => Err((error, link.control().stderr())),
        }
    }

    async fn modern(&self) -> Result<Link, Failed> {
        let mut link = self.open(Era::Modern)?;
        let limit = self.settings.start_timeout;
        let error = match timeout(limit, discover(Arc::clone(link.table()))).await {
            Err(_) => StartError::Late { method: DISCOVER, limit },
            Ok(Err(NoReply::NotSent(how) | NoReply::Lost(how))) => StartError::Lost { method: DISCOVER, how },
            Ok(answer) => match probed(answer) {
                Probed::Modern(found) => {
                    link.agree(found.capabilities, REVISION);
                    return Ok(link);
                }
                Probed::Unusable(error) => error,
                Probed::Other => {
                    let why = format!("it does not speak {REVISION}");
                    StartError::Refused { method: DISCOVER, why }
                }
            },
        };
        Err((error, link.control().stderr()))
    }

    /// Finds out which era it is.
    async fn either(&self, eras: &Eras) -> Result<Link, Failed> {
        let mut link = self.open(Era::Modern)?;
        let probe = discover(Arc::clone(link.table()));
        tokio::pin!(probe);
        let patience = match self.target {
            Target::Program(_) => self.settings.probe_timeout,
            Target::Remote(_) => self.settings.probe_timeout * FURTHER,
        };
        let patience = patience.min(self.settings.start_timeout);
        let answer = timeout(patience, &mut probe).await;
        let was_silent = !matches!(answer, Ok(Ok(_)));
        match answer.map_or(Probed::Other, probed) {
            Probed::Modern(found) => {
                eras.learn(Some(Era::Modern));
                link.agree(found.capabilities, REVISION);
                Ok(link)
            }
            Probed::Unusable(error) => Err((error, link.control().stderr())),
            Probed::Other => {
                let found = self.fall_back(link, probe).await;
                eras.learn(match &found {
                    Ok((_, era)) => Some(*era),
                    // Next time without a probe: it may be what made it deaf.
                    Err((StartError::Late { .. }, _)) => Some(Era::Legacy),
                    Err(_) => None,
                });
                found
                    .map(|(link, _)| link)
                    .map_err(|(error, said)| (if was_silent { error.after_a_silent_probe() } else { error }, said))
            }
        }
    }

    /// Goes on in the legacy era, by the same process if there is one and it still lives.
    async fn fall_back(&self, mut link: Link, probe: impl Future<Output = Answer>) -> Result<(Link, Era), Failed> {
        if !link.is_process() || link.is_closed() {
            return Ok((self.legacy().await?, Era::Legacy));
        }
        link.table().turn(Era::Legacy);
        let error = match self.initialize(&mut link).await {
            Ok(()) => return Ok((link, Era::Legacy)),
            // It was ended by the probe, as some are.
            Err(StartError::Lost { .. }) => return Ok((self.legacy().await?, Era::Legacy)),
            Err(error) => error,
        };
        // It may only have been slow: its answer to the probe came meanwhile.
        if let Some(Probed::Modern(found)) = probe.now_or_never().map(probed) {
            link.table().turn(Era::Modern);
            link.agree(found.capabilities, REVISION);
            return Ok((link, Era::Modern));
        }
        Err((error, link.control().stderr()))
    }

    async fn initialize(&self, link: &mut Link) -> Result<(), StartError> {
        let (limit, method) = (self.settings.start_timeout, INITIALIZE);
        let (capabilities, revision) =
            timeout(limit, initialize(link.table())).await.unwrap_or(Err(StartError::Late { method, limit }))?;
        link.table().inbox().speaks(&revision);
        let text = write_notification("notifications/initialized", None);
        link.table().tell(Outgoing { text, kind: Kind::Opened { version: revision.clone() } });
        link.agree(capabilities, &revision);
        Ok(())
    }
}

type Answer = Result<Reply, NoReply>;

async fn discover(table: Arc<Table>) -> Answer {
    let request = Outbound::new(table.next_number(), DISCOVER, None);
    table.request(request, &CancellationToken::new()).await
}

fn probed(answer: Answer) -> Probed {
    let refused = |error: &RawJson| StartError::Refused { method: DISCOVER, why: message_of(error) };
    match answer {
        Ok(Reply::Result(result)) => match Discovered::read(&result) {
            Some(found) if found.versions.iter().any(|version| version == REVISION) => Probed::Modern(found),
            Some(found) => of_versions(&found.versions),
            None => Probed::Other,
        },
        Ok(Reply::Error(error)) => match error_code(&error) {
            Some(UNSUPPORTED_VERSION) => of_versions(&supported_by(&error)),
            Some(HEADER_MISMATCH | MISSING_CAPABILITY) => Probed::Unusable(refused(&error)),
            _ => Probed::Other,
        },
        _ => Probed::Other,
    }
}

/// A server that speaks the modern era in other revisions than ours may speak one of the legacy era with us.
fn of_versions(supported: &[String]) -> Probed {
    if supported.iter().any(|version| VERSIONS.contains(&version.as_str())) {
        return Probed::Other;
    }
    Probed::Unusable(StartError::Version { versions: supported.join(", ") })
}

/// What the upstream declares, and the revision that was agreed on.
async fn initialize(table: &Arc<Table>) -> Result<(RawJson, String), StartError> {
    let method = INITIALIZE;
    let params = initialize_params(VERSIONS[0], CAPABILITIES);
    let request = Outbound::new(table.next_number(), method, Some(&params));
    let result = match table.request(request, &CancellationToken::new()).await {
        Ok(Reply::Result(result)) => result,
        Ok(Reply::Error(error)) => return Err(StartError::Refused { method, why: message_of(&error) }),
        Ok(Reply::TooLarge { bytes, .. }) => {
            return Err(StartError::Refused { method, why: format!("an answer of {bytes} bytes") });
        }
        Ok(Reply::Broken(why)) => return Err(StartError::Refused { method, why }),
        Err(NoReply::NotSent(how) | NoReply::Lost(how)) => return Err(StartError::Lost { method, how }),
        Err(NoReply::Stopped) => return Err(StartError::Lost { method, how: "it was stopped".to_owned() }),
    };
    let version = member(result.as_str(), "protocolVersion").and_then(string_value).unwrap_or_default();
    if !VERSIONS.contains(&&*version) {
        return Err(StartError::Version { versions: version.into_owned() });
    }
    let capabilities = member(result.as_str(), "capabilities").filter(|raw| raw.starts_with('{'));
    Ok((RawJson::trusted(capabilities.unwrap_or("{}")), version.into_owned()))
}

fn message_of(error: &RawJson) -> String {
    member(error.as_str(), "message").and_then(string_value).unwrap_or_default().into_owned()
}
