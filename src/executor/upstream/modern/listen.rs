//! Subscriptions by `subscriptions/listen`: to an upstream's lists, and to resources that somebody follows.
//!
//! Whatever belongs to a subscription names it, which on standard streams is all that tells them apart. One that ends is
//! opened again, after a pause that grows.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::inbox::without;
use super::super::requests::{NoReply, Outbound, Reply};
use super::super::table::Table;
use crate::domain::ids::random_bytes;
use crate::domain::json::RawJson;
use crate::domain::lease::backoff;
use crate::lifecycle::spawn;
use crate::protocol::jsonrpc::Notification;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, quoted};

const LISTEN: &str = "subscriptions/listen";
/// The `_meta` key that names a message's subscription.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// How long the acknowledgement is waited for.
const ACKNOWLEDGED: Duration = Duration::from_secs(30);
/// How long the lists are waited for to be followed before they are first read.
const FOLLOWED: Duration = Duration::from_secs(2);
/// One that ended sooner counts as a failure.
const SHORT: Duration = Duration::from_secs(5);

/// The subscriptions of a link that are open, by the numbers of their requests.
#[derive(Default)]
pub(in super::super) struct Subscriptions(Mutex<HashMap<u64, Option<oneshot::Sender<RawJson>>>>);

impl Subscriptions {
    fn open(&self, number: u64) -> (Open<'_>, oneshot::Receiver<RawJson>) {
        let (tell, acknowledged) = oneshot::channel();
        self.lock().insert(number, Some(tell));
        (Open { all: self, number }, acknowledged)
    }

    fn is_open(&self, number: u64) -> bool {
        self.lock().contains_key(&number)
    }

    fn acknowledge(&self, number: u64, honoured: RawJson) {
        let tell = self.lock().get_mut(&number).and_then(Option::take);
        // Its reader may have left this very moment.
        let _left = tell.map(|tell| tell.send(honoured));
    }

    /// A poisoned lock is taken all the same: each change under it is one insertion or removal.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Option<oneshot::Sender<RawJson>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscription while it is open.
struct Open<'a> {
    all: &'a Subscriptions,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.number);
    }
}

/// Takes what is about a subscription, or could be; false if it is about something else.
pub(in super::super) fn take_notification(table: &Table, notification: &Notification, origin: Option<u64>) -> bool {
    let method = notification.method.as_str();
    let empty = RawJson::trusted("{}");
    let params = notification.params.as_ref().unwrap_or(&empty);
    if method == "notifications/cancelled" {
        // The upstream may end a subscription so, and nothing else.
        if let Some(number) =
            number_in(member(params.as_str(), "requestId")).filter(|it| table.subscriptions().is_open(*it))
        {
            table.fail(number, NoReply::Lost("the upstream ended it".to_owned()));
        }
        return true;
    }
    let named = member(params.as_str(), "_meta").and_then(|meta| member(meta, SUBSCRIPTION));
    let is_news = method == "notifications/resources/updated" || method.ends_with("/list_changed");
    let is_of_task = matches!(method, "notifications/tasks" | "notifications/tasks/status");
    if named.is_none() && !is_news && !is_of_task && method != "notifications/subscriptions/acknowledged" {
        return false;
    }
    let subscription = number_in(named).or(origin).filter(|number| table.subscriptions().is_open(*number));
    let Some(number) = subscription else {
        tracing::debug!(rpc.method = method, "a notification was dropped: it belongs to no subscription");
        return true;
    };
    match method {
        "notifications/subscriptions/acknowledged" => {
            let honoured = member(params.as_str(), "notifications").filter(|raw| raw.starts_with('{'));
            table.subscriptions().acknowledge(number, RawJson::trusted(honoured.unwrap_or("{}")));
        }
        "notifications/resources/updated" => {
            let params = Some(without(params, &[SUBSCRIPTION]));
            table.inbox().take_notification(&Notification { method: notification.method.clone(), params }, None);
        }
        _ if is_news => table.lists_may_have_changed(),
        _ => {}
    }
    true
}

fn number_in(raw: Option<&str>) -> Option<u64> {
    raw?.parse().ok()
}

