//! Upstream MCP servers, by command or by URL.
//!
//! [`Upstreams`] offers what they have ([`crate::executor::Catalogue`]) and runs calls of them
//! ([`crate::executor::Executor`]). Each upstream is followed over one link that is nobody's; calls go over links of
//! their own, one per authorization context unless the upstream is declared shared (EXEC-12). Knows nothing of tasks,
//! retries or clients.

mod catalogue;
mod config;
mod control;
mod discovery;
mod era;
mod handed;
mod http;
mod inbox;
mod kinds;
mod lines;
mod link;
mod links;
mod lists;
mod modern;
mod naming;
mod noise;
mod offer;
mod opening;
mod outgoing;
mod pipe;
mod relay;
mod requests;
mod stdio;
pub mod supervisor;
mod table;
mod validate;

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use self::config::{Endpoint, Settings, ToolConfig, UpstreamConfig};
pub use self::discovery::{LeftOut, Status};
pub use self::era::Protocol;
pub use self::stdio::{KEPT_VARIABLES, Launcher};

use self::catalogue::{Catalog, Coordinator};
use self::discovery::{Follower, StatusCell};
use self::era::Eras;
use self::handed::{Caller, Made, outcome, runs_tool_tasks};
use self::inbox::OpenCall;
use self::link::{Link, task_id};
use self::links::{Lease, Links, NoLink};
use self::modern::{Ended, Rounds, Said};
use self::offer::task_support;
use self::outgoing::{ATTEMPT, NOT_PASSED_ON};
use self::requests::{NoReply, Outbound, Reply};
use super::shelf::Shelf;
use super::{Attempt, Call, Catalogue, Changes, Event, Executor, Host, Notice, Relay, Subscription, Tool};
use crate::domain::clock::Clock;
use crate::domain::ids::ContextId;
use crate::domain::json::RawJson;
use crate::domain::log_level::LogLevel;
use crate::lifecycle::spawn;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted, set_members, set_meta};
use crate::store::SystemStore;

/// Notices of one upstream that may wait for who listens; of more the oldest are lost.
const NOTICES: usize = 1024;

/// All configured upstreams.
pub struct Upstreams {
    upstreams: Vec<Upstream>,
    catalog: Arc<Catalog>,
    still_waiting: Duration,
    stop: CancellationToken,
}

struct Upstream {
    config: Arc<UpstreamConfig>,
    links: Arc<Links>,
    status: Arc<StatusCell>,
    notices: broadcast::Sender<Notice>,
}

impl Upstreams {
    /// Offers what the store knows of them at once, and begins to follow them.
    ///
    /// A store that cannot be read delays nothing: tools are offered when their servers have listed them.
    pub async fn start(
        configs: Vec<UpstreamConfig>,
        settings: Settings,
        store: SystemStore,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let configs: Vec<_> = configs.into_iter().map(Arc::new).collect();
        let catalog = Arc::new(Catalog::new(configs.clone()));
        let names: Vec<_> = configs.iter().map(|config| config.name.clone()).collect();
        if let Err(error) = store.prune_catalog(&names).await {
            tracing::warn!(error = %error, "the catalogue of upstreams that are gone cannot be cleaned up");
        }
        let items = store.catalog().await.unwrap_or_else(|error| {
            tracing::warn!(error = %error, "the stored catalogue cannot be read");
            Vec::new()
        });
        catalog.offer(&items);
        let stop = CancellationToken::new();
        let (reports, reported) = mpsc::channel(16);
        let mut upstreams = Vec::new();
        for (index, config) in configs.into_iter().enumerate() {
            let status = Arc::new(StatusCell::default());
            let notices = broadcast::Sender::new(NOTICES);
            let target = config.to_target(&settings);
            let eras = Arc::new(Eras::new(config.protocol));
            let bounds = (config.shared, config.max_links);
            let (common, clock) = (settings.clone(), Arc::clone(&clock));
            let links =
                Links::start(&config.name, (target.clone(), Arc::clone(&eras)), bounds, common, notices.clone(), clock);
            let follower = Follower {
                index,
                config: Arc::clone(&config),
                settings: settings.clone(),
                target,
                eras,
                status: Arc::clone(&status),
                reports: reports.clone(),
                stop: stop.clone(),
                owner: links.owner(None),
                links: Arc::clone(&links),
                told: HashSet::new(),
                had_tools: items.iter().any(|item| item.upstream == config.name && item.kind == "tool" && item.listed),
            };
            spawn("upstream catalogue", follower.follow());
            upstreams.push(Upstream { config, links, status, notices });
        }
        let coordinator = Coordinator { catalog: Arc::clone(&catalog), store, clock, items };
        spawn("catalogue", coordinator.run(reported));
        let still_waiting = settings.still_waiting;
        Arc::new(Self { upstreams, catalog, still_waiting, stop })
    }

