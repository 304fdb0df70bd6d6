//! Subscriptions by `subscriptions/listen`; here those to an upstream's lists, in `followed.rs` beside it those to resources.
//!
//! Whatever belongs to a subscription names it, which on standard streams is all that tells them apart. One that ends is
//! opened again, after a pause that grows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::inbox::without;
use super::super::requests::{NoReply, Outbound, Reply};
use super::super::table::Table;
use crate::domain::ids::random_bytes;
use crate::domain::json::RawJson;
use crate::domain::lease::backoff;
use crate::lifecycle::spawn;
use crate::protocol::jsonrpc::Notification;
use crate::protocol::scan::string_value;
use crate::protocol::splice::member;

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
pub(super) async fn listen(table: &Arc<Table>, filter: &str, acknowledged: impl FnOnce(RawJson)) -> Ended {
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
            _ => return Ended { why: "it did not acknowledge the subscription".to_owned(), is_refusal: false },
        },
        answer = &mut answer => answer,
    };
    let why = match answer {
        Ok(Reply::Result(_)) => "the upstream ended it".to_owned(),
        Ok(Reply::Error(error)) => {
            let message = member(error.as_str(), "message").and_then(string_value).unwrap_or_default();
            return Ended { why: format!("it was refused: {message}"), is_refusal: true };
        }
        Ok(Reply::TooLarge { .. }) => "its end was too large".to_owned(),
        Ok(Reply::Broken(how)) | Err(NoReply::NotSent(how) | NoReply::Lost(how)) => how,
        Err(NoReply::Stopped) => "it was stopped".to_owned(),
    };
    Ended { why, is_refusal: false }
}

/// How a subscription ended.
pub(super) struct Ended {
    pub(super) why: String,
    /// By an error that answers the request for it.
    pub(super) is_refusal: bool,
}

/// The pauses between tries to open a subscription.
#[derive(Default)]
pub(super) struct Pauses {
    failures: u32,
}

impl Pauses {
    /// Waits after one that ended; `lasted` is how long it was acknowledged.
    pub(super) async fn after(&mut self, lasted: Option<Duration>) {
        let failures = if lasted.is_some_and(|lasted| lasted >= SHORT) { 1 } else { self.failures + 1 };
        sleep(backoff(failures, u32::from_le_bytes(random_bytes()))).await;
        // Not where something else was to be tried before that.
        self.failures = failures;
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
        let Ended { why, .. } = listen(table, filter, |_| {
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
