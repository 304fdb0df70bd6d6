//! The tools of all upstreams together, under names that never move.
//!
//! What upstreams list is kept in the store, so that a node offers and checks tools before their servers are up. Names
//! are given here: configuration order decides between tools first seen together, later ones give way.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::config::UpstreamConfig;
use super::discovery::{Listed, Report};
use super::naming::propose;
use super::offer;
use crate::domain::clock::Clock;
use crate::executor::{Catalogue, Tool};
use crate::store::{self, CatalogItem, SystemStore};

const KIND: &str = "tool";
/// At the start, upstreams that answer within this are seen together.
const FIRST_ROUND: Duration = Duration::from_millis(1500);
/// Before the store is asked again after an error.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// Another node may take a proposed name first; then another one is proposed.
const MOST_PROPOSALS: usize = 5;

/// The catalogue as it is offered now.
pub(super) struct Catalog {
    upstreams: Vec<Arc<UpstreamConfig>>,
    offered: RwLock<Offered>,
    changes: watch::Sender<u64>,
    /// True once every upstream has been heard of.
    settled: watch::Sender<bool>,
}

#[derive(Default, Clone)]
struct Offered {
    tools: Arc<Vec<Arc<Tool>>>,
    by_name: Arc<HashMap<String, Arc<Tool>>>,
}

/// Takes in what the followers find.
pub(super) struct Coordinator {
    pub(super) catalog: Arc<Catalog>,
    pub(super) store: SystemStore,
    pub(super) clock: Arc<dyn Clock>,
    /// Everything stored, also what is not offered.
    pub(super) items: Vec<CatalogItem>,
}

impl Catalog {
    pub(super) fn new(upstreams: Vec<Arc<UpstreamConfig>>) -> Self {
        let settled = upstreams.is_empty();
        Self {
            upstreams,
            offered: RwLock::default(),
            changes: watch::Sender::new(0),
            settled: watch::Sender::new(settled),
        }
    }

    /// Changes its value whenever other tools are offered than before.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Completes when every upstream has been heard of once: its list, or that it cannot be had.
    pub(super) async fn settled(&self) {
        // Fails only if the sender is gone, and it is ours.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    fn offered(&self) -> Offered {
        self.offered.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Offers the listed items, in the order of configuration and of the upstreams' lists.
    pub(super) fn offer(&self, items: &[CatalogItem]) {
        let before = self.offered();
        let mut tools = Vec::new();
        for config in &self.upstreams {
            let mut listed: Vec<_> = items.iter().filter(|item| is_offered(item, config)).collect();
            listed.sort_by_key(|item| item.rank);
            tools.extend(listed.into_iter().map(|item| match before.by_name.get(&item.exposed) {
                Some(tool) if is_same(tool, item) => Arc::clone(tool),
                _ => Arc::new(offer::tool(item, config)),
            }));
        }
        if tools.len() == before.tools.len() && tools.iter().zip(&*before.tools).all(|(a, b)| Arc::ptr_eq(a, b)) {
            return;
        }
        let by_name = tools.iter().map(|tool| (tool.exposed.clone(), Arc::clone(tool))).collect();
        let offered = Offered { tools: Arc::new(tools), by_name: Arc::new(by_name) };
        *self.offered.write().unwrap_or_else(PoisonError::into_inner) = offered;
        self.changes.send_modify(|count| *count += 1);
    }
}

impl Catalogue for Catalog {
    fn tools(&self) -> Arc<Vec<Arc<Tool>>> {
        self.offered().tools
    }

    fn tool(&self, exposed: &str) -> Option<Arc<Tool>> {
        self.offered().by_name.get(exposed).map(Arc::clone)
    }
}

impl Coordinator {
    /// Takes reports until the followers are gone.
    pub(super) async fn run(mut self, mut reports: mpsc::Receiver<(usize, Report)>) {
        let count = self.catalog.upstreams.len();
        let mut heard = HashSet::new();
        // Sorted by configuration order.
        let mut waiting: BTreeMap<usize, Vec<Listed>> = BTreeMap::new();
        let first_round = Instant::now() + FIRST_ROUND;
        while heard.len() < count
            && let Ok(Some((index, report))) = timeout_at(first_round, reports.recv()).await
        {
            heard.insert(index);
            if let Report::Listed(listed) = report {
                waiting.insert(index, listed);
            }
        }
        let mut retry = Instant::now();
        loop {
            if !waiting.is_empty() && Instant::now() >= retry {
                match self.place(&waiting).await {
                    Ok(()) => waiting.clear(),
                    Err(error) => {
                        tracing::warn!(error = %error, "the catalogue cannot be stored; it will be tried again");
                        retry = Instant::now() + STORE_PAUSE;
                    }
                }
            }
            if heard.len() == count && waiting.is_empty() {
                self.catalog.settled.send_replace(true);
            }
            tokio::select! {
                report = reports.recv() => match report {
                    None => return,
                    Some((index, report)) => {
                        heard.insert(index);
                        if let Report::Listed(listed) = report {
                            waiting.insert(index, listed);
                        }
                    }
                },
                () = sleep_until(retry), if !waiting.is_empty() => {}
            }
        }
    }