    /// Ends all links and waits, some seconds at most, until their processes are gone.
    pub async fn stop(&self) {
        self.stop.cancel();
        join_all(self.upstreams.iter().map(|upstream| async {
            tokio::join!(upstream.links.stop(), upstream.status.ended());
        }))
        .await;
    }

    /// How each upstream stands, in the order of configuration.
    #[must_use]
    pub fn status(&self) -> Vec<(String, Status)> {
        self.upstreams.iter().map(|upstream| (upstream.config.name.clone(), upstream.status.read())).collect()
    }

    /// The URL of an upstream that is reached by one, without user info and query.
    #[must_use]
    pub fn endpoint(&self, name: &str) -> Option<String> {
        let upstream = self.upstreams.iter().find(|upstream| upstream.config.name == name)?;
        upstream.config.endpoint.as_ref().map(Endpoint::shown)
    }

    /// Completes when every upstream has been heard of once: its list, or that it cannot be had.
    pub async fn settled(&self) {
        self.catalog.settled().await;
    }

    /// Whether anything was ever heard of this upstream.
    #[must_use]
    pub fn is_known(&self, upstream: &str) -> bool {
        self.catalog.is_known(upstream)
    }

    /// Whether a call is made as a task of its upstream: only where that offers it, always where it demands it (EXEC-16).
    fn is_to_be_task(&self, link: &Link, call: &Call) -> bool {
        runs_tool_tasks(&link.capabilities)
            && match self.tool_of(call).and_then(|tool| task_support(&tool.definition)).as_deref() {
                Some("required") => true,
                Some("optional") => call.is_task,
                _ => false,
            }
    }

    /// The tool that is called, if it is still listed.
    fn tool_of(&self, call: &Call) -> Option<Arc<Tool>> {
        let tools = self.catalog.tools();
        let is_it = |tool: &&Arc<Tool>| tool.upstream == call.upstream && tool.upstream_tool == call.upstream_tool;
        tools.iter().find(is_it).cloned()
    }
}

impl Catalogue for Upstreams {
    fn tools(&self) -> Arc<Vec<Arc<Tool>>> {
        self.catalog.tools()
    }

    fn tool(&self, exposed: &str) -> Option<Arc<Tool>> {
        self.catalog.tool(exposed)
    }

    fn shelf(&self) -> Arc<Shelf> {
        self.catalog.shelf()
    }

    fn changes(&self) -> watch::Receiver<Changes> {
        self.catalog.changes()
    }
}

#[async_trait]
impl Executor for Upstreams {
    async fn run(&self, call: Call, host: Arc<dyn Host>, stop: CancellationToken) -> Attempt {
        let Some(upstream) = self.upstreams.iter().find(|upstream| upstream.config.name == call.upstream) else {
            return Attempt::NotDispatched { detail: format!("this node has no server {}", call.upstream) };
        };
        if let Some(task) = call.resume.clone() {
            return Caller { links: &upstream.links, call: &call, host, stop }.resume(task).await;
        }
        let mut is_second = false;
        loop {
            match self.make(upstream, &call, &host, &stop).await {
                Sent::Ended(attempt) => return attempt,
                // The link had ended unnoticed, as a session does that its upstream forgets: the call was not run, and
                // another link may be had at once.
                Sent::Not { over, .. } if over.is_closed() && !is_second => is_second = true,
                Sent::Not { detail, .. } => return Attempt::NotDispatched { detail },
            }
        }
    }

    fn serves(&self, upstream: &str) -> bool {
        self.upstreams.iter().any(|own| own.config.name == upstream)
    }

    async fn relay(&self, relay: Relay, host: Arc<dyn Host>, stop: CancellationToken) -> Attempt {
        self.pass_on(relay, host, stop).await
    }

