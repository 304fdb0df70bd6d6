//! Upstream MCP servers by stdio.
//!
//! [`Upstreams`] offers their tools ([`crate::executor::Catalogue`]) and runs calls of them
//! ([`crate::executor::Executor`]). Each upstream is followed over one link that is nobody's; calls go over links of
//! their own, one per authorization context unless the upstream is declared shared (EXEC-12). Knows nothing of tasks,
//! retries or clients.

mod catalogue;
mod config;
mod cost;
mod discovery;
mod lines;
mod link;
mod links;
mod naming;
mod noise;
mod offer;
mod stdio;
pub mod supervisor;
mod validate;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use self::config::{Settings, ToolConfig, UpstreamConfig};
pub use self::discovery::Status;
pub use self::stdio::{KEPT_VARIABLES, Launcher};

use self::catalogue::{Catalog, Coordinator};
use self::discovery::{Follower, StatusCell};
use self::link::{NoReply, Outbound, Reply};
use self::links::{Links, NoLink};
use super::{Attempt, Call, Catalogue, Event, Executor, Tool};
use crate::domain::clock::Clock;
use crate::domain::json::RawJson;
use crate::domain::outcome::{Failure, Outcome};
use crate::lifecycle::spawn;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, quoted, set_members, set_meta};
use crate::store::SystemStore;

/// All configured upstreams.
pub struct Upstreams {
    upstreams: Vec<Upstream>,
    catalog: Arc<Catalog>,
    result_limit: usize,
    stop: CancellationToken,
}

struct Upstream {
    config: Arc<UpstreamConfig>,
    links: Arc<Links>,
    status: Arc<StatusCell>,
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
            let follower = Follower {
                index,
                config: Arc::clone(&config),
                settings: settings.clone(),
                status: Arc::clone(&status),
                reports: reports.clone(),
                stop: stop.clone(),
                told: HashSet::new(),
                had_tools: items.iter().any(|item| item.upstream == config.name && item.listed),
            };
            spawn("upstream catalogue", follower.follow());
            let (program, bounds) = (config.to_program(), (config.shared, config.max_links));
            let links = Links::start(&config.name, program, bounds, settings.clone(), Arc::clone(&clock));
            upstreams.push(Upstream { config, links, status });
        }
        let coordinator = Coordinator { catalog: Arc::clone(&catalog), store, clock, items };
        spawn("catalogue", coordinator.run(reported));
        Arc::new(Self { upstreams, catalog, result_limit: settings.result_limit, stop })
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

    /// Completes when every upstream has been heard of once: its list, or that it cannot be had.
    pub async fn settled(&self) {
        self.catalog.settled().await;
    }

    /// Changes its value whenever other tools are offered than before (EXEC-03).
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.catalog.changes()
    }

    fn outcome(&self, reply: Reply) -> Outcome {
        match reply {
            Reply::Result(json) => {
                let is_error = member(json.as_str(), "isError") == Some("true");
                Outcome::Result { json, is_error }
            }
            Reply::Error(json) => Outcome::Error { json },
            Reply::TooLarge { bytes } => Outcome::failure(&Failure::ResultTooLarge { bytes, limit: self.result_limit }),
            Reply::Broken(detail) => Outcome::failure(&Failure::UpstreamProtocol { detail }),
        }
    }
}

impl Catalogue for Upstreams {
    fn tools(&self) -> Arc<Vec<Arc<Tool>>> {
        self.catalog.tools()
    }

    fn tool(&self, exposed: &str) -> Option<Arc<Tool>> {
        self.catalog.tool(exposed)
    }
}

#[async_trait]
impl Executor for Upstreams {
    async fn run(&self, call: Call, events: mpsc::Sender<Event>, stop: CancellationToken) -> Attempt {
        let Some(upstream) = self.upstreams.iter().find(|upstream| upstream.config.name == call.upstream) else {
            return Attempt::NotDispatched { detail: "no server of that name is configured any more".to_owned() };
        };
        let lease = match upstream.links.lease(call.context, &stop).await {
            Ok(lease) => lease,
            Err(NoLink::Stopped) => return Attempt::Stopped,
            Err(NoLink::Unavailable(detail)) => return Attempt::NotDispatched { detail },
        };
        let number = lease.link.next_number();
        let params = outgoing_params(&call, number);
        let request = Outbound { number, method: "tools/call", params: Some(&params), events: Some(events) };
        match lease.link.request(request, &stop).await {
            Ok(reply) => {
                lease.answered();
                Attempt::Answered(self.outcome(reply))
            }
            Err(NoReply::NotSent(detail)) => Attempt::NotDispatched { detail },
            Err(NoReply::Lost(how)) => {
                Attempt::Lost { detail: format!("the connection to the tool's server ended ({how})") }
            }
            Err(NoReply::Stopped) => Attempt::Stopped,
        }
    }
}

/// The caller's params with the upstream's tool name and our progress token, without `task`; the rest verbatim.
fn outgoing_params(call: &Call, progress_token: u64) -> RawJson {
    let text = call.params.as_str();
    let is_named = member(text, "name").and_then(string_value).is_some_and(|name| name == call.upstream_tool);
    let params = if is_named && member(text, "task").is_none() {
        call.params.clone()
    } else {
        set_members(&call.params, &[("name", &quoted(&call.upstream_tool))], &["task"])
    };
    set_meta(&params, &[("progressToken", &progress_token.to_string())], &["io.modelcontextprotocol/related-task"])
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
            attempt: 1,
        };
        assert_eq!(
            outgoing_params(&call, 7).as_str(),
            r#"{"arguments":{"b":1e400,"a":"\u0000\ud800"},"_meta":{"x":1.0,"progressToken":7},"name":"read.file"}"#
        );
        let plain = Call { params: RawJson::trusted(r#"{"name":"read.file","arguments":{}}"#), ..call };
        let expected = r#"{"name":"read.file","arguments":{},"_meta":{"progressToken":9}}"#;
        assert_eq!(outgoing_params(&plain, 9).as_str(), expected);
    }
}