    /// Gives names to what is new, stores what changed, offers the whole.
    async fn place(&mut self, lists: &BTreeMap<usize, Vec<Listed>>) -> Result<(), store::StoreError> {
        for _ in 0..MOST_PROPOSALS {
            let changed = self.changed_items(lists);
            if changed.is_empty() {
                break;
            }
            self.items = self.store.put_catalog(changed).await?;
        }
        for (upstream, listed) in
            lists.iter().filter_map(|(&index, listed)| Some((self.upstreams().get(index)?, listed)))
        {
            for tool in listed.iter().filter(|tool| self.stored(&upstream.name, &tool.name).is_none()) {
                tracing::error!(
                    upstream.name = upstream.name,
                    tool.name = tool.name,
                    "no free name was found for a tool"
                );
            }
        }
        self.catalog.offer(&self.items);
        Ok(())
    }

    fn upstreams(&self) -> &[Arc<UpstreamConfig>] {
        &self.catalog.upstreams
    }

    fn stored(&self, upstream: &str, name: &str) -> Option<&CatalogItem> {
        self.items.iter().find(|item| item.kind == KIND && item.upstream == upstream && item.name == name)
    }

    /// The items that differ from what is stored.
    fn changed_items(&self, lists: &BTreeMap<usize, Vec<Listed>>) -> Vec<CatalogItem> {
        let now = self.clock.now();
        let known: HashMap<_, _> = self
            .items
            .iter()
            .filter(|item| item.kind == KIND)
            .map(|item| ((item.upstream.as_str(), item.name.as_str()), item))
            .collect();
        let mut taken: HashSet<String> = known.values().map(|item| item.exposed.clone()).collect();
        let mut changed = Vec::new();
        for (&index, listed) in lists {
            let Some(config) = self.upstreams().get(index) else { continue };
            let listed_names: HashSet<_> = listed.iter().map(|tool| tool.name.as_str()).collect();
            for (rank, tool) in (0..).zip(listed) {
                let old = known.get(&(config.name.as_str(), tool.name.as_str()));
                let exposed = old.map_or_else(
                    || propose(&config.name, &tool.name, config.prefix, |name| taken.contains(name)),
                    |item| item.exposed.clone(),
                );
                if old.is_none() {
                    taken.insert(exposed.clone());
                    if exposed != tool.name {
                        let (upstream, name) = (&config.name, &tool.name);
                        tracing::info!(upstream.name = upstream, tool.name = name, "a tool is offered as {exposed}");
                    }
                }
                let is_current =
                    |item: &CatalogItem| item.listed && item.rank == rank && item.definition == tool.definition;
                if !old.is_some_and(|item| is_current(item)) {
                    changed.push(CatalogItem {
                        upstream: config.name.clone(),
                        kind: KIND.to_owned(),
                        name: tool.name.clone(),
                        exposed,
                        definition: tool.definition.clone(),
                        rank,
                        listed: true,
                        seen: now,
                    });
                }
            }
            let gone = known.values().filter(|item| {
                item.upstream == config.name && item.listed && !listed_names.contains(item.name.as_str())
            });
            changed.extend(gone.map(|&item| CatalogItem { listed: false, ..item.clone() }));
        }
        changed
    }
}

fn is_offered(item: &CatalogItem, config: &UpstreamConfig) -> bool {
    item.kind == KIND && item.listed && item.upstream == config.name
}

fn is_same(tool: &Tool, item: &CatalogItem) -> bool {
    tool.upstream == item.upstream && tool.upstream_tool == item.name && tool.definition == item.definition
}
