//! One client of one era: what it asks, and how it takes the answers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use taskhold::lifecycle::spawn;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clients::CONTEXTS;
use super::history::{Era, History, What};
use super::work::{Kind, Work};
use crate::support::client::{Answer, Client};
use crate::support::modern::Modern;
use crate::support::rng::Rng;

/// Tasks that one client follows at a time; at more it makes none.
const AT_ONCE: usize = 32;
/// An answer that takes longer, where none has to be waited for, is as good as none.
const ANSWER: Duration = Duration::from_secs(15);
/// Between two tries of what failed, and between two looks.
pub const PAUSE: Duration = Duration::from_millis(150);

/// Who made which task, and what it runs.
pub type Made = Arc<Mutex<HashMap<String, (usize, usize)>>>;

pub struct Person {
    pub context: usize,
    pub number: usize,
    pub era: Era,
    pub legacy: Client,
    pub modern: Modern,
    pub history: History,
    pub charges: PathBuf,
    pub made: Made,
}

impl Person {
    /// The same, speaking straight to another node.
    pub fn at(&self, url: &str) -> Self {
        Self {
            legacy: self.legacy.at(url),
            modern: Modern { url: url.to_owned(), ..self.modern.clone() },
            history: self.history.clone(),
            charges: self.charges.clone(),
            made: Arc::clone(&self.made),
            ..*self
        }
    }