/// Opens a subscription and follows it to its end; `acknowledged` is told what of it is honoured.
async fn listen(table: &Arc<Table>, filter: &str, acknowledged: impl FnOnce(RawJson)) -> Ended {
    let number = table.next_number();
    let (_open, acknowledgement) = table.subscriptions().open(number);
    let params = RawJson::trusted(format!(r#"{{"notifications":{filter}}}"#));
    let never = CancellationToken::new();
    let answer = table.request(Outbound::new(number, LISTEN, Some(&params)), &never);
    tokio::pin!(answer);
    let answer = tokio::select! {
        biased;
        honoured = timeout(ACKNOWLEDGED, acknowledgement) => match honoured {
            Ok(Ok(honoured)) => {
                acknowledged(honoured);
                answer.await
            }
            _ => return Ended("it did not acknowledge the subscription".to_owned()),
        },
        answer = &mut answer => answer,
    };
    Ended(match answer {
        Ok(Reply::Result(_)) => "the upstream ended it".to_owned(),
        Ok(Reply::Error(error)) => {
            let message = member(error.as_str(), "message").and_then(string_value).unwrap_or_default();
            format!("it was refused: {message}")
        }
        Ok(Reply::TooLarge { .. }) => "its end was too large".to_owned(),
        Ok(Reply::Broken(how)) | Err(NoReply::NotSent(how) | NoReply::Lost(how)) => how,
        Err(NoReply::Stopped) => "it was stopped".to_owned(),
    })
}

/// Why a subscription ended.
struct Ended(String);

/// The pauses between tries to open a subscription.
#[derive(Default)]
struct Pauses {
    failures: u32,
}

impl Pauses {
    /// Waits after one that ended; `lasted` is how long it was acknowledged.
    async fn after(&mut self, lasted: Option<Duration>) {
        self.failures = if lasted.is_some_and(|lasted| lasted >= SHORT) { 1 } else { self.failures + 1 };
        sleep(backoff(self.failures, u32::from_le_bytes(random_bytes()))).await;
    }
}

/// Follows the lists of which an upstream with these capabilities tells changes, as long as the link stands. Ready when they
/// are followed, or will not be soon.
pub(in super::super) async fn follow_lists(table: &Arc<Table>, capabilities: &RawJson) {
    let tells = |list: &str| {
        let declared = member(capabilities.as_str(), list).and_then(|own| member(own, "listChanged"));
        (declared == Some("true")).then(|| format!(r#""{list}ListChanged":true"#))
    };
    let wanted: Vec<_> = ["tools", "prompts", "resources"].into_iter().filter_map(tells).collect();
    if wanted.is_empty() {
        return;
    }
    let (followed, are_followed) = oneshot::channel();
    let (table, filter) = (Arc::clone(table), format!("{{{}}}", wanted.join(",")));
    spawn("upstream list changes", async move {
        tokio::select! {
            () = table.closed().cancelled() => {}
            () = keep_following(&table, &filter, followed) => {}
        }
    });
    let _later = timeout(FOLLOWED, are_followed).await;
}

async fn keep_following(table: &Arc<Table>, filter: &str, followed: oneshot::Sender<()>) {
    let mut first = Some(followed);
    let mut pauses = Pauses::default();
    loop {
        let mut since = None;
        let Ended(why) = listen(table, filter, |_| {
            since = Some(Instant::now());
            // Where nobody waits for it any more, the lists have been read before.
            if first.take().is_none_or(|first| first.send(()).is_err()) {
                table.lists_may_have_changed();
            }
        })
        .await;
        tracing::debug!("the subscription to an upstream's lists ended: {why}");
        pauses.after(since.map(|since| since.elapsed())).await;
    }
}

/// The resources of a link that are followed, all by one subscription.
#[derive(Default)]
pub(in super::super) struct Resources {
    desk: Mutex<Option<Desk>>,
}

#[derive(Clone)]
struct Desk {
    wanted: watch::Sender<BTreeSet<String>>,
    answered: watch::Receiver<Answered>,
}

/// What became of the last try.
#[derive(Debug, Clone, Default)]
struct Answered {
    asked: BTreeSet<String>,
    honoured: BTreeSet<String>,
    why: String,
}

impl Resources {
    /// Follows a resource from now on.
    ///
    /// # Errors
    /// Why the upstream does not tell of it.
    pub(in super::super) async fn add(&self, table: &Arc<Table>, uri: &str) -> Result<(), String> {
        let desk = self.desk(table);
        desk.wanted.send_if_modified(|wanted| wanted.insert(uri.to_owned()));
        let mut answered = desk.answered.clone();
        let answer = answered.wait_for(|answered| answered.asked.contains(uri)).await.map(|answered| answered.clone());
        let why = match answer {
            Ok(answered) if answered.honoured.contains(uri) => return Ok(()),
            Ok(answered) if answered.why.is_empty() => {
                "the server does not tell of changes of this resource".to_owned()
            }
            Ok(answered) => answered.why,
            Err(_) => table.why_closed(),
        };
        self.remove(uri);
        Err(why)
    }

    pub(in super::super) fn remove(&self, uri: &str) {
        if let Some(desk) = &*self.lock() {
            desk.wanted.send_if_modified(|wanted| wanted.remove(uri));
        }
    }

    /// Where it is said what to follow; whoever acts on that runs as long as the link stands.
    fn desk(&self, table: &Arc<Table>) -> Desk {
        let mut desk = self.lock();
        let desk = desk.get_or_insert_with(|| {
            let (wanted, all) = watch::channel(BTreeSet::new());
            let (tell, answered) = watch::channel(Answered::default());
            let table = Arc::clone(table);
            spawn("upstream resources", async move {
                let closed = table.closed().clone();
                tokio::select! {
                    () = closed.cancelled() => {}
                    () = follow_resources(table, all, tell) => {}
                }
            });
            Desk { wanted, answered }
        });
        desk.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Desk>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps one subscription open to all that is wanted. A new set is subscribed to before the old one is left.
async fn follow_resources(
    table: Arc<Table>,
    mut wanted: watch::Receiver<BTreeSet<String>>,
    tell: watch::Sender<Answered>,
) {
    let mut pauses = Pauses::default();
    // Ends the subscription when it is dropped, or another one takes its place.
    let mut current: Option<AbortOnDropHandle<Ended>>;
    loop {
        let asked = wanted.borrow_and_update().clone();
        if asked.is_empty() {
            current = None;
            tell.send_replace(Answered::default());
        } else {
            let (acknowledge, acknowledged) = oneshot::channel();
            let uris: Vec<_> = asked.iter().map(|uri| quoted(uri)).collect();
            let filter = format!(r#"{{"resourceSubscriptions":[{}]}}"#, uris.join(","));
            let on = Arc::clone(&table);
            let mut next = AbortOnDropHandle::new(spawn("upstream subscription", async move {
                listen(&on, &filter, |honoured| drop(acknowledge.send(honoured))).await
            }));
            match acknowledged.await {
                Ok(honoured) => {
                    tell.send_replace(Answered { honoured: uris_in(&honoured), asked, why: String::new() });
                    current = Some(next);
                }
                Err(_) => {
                    current = None;
                    let why = (&mut next).await.map_or_else(|error| error.to_string(), |Ended(why)| why);
                    tell.send_replace(Answered { asked, honoured: BTreeSet::new(), why });
                }
            }
        }
        let began = Instant::now();
        let is_open = current.is_some();
        let ended = async {
            match &mut current {
                Some(subscription) => drop(subscription.await),
                // It failed; what is wanted may change before it is tried again.
                None if !wanted_is_empty(&tell) => {}
                None => std::future::pending().await,
            }
        };
        let again = async {
            ended.await;
            pauses.after(is_open.then(|| began.elapsed())).await;
        };
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = again => {}
        }
    }
}

/// Whether nothing was asked for at the last try.
fn wanted_is_empty(tell: &watch::Sender<Answered>) -> bool {
    tell.borrow().asked.is_empty()
}

fn uris_in(honoured: &RawJson) -> BTreeSet<String> {
    let list = member(honoured.as_str(), "resourceSubscriptions").unwrap_or("[]");
    items(list).filter_map(string_value).map(std::borrow::Cow::into_owned).collect()
}