    fn listen_from(&self, context: ContextId, level: LogLevel) {
        for upstream in &self.upstreams {
            upstream.links.listen_from(context, level);
        }
    }

    fn notices(&self) -> Vec<broadcast::Receiver<Notice>> {
        self.upstreams.iter().map(|upstream| upstream.notices.subscribe()).collect()
    }

    fn follows(&self, subscription: &Subscription) -> bool {
        let upstream = self.upstreams.iter().find(|upstream| upstream.config.name == subscription.upstream);
        upstream.is_some_and(|upstream| upstream.links.follows(subscription.context, &subscription.uri))
    }

    fn keep_subscriptions(&self, wanted: &HashSet<Subscription>) {
        self.give_up_subscriptions_besides(wanted);
    }
}

/// What became of a call that was to be sent.
enum Sent {
    Ended(Attempt),
    Not { detail: String, over: Arc<Link> },
}

impl Upstreams {
    /// Makes a call over its context's link, as a task of the upstream or plainly.
    async fn make(&self, upstream: &Upstream, call: &Call, host: &Arc<dyn Host>, stop: &CancellationToken) -> Sent {
        let links = &upstream.links;
        let leased = still_waiting(self.still_waiting, &**host, links.lease(call.context, stop)).await;
        let lease = match leased {
            Ok(lease) => lease,
            Err(NoLink::Stopped) => return Sent::Ended(Attempt::Stopped),
            Err(NoLink::Unavailable(detail) | NoLink::Gone(detail)) => {
                return Sent::Ended(Attempt::NotDispatched { detail });
            }
        };
        lease.prepare().await;
        let over = Arc::clone(&lease.link);
        let open = over.open_call(call.context, Arc::clone(host));
        let number = open.number();
        if over.is_modern() {
            return self.make_modern(links, lease, open, call, host, stop).await;
        }
        let makes_task = self.is_to_be_task(&over, call);
        let params = outgoing_params(call, number, makes_task);
        if makes_task {
            let caller = Caller { links, call, host: Arc::clone(host), stop: stop.clone() };
            return match caller.make(lease, open, params).await {
                Made::Answered(reply) => Sent::Ended(Attempt::Answered(outcome(reply))),
                Made::Ended(attempt) => Sent::Ended(attempt),
                Made::Not { detail } => Sent::Not { detail, over },
            };
        }
        let request = Outbound { call: Some(number), ..Outbound::new(number, "tools/call", Some(&params)) };
        Sent::Ended(match over.request(request, stop).await {
            Ok(reply) => {
                lease.answered();
                Attempt::Answered(outcome(unlike_a_task(reply)))
            }
            Err(NoReply::NotSent(detail)) => return Sent::Not { detail, over: Arc::clone(&over) },
            Err(NoReply::Lost(how)) => {
                Attempt::Lost { detail: format!("the connection to the tool's server ended ({how})") }
            }
            Err(NoReply::Stopped) => Attempt::Stopped,
        })
    }
}

impl Upstreams {
    /// Makes a call of an upstream that decides itself whether it runs it as a task.
    async fn make_modern(
        &self,
        links: &Arc<Links>,
        lease: Lease,
        open: OpenCall,
        call: &Call,
        host: &Arc<dyn Host>,
        stop: &CancellationToken,
    ) -> Sent {
        let over = Arc::clone(&lease.link);
        let params = outgoing_params(call, open.number(), false);
        let headers = self.tool_of(call).map(|tool| modern::argument_headers(&tool.param_headers, &params));
        let rounds = Rounds {
            link: &over,
            call: open.number(),
            method: "tools/call",
            params: &params,
            said: Said {
                log_level: Some(lease.log_level()),
                arguments: headers.unwrap_or_default(),
                ..Said::of_caller(&call.capabilities)
            },
            host,
            stop,
            most_open: links.open_questions(),
        };
        let answered = |reply| Sent::Ended(Attempt::Answered(outcome(reply)));
        match rounds.run().await {
            Ok(Ended::Reply(reply)) => {
                lease.answered();
                answered(reply)
            }
            Ok(Ended::Task(created)) => {
                lease.answered();
                let caller = Caller { links, call, host: Arc::clone(host), stop: stop.clone() };
                match caller.follow_made(lease, open, created).await {
                    Made::Answered(reply) => answered(reply),
                    Made::Ended(attempt) => Sent::Ended(attempt),
                    Made::Not { detail } => Sent::Not { detail, over },
                }
            }
            Ok(Ended::Asked) => {
                lease.answered();
                Sent::Ended(Attempt::Asked)
            }
            Err(NoReply::NotSent(detail)) => Sent::Not { detail, over },
            Err(NoReply::Lost(how)) => {
                Sent::Ended(Attempt::Lost { detail: format!("the connection to the tool's server ended ({how})") })
            }
            Err(NoReply::Stopped) => Sent::Ended(Attempt::Stopped),
        }
    }
}

