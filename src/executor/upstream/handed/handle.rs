//! The hold on an upstream's task: from the request that makes it to the word that cancels it.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::declares;
use crate::domain::json::RawJson;
use crate::executor::upstream::inbox::OpenCall;
use crate::executor::upstream::link::{Link, task_id};
use crate::executor::upstream::links::Links;
use crate::executor::upstream::requests::{NoReply, Outbound, Reply};
use crate::executor::{Attempt, Host};
use crate::lifecycle::spawn;

/// A call under way that asks for a task. A task is never cancelled by its request (EXEC-16): one that is made when nobody
/// waits any more is cancelled by its id.
pub(super) struct Creation {
    links: Arc<Links>,
    link: Arc<Link>,
    pub(super) reply: oneshot::Receiver<Result<Reply, NoReply>>,
}

impl Creation {
    pub(super) fn begin(links: &Arc<Links>, link: &Arc<Link>, open: &OpenCall, params: RawJson) -> Self {
        let (heard, reply) = oneshot::channel();
        let (number, to, its) = (open.number(), Arc::clone(link), Arc::clone(links));
        spawn("upstream task creation", async move {
            let request =
                Outbound { call: Some(number), makes_task: true, ..Outbound::new(number, "tools/call", Some(&params)) };
            let reply = to.request(request, &CancellationToken::new()).await;
            if let Err(unheard) = heard.send(reply) {
                cancel_made(&its, &to, &unheard);
            }
        });
        Self { links: Arc::clone(links), link: Arc::clone(link), reply }
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        self.reply.close();
        if let Ok(unheard) = self.reply.try_recv() {
            cancel_made(&self.links, &self.link, &unheard);
        }
    }
}

fn cancel_made(links: &Links, link: &Link, reply: &Result<Reply, NoReply>) {
    if let Ok(Reply::Result(created)) = reply
        && let Some(id) = task_id(created)
    {
        cancel(links, link, &id);
    }
}

fn cancel(links: &Links, link: &Link, id: &RawJson) {
    if link.is_modern() || links.declared().is_some_and(|declared| declares(&declared, &["tasks", "cancel"])) {
        link.request_only("tasks/cancel", &of_task(id));
    }
}

pub(in crate::executor::upstream) fn of_task(id: &RawJson) -> RawJson {
    RawJson::trusted(format!(r#"{{"taskId":{}}}"#, id.as_str()))
}

/// The upstream's task: cancelled when it is dropped before its end, unless it is to be resumed.
pub(in crate::executor::upstream) struct Handle {
    links: Arc<Links>,
    link: Arc<Link>,
    pub(in crate::executor::upstream) id: RawJson,
    /// Whether it may be followed by a later attempt.
    stays: bool,
    /// Knows whether it can: a call may be stored in the middle.
    host: Arc<dyn Host>,
    stop: CancellationToken,
    ended: bool,
}

impl Handle {
    pub(super) fn new(
        links: &Arc<Links>,
        link: &Arc<Link>,
        id: &RawJson,
        (host, stop): (&Arc<dyn Host>, &CancellationToken),
    ) -> Self {
        Self {
            links: Arc::clone(links),
            link: Arc::clone(link),
            id: id.clone(),
            stays: false,
            host: Arc::clone(host),
            stop: stop.clone(),
            ended: false,
        }
    }

    pub(super) fn stay(&mut self, stays: bool) {
        self.stays = stays;
        if stays {
            self.link.leave_task(&self.id);
        }
    }

    /// Goes over to another link.
    pub(super) fn follow_over(&mut self, link: &Arc<Link>) {
        self.link.task_ended(&self.id);
        self.link = Arc::clone(link);
        self.stay(self.stays);
    }

    /// Its end is known, or it is left for a later attempt: neither is cancelled. A stopped one is.
    pub(super) fn end(&mut self, attempt: &Attempt) {
        match attempt {
            // A task asks on its own way; none ends so.
            Attempt::Stopped | Attempt::Asked => {
                cancel(&self.links, &self.link, &self.id);
                self.ended = true;
                self.link.task_ended(&self.id);
            }
            Attempt::NotDispatched { .. } => self.ended = true,
            Attempt::Answered(_) | Attempt::Lost { .. } => {
                self.ended = true;
                self.link.task_ended(&self.id);
            }
        }
    }

    /// Nobody will ask for it again, though it may run on.
    pub(in crate::executor::upstream) fn give_up(&self) {
        cancel(&self.links, &self.link, &self.id);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if self.stop.is_cancelled() || !(self.stays || self.host.is_kept()) {
            cancel(&self.links, &self.link, &self.id);
            self.link.task_ended(&self.id);
        } else {
            self.link.leave_task(&self.id);
        }
    }
}