    /// Makes tasks at this pace, and follows each.
    pub async fn work(self: Arc<Self>, pace: Duration, mut rng: Rng, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let following = TaskTracker::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => break,
            }
            if following.len() < AT_ONCE {
                let (person, rng, stop) = (Arc::clone(&self), rng.fork(), stop.clone());
                spawn("task", following.track_future(async move { person.one(rng, &stop).await }));
            }
        }
        following.close();
        following.wait().await;
    }

    async fn one(&self, mut rng: Rng, stop: &CancellationToken) {
        let kind = pick(&mut rng);
        let (context, writer) = (self.context, self.number);
        let (number, work) =
            self.history.plan(|number| Work { mark: format!("c{context}-p{writer}-{number}"), context, kind });
        match rng.below(20) {
            0 => self.trespass(&mut rng).await,
            1 | 2 if kind != Kind::Ask => return self.call(number, &work).await,
            _ => {}
        }
        let Some(task) = self.create(number, &work).await else {
            // Whoever is refused comes back later.
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
            return;
        };
        self.made.lock().unwrap().insert(task.clone(), (self.number, number));
        if matches!(kind, Kind::Sleep(_)) && rng.below(2) == 0 {
            self.cancel(&task).await;
        }
        self.follow(&work, &task, rng.below(2) == 0, stop).await;
    }

    async fn create(&self, number: usize, work: &Work) -> Option<String> {
        let mut params = work.params(&self.charges);
        if self.era == Era::Legacy {
            params["task"] = json!({ "ttl": 3_600_000 });
        }
        let asked = self.history.now();
        let Some(answer) = self.ask("tools/call", &params).await else {
            self.history.note(asked, self.context, What::Unanswered { work: number });
            return None;
        };
        let answer = answer.json();
        let result = &answer["result"];
        let task = if self.era == Era::Legacy { &result["task"] } else { result };
        let (Some(id), Some(status)) = (task["taskId"].as_str(), task["status"].as_str()) else {
            // It may have been made all the same.
            self.history.note(asked, self.context, What::Unanswered { work: number });
            self.strange(asked, "tools/call", &answer.to_string());
            return None;
        };
        let made = What::Made { work: number, task: id.to_owned(), status: status.to_owned() };
        self.history.note(asked, self.context, made);
        Some(id.to_owned())
    }

    /// A call that is no task.
    async fn call(&self, number: usize, work: &Work) {
        let (asked, params) = (self.history.now(), work.params(&self.charges));
        let answer = match self.era {
            Era::Legacy => self.ask("tools/call", &params).await,
            Era::Modern => {
                let plain = self.modern.declaring(json!({}));
                let answer = tokio::time::timeout(ANSWER, plain.try_request("tools/call", params)).await;
                self.understood(asked, "tools/call", answer)
            }
        };
        // Without an answer nobody knows whether it ran; it is no task in any case.
        if let Some(answer) = answer {
            let text = answer.text().to_owned();
            self.history.note(asked, self.context, What::Plain { work: number, text });
        }
    }

    async fn cancel(&self, task: &str) {
        let asked = self.history.now();
        self.history.note(asked, self.context, What::Cancels { task: task.to_owned() });
        let Some(answer) = self.ask("tasks/cancel", &json!({ "taskId": task })).await else { return };
        let json = answer.json();
        let had_ended = || json["error"]["message"].as_str().is_some_and(|text| text.contains("already in terminal"));
        if self.era == Era::Legacy && json["result"]["status"] == "cancelled" {
            self.history.note(asked, self.context, What::Cancelled { task: task.to_owned() });
            self.note_task(asked, Era::Legacy, task, &answer);
        } else if json.get("result").is_none() && !had_ended() {
            self.refused(asked, "tasks/cancel", task, &answer);
        }
    }

    /// Tries to see somebody else's task.
    async fn trespass(&self, rng: &mut Rng) {
        let theirs: Vec<String> = {
            let made = self.made.lock().unwrap();
            let strangers = made.iter().filter(|(_, (person, _))| person % CONTEXTS != self.context);
            strangers.take(8).map(|(task, _)| task.clone()).collect()
        };
        if theirs.is_empty() {
            return;
        }
        let task = theirs[usize::try_from(rng.below(theirs.len() as u64)).unwrap()].clone();
        let asked = self.history.now();
        let Some(answer) = self.ask("tasks/get", &json!({ "taskId": task })).await else { return };
        if !is_missing(&answer.json()) {
            let text = answer.text().to_owned();
            self.history.note(asked, self.context, What::Trespassed { task, text });
        }
    }

    /// Reads the context's whole list.
    pub async fn list(&self) {
        let (asked, until) = (self.history.now(), Instant::now() + ANSWER);
        let (mut tasks, mut params) = (Vec::new(), json!({}));
        loop {
            let Some(page) = self.ask_in(Era::Legacy, "tasks/list", &params).await else {
                assert!(Instant::now() < until, "no list, though nothing is broken any more");
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let page = page.json();
            let Some(listed) = page["result"]["tasks"].as_array() else {
                return self.strange(asked, "tasks/list", &page.to_string());
            };
            tasks.extend(listed.iter().map(|task| task["taskId"].as_str().unwrap_or_default().to_owned()));
            match page["result"].get("nextCursor") {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => break,
            }
        }
        self.history.note(asked, self.context, What::Listed { tasks });
    }

    /// The answer, a result or an error of the request's own. `None` if the request has to be made again.
    pub async fn ask(&self, method: &str, params: &Value) -> Option<Answer> {
        self.ask_in(self.era, method, params).await
    }

    /// The same in either era.
    pub async fn ask_in(&self, era: Era, method: &str, params: &Value) -> Option<Answer> {
        let asked = self.history.now();
        let answer = match era {
            Era::Legacy => tokio::time::timeout(ANSWER, self.legacy.try_request(method, params)).await,
            Era::Modern => tokio::time::timeout(ANSWER, self.modern.try_request(method, params.clone())).await,
        };
        self.understood(asked, method, answer)
    }

    fn understood(
        &self,
        asked: Duration,
        method: &str,
        answer: Result<reqwest::Result<Answer>, Elapsed>,
    ) -> Option<Answer> {
        match answer {
            Ok(Ok(answer)) => self.sifted(asked, method, answer),
            Ok(Err(error)) => self.hiccup(asked, &format!("{method}: {}", chain(&error))),
            Err(_) => self.hiccup(asked, &format!("{method}: no answer in {ANSWER:?}")),
        }
    }

    /// Takes out what says that this node, or the database, is away for now.
    pub fn sifted(&self, asked: Duration, method: &str, answer: Answer) -> Option<Answer> {
        let body = serde_json::from_str::<Value>(answer.text()).unwrap_or_default();
        let reason = body["error"]["data"]["reason"].as_str().unwrap_or_default();
        if answer.status == 503 && answer.body.is_empty() && answer.header("retry-after").is_some() {
            self.history.note(asked, self.context, What::SentAway);
            return None;
        }
        let for_now = matches!(reason, "temporarily_unavailable" | "database_error" | "internal");
        if for_now || matches!(answer.status, 502 | 503) {
            return self.hiccup(asked, &format!("{method}: {} {}", answer.status, answer.body));
        }
        let whole = body.get("result").is_some() || body.get("error").is_some();
        if answer.status != 200 || !whole {
            self.strange(asked, method, &format!("{} {}", answer.status, answer.body));
            return None;
        }
        Some(answer)
    }

    pub fn hiccup<T>(&self, asked: Duration, text: &str) -> Option<T> {
        self.history.note(asked, self.context, What::Hiccup { text: text.to_owned() });
        None
    }

    pub fn strange(&self, asked: Duration, method: &str, text: &str) {
        self.history.note(asked, self.context, What::Strange { text: format!("{method} was answered {text}") });
    }

    /// Notes the error of a request about a task of ours.
    pub fn refused(&self, asked: Duration, method: &str, task: &str, answer: &Answer) {
        if is_missing(&answer.json()) {
            self.history.note(asked, self.context, What::Missing { task: task.to_owned() });
        } else {
            self.strange(asked, method, answer.text());
        }
    }
}

fn pick(rng: &mut Rng) -> Kind {
    let ms = rng.below(800);
    match rng.below(10) {
        0..=2 => Kind::Charge(ms),
        3 | 4 => Kind::Echo,
        5 => Kind::FailTool,
        6 => Kind::FailRpc(4_242),
        7 => Kind::Ask,
        _ => Kind::Sleep(ms),
    }
}

pub fn is_missing(answer: &Value) -> bool {
    answer["error"]["message"].as_str().is_some_and(|text| text.contains("task not found"))
}

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