/// Does the work, and says again and again that it is waited for.
async fn still_waiting<T>(every: Duration, host: &dyn Host, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    loop {
        match tokio::time::timeout(every, &mut work).await {
            Ok(done) => return done,
            Err(_) => host.tell(Event::Waiting),
        }
    }
}

/// A task that was not asked for, in place of a result, is no success without content.
fn unlike_a_task(reply: Reply) -> Reply {
    match &reply {
        Reply::Result(result) if task_id(result).is_some() && member(result.as_str(), "content").is_none() => {
            Reply::Broken("it made a task of a call that did not ask for one".to_owned())
        }
        _ => reply,
    }
}

/// The caller's params with the upstream's tool name and our progress token; `task` is ours, too, and how long the upstream
/// keeps its task is left to it. The rest verbatim.
fn outgoing_params(call: &Call, progress_token: u64, makes_task: bool) -> RawJson {
    let text = call.params.as_str();
    let is_named = member(text, "name").and_then(string_value).is_some_and(|name| name == call.upstream_tool);
    let params = if is_named && member(text, "task").is_none() {
        call.params.clone()
    } else {
        set_members(&call.params, &[("name", &quoted(&call.upstream_tool))], &["task"])
    };
    let params = if makes_task { set_members(&params, &[("task", "{}")], &[]) } else { params };
    let (token, attempt) = (progress_token.to_string(), call.attempt.to_string());
    let set = [("progressToken", token.as_str()), (ATTEMPT, attempt.as_str())];
    // Nothing is said of the first: then there is no other.
    let set = if call.attempt > 1 { &set[..] } else { &set[..1] };
    set_meta(&params, set, &NOT_PASSED_ON)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ContextId;

    // req: EXEC-12
    #[test]
    fn the_progress_token_and_the_name_are_ours_and_the_rest_is_the_callers() {
        let call = Call {
            context: ContextId::new(),
            upstream: "u".to_owned(),
            upstream_tool: "read.file".to_owned(),
            params: RawJson::trusted(
                r#"{"name":"read_file_1","arguments":{"b":1e400,"a":"\u0000\ud800"},"task":{"ttl":1},"_meta":{"progressToken":"p","x":1.0,"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#,
            ),
            capabilities: RawJson::trusted("{}"),
            attempt: 1,
            is_task: false,
            resume: None,
        };
        assert_eq!(
            outgoing_params(&call, 7, false).as_str(),
            r#"{"arguments":{"b":1e400,"a":"\u0000\ud800"},"_meta":{"x":1.0,"progressToken":7},"name":"read.file"}"#
        );
        let plain = Call { params: RawJson::trusted(r#"{"name":"read.file","arguments":{}}"#), ..call };
        let expected = r#"{"name":"read.file","arguments":{},"_meta":{"progressToken":9}}"#;
        let as_task = r#"{"name":"read.file","arguments":{},"task":{},"_meta":{"progressToken":9}}"#;
        assert_eq!(outgoing_params(&plain, 9, true).as_str(), as_task);
        assert_eq!(outgoing_params(&plain, 9, false).as_str(), expected);
        // req: KEEP-08
        let forged = RawJson::trusted(r#"{"name":"read.file","_meta":{"io.taskhold/attempt":9}}"#);
        let of = |attempt| outgoing_params(&Call { params: forged.clone(), attempt, ..plain.clone() }, 9, false);
        assert_eq!(of(1).as_str(), r#"{"name":"read.file","_meta":{"progressToken":9}}"#);
        assert_eq!(of(2).as_str(), r#"{"name":"read.file","_meta":{"progressToken":9,"io.taskhold/attempt":2}}"#);
    }
}
