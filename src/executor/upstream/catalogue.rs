//! What all upstreams offer together, under names that never move.
//!
//! What upstreams list is kept in the store, so that a node offers and checks it before their servers are up. Names of
//! tools and prompts are given here: configuration order decides between those first seen together, later ones give way.
//! Resources and templates keep their URIs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::config::UpstreamConfig;
use super::discovery::Report;
use super::kinds::Kind;
use super::lists::{Listed, Lists};
use super::naming::propose;
use super::offer;
use crate::domain::clock::Clock;
use crate::executor::shelf::Shelf;
use crate::executor::{Catalogue, Changes, Tool};
use crate::store::{self, CatalogItem, SystemStore};

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
    changes: watch::Sender<Changes>,
    /// True once every upstream has been heard of.
    settled: watch::Sender<bool>,
}

#[derive(Default, Clone)]
struct Offered {
    tools: Arc<Vec<Arc<Tool>>>,
    by_name: Arc<HashMap<String, Arc<Tool>>>,
    shelf: Arc<Shelf>,
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
            changes: watch::Sender::new(Changes::default()),
            settled: watch::Sender::new(settled),
        }
    }

    /// Completes when every upstream has been heard of once: its list, or that it cannot be had.
    pub(super) async fn settled(&self) {
        // Fails only if the sender is gone, and it is ours.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    /// Whether it was ever heard of: every upstream that was has a row of its own in the store.
    pub(super) fn is_known(&self, upstream: &str) -> bool {
        self.offered().shelf.has(upstream)
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
        let same_tools =
            tools.len() == before.tools.len() && tools.iter().zip(&*before.tools).all(|(a, b)| Arc::ptr_eq(a, b));
        let shelf = offer::shelf(items, &self.upstreams);
        let same_shelf = shelf == *before.shelf;
        if same_tools && same_shelf {
            return;
        }
        for clash in shelf.clashes().iter().filter(|clash| !before.shelf.clashes().contains(clash)) {
            tracing::warn!(
                upstream.name = clash.upstream,
                item.name = clash.item,
                "a resource is not offered: {} has the same",
                clash.kept_by
            );
        }
        let has_other = (shelf.prompts() != before.shelf.prompts(), !shelf.same_resources(&before.shelf));
        let by_name = tools.iter().map(|tool| (tool.exposed.clone(), Arc::clone(tool))).collect();
        let offered = Offered {
            tools: Arc::new(tools),
            by_name: Arc::new(by_name),
            shelf: if same_shelf { before.shelf } else { Arc::new(shelf) },
        };
        *self.offered.write().unwrap_or_else(PoisonError::into_inner) = offered;
        self.changes.send_modify(|changes| {
            changes.tools += u64::from(!same_tools);
            changes.prompts += u64::from(has_other.0);
            changes.resources += u64::from(has_other.1);
        });
    }
}

impl Catalogue for Catalog {
    fn tools(&self) -> Arc<Vec<Arc<Tool>>> {
        self.offered().tools
    }

    fn tool(&self, exposed: &str) -> Option<Arc<Tool>> {
        self.offered().by_name.get(exposed).map(Arc::clone)
    }

    fn shelf(&self) -> Arc<Shelf> {
        self.offered().shelf
    }

    fn changes(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }
}

impl Coordinator {
    /// Takes reports until the followers are gone.
    pub(super) async fn run(mut self, mut reports: mpsc::Receiver<(usize, Report)>) {
        let count = self.catalog.upstreams.len();
        let mut heard = HashSet::new();
        // Sorted by configuration order.
        let mut waiting: BTreeMap<usize, Lists> = BTreeMap::new();
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
    async fn place(&mut self, lists: &BTreeMap<usize, Lists>) -> Result<(), store::StoreError> {
        for _ in 0..MOST_PROPOSALS {
            let changed = self.changed_items(lists);
            if changed.is_empty() {
                break;
            }
            self.items = self.store.put_catalog(changed).await?;
        }
        let gone = self.gone_for_good(lists);
        if !gone.is_empty() {
            self.items = self.store.drop_catalog(gone).await?;
        }
        self.tell_nameless(lists);
        self.catalog.offer(&self.items);
        Ok(())
    }

    fn upstreams(&self) -> &[Arc<UpstreamConfig>] {
        &self.catalog.upstreams
    }

    fn tell_nameless(&self, lists: &BTreeMap<usize, Lists>) {
        let stored: HashSet<_> = self.items.iter().map(key).collect();
        for (config, kind, listed) in self.each(lists) {
            for item in listed.iter().filter(|item| !stored.contains(&(&config.name, kind.as_str(), &item.name))) {
                let (upstream, name) = (&config.name, &item.name);
                tracing::error!(
                    upstream.name = upstream,
                    item.name = name,
                    "no free name was found for a {}",
                    kind.as_str()
                );
            }
        }
    }

    fn each<'a>(
        &'a self,
        lists: &'a BTreeMap<usize, Lists>,
    ) -> impl Iterator<Item = (&'a UpstreamConfig, Kind, &'a [Listed])> {
        lists.iter().filter_map(|(&index, lists)| Some((self.upstreams().get(index)?, lists))).flat_map(
            |(config, lists)| lists.found.iter().map(move |(kind, listed)| (&**config, *kind, listed.as_slice())),
        )
    }

    /// The items that differ from what is stored.
    fn changed_items(&self, lists: &BTreeMap<usize, Lists>) -> Vec<CatalogItem> {
        let now = self.clock.now();
        let known: HashMap<_, _> = self.items.iter().map(|item| (key(item), item)).collect();
        let mut taken: HashSet<(Kind, String)> = self
            .items
            .iter()
            .filter_map(|item| Some((Kind::LISTS.into_iter().find(|kind| kind.as_str() == item.kind)?, item)))
            .map(|(kind, item)| (kind, item.exposed.clone()))
            .collect();
        let mut changed = Vec::new();
        for (config, kind, listed) in self.each(lists) {
            for (rank, item) in (0..).zip(listed) {
                let old = known.get(&(config.name.as_str(), kind.as_str(), item.name.as_str()));
                let exposed = match old {
                    Some(old) => old.exposed.clone(),
                    None => {
                        let exposed = name_for(config, kind, item, |name| taken.contains(&(kind, name.to_owned())));
                        taken.insert((kind, exposed.clone()));
                        exposed
                    }
                };
                let is_current =
                    |old: &CatalogItem| old.listed && old.rank == rank && old.definition == item.definition;
                if !old.is_some_and(|old| is_current(old)) {
                    changed.push(CatalogItem {
                        upstream: config.name.clone(),
                        kind: kind.as_str().to_owned(),
                        name: item.name.clone(),
                        exposed,
                        definition: item.definition.clone(),
                        rank,
                        listed: true,
                        seen: now,
                    });
                }
            }
            if kind.is_named() {
                let gone = self.missing(config, kind, listed).filter(|item| item.listed);
                changed.extend(gone.map(|item| CatalogItem { listed: false, ..item.clone() }));
            }
        }
        changed
    }

    /// Stored items that their upstream does not list any more and whose names nobody has to remember.
    fn gone_for_good(&self, lists: &BTreeMap<usize, Lists>) -> Vec<CatalogItem> {
        self.each(lists)
            .filter(|(_, kind, _)| !kind.is_named())
            .flat_map(|(config, kind, listed)| self.missing(config, kind, listed).cloned())
            .collect()
    }

    fn missing<'a>(
        &'a self,
        config: &'a UpstreamConfig,
        kind: Kind,
        listed: &[Listed],
    ) -> impl Iterator<Item = &'a CatalogItem> + use<'a> {
        let listed: HashSet<String> = listed.iter().map(|item| item.name.clone()).collect();
        let of_this = move |item: &&CatalogItem| item.kind == kind.as_str() && item.upstream == config.name;
        self.items.iter().filter(of_this).filter(move |item| !listed.contains(&item.name))
    }
}

fn key(item: &CatalogItem) -> (&str, &str, &str) {
    (&item.upstream, &item.kind, &item.name)
}

/// The name that clients use for something new; for what keeps its own, one that is unique among all upstreams.
fn name_for(config: &UpstreamConfig, kind: Kind, item: &Listed, is_taken: impl Fn(&str) -> bool) -> String {
    match kind {
        Kind::Resource | Kind::Template => format!("{} {}", config.name, item.name),
        Kind::Capabilities => config.name.clone(),
        Kind::Tool | Kind::Prompt => {
            let exposed = propose(&config.name, &item.name, config.prefix, is_taken);
            if exposed != item.name {
                let (upstream, name) = (&config.name, &item.name);
                tracing::info!(
                    upstream.name = upstream,
                    item.name = name,
                    "a {} is offered as {exposed}",
                    kind.as_str()
                );
            }
            exposed
        }
    }
}

fn is_offered(item: &CatalogItem, config: &UpstreamConfig) -> bool {
    item.kind == Kind::Tool.as_str() && item.listed && item.upstream == config.name
}

fn is_same(tool: &Tool, item: &CatalogItem) -> bool {
    tool.upstream == item.upstream && tool.upstream_tool == item.name && tool.definition == item.definition
}
