//! Compares what clients were told with what the service says in the end.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use serde_json::Value;

use super::load::{Book, Told, Work};
use crate::support::database::TestDatabase;

/// What was counted.
#[derive(Debug, Default)]
pub struct Verdict {
    told: usize,
    /// Outcomes that a client saw while things broke.
    seen: usize,
    /// Creations whose answer was lost, and how many of those tasks exist.
    unanswered: usize,
    unanswered_there: usize,
    /// Ends that say that the outcome is not known, or that the call could not be made.
    unknown: usize,
    unavailable: usize,
    /// Calls that leave a line when they run.
    counted: usize,
    lost: Vec<String>,
    changed: Vec<String>,
    twice: Vec<String>,
    stuck: Vec<String>,
    /// Ends that are not what the call gives and do not say why, and all else that is wrong.
    dishonest: Vec<String>,
}

impl Verdict {
    /// Everything that ran has to have ended, or to be about to.
    pub async fn reach(books: Vec<Book>, database: &TestDatabase) -> Self {
        let mut verdict = Self::default();
        verdict.compare_lists(&books).await;
        for book in books {
            verdict.dishonest.extend(book.faults);
            verdict.unanswered += book.unanswered.len();
            for work in &book.unanswered {
                verdict.count_runs(work, "unanswered");
            }
            let client = Arc::new(book.client);
            let looks = book.tasks.into_iter().map(|told| {
                let client = Arc::clone(&client);
                async move {
                    let task = client.get(&told.id).await;
                    if task.json()["result"]["status"] == "working" || task.json().get("result").is_none() {
                        return (told, task, None);
                    }
                    let outcome = client.result(&told.id).await.outcome();
                    (told, task, Some(outcome))
                }
            });
            let mut looks = stream::iter(looks).buffer_unordered(16);
            while let Some((told, task, outcome)) = looks.next().await {
                verdict.count_runs(&told.work, &told.id.to_string());
                match outcome {
                    Some(outcome) => verdict.compare(&told, &task.outcome(), &outcome),
                    None if task.json().get("result").is_some() => verdict.stuck.push(task.outcome()),
                    None => verdict.lost.push(format!("{}: {}", told.id, task.body)),
                }
            }
        }
        let live = database.number("SELECT COUNT(*) FROM task_live").await;
        if live > 0 {
            verdict.stuck.push(format!("{live} rows of live tasks"));
        }
        verdict
    }

    /// Each context lists each of its tasks once, and none that nobody asked for.
    async fn compare_lists(&mut self, books: &[Book]) {
        let mut contexts: HashMap<usize, Vec<&Book>> = HashMap::new();
        for book in books {
            contexts.entry(book.context).or_default().push(book);
        }
        for books in contexts.values() {
            let mut listed: HashMap<String, usize> = HashMap::new();
            for id in books[0].client.list().await {
                *listed.entry(id.to_string()).or_default() += 1;
            }
            self.lost
                .extend(listed.iter().filter(|(_, times)| **times > 1).map(|(id, _)| format!("{id} is listed twice")));
            for told in books.iter().flat_map(|book| &book.tasks) {
                if listed.remove(&told.id.to_string()).is_none() {
                    self.lost.push(format!("{} is not listed", told.id));
                }
            }
            let unanswered: usize = books.iter().map(|book| book.unanswered.len()).sum();
            self.unanswered_there += listed.len();
            if listed.len() > unanswered {
                self.dishonest.push(format!("{} tasks of {unanswered} unanswered creations", listed.len()));
            }
        }
    }

    fn compare(&mut self, told: &Told, task: &str, outcome: &str) {
        self.told += 1;
        self.seen += usize::from(told.end.outcome.is_some());
        for (seen, now) in [(&told.end.task, task), (&told.end.outcome, outcome)] {
            if let Some(seen) = seen
                && seen != now
            {
                self.changed.push(format!("{}: from {seen} to {now}", told.id));
            }
        }
        let (task, parsed) = (json(task), json(outcome));
        let status = task["result"]["status"].as_str().unwrap_or_default();
        let reason = parsed["error"]["data"]["reason"].as_str().unwrap_or_default();
        let honest = match (status, reason) {
            ("cancelled", _) => told.end.cancelled || matches!(told.work, Work::Sleep(_)),
            _ if told.end.cancelled => false,
            ("completed", _) => parsed.get("result").is_some() && told.work.gives(&parsed),
            ("failed", "outcome_unknown") => {
                self.unknown += 1;
                true
            }
            ("failed", "upstream_unavailable") => {
                self.unavailable += 1;
                told.work.runs().is_none_or(|runs| runs == 0)
            }
            ("failed", _) => told.work.gives(&parsed),
            _ => false,
        };
        let charged_nothing = status == "completed" && told.work.runs().is_some_and(|runs| runs != 1);
        if !honest || charged_nothing {
            self.dishonest.push(format!("{:?} ended as {task} with {outcome}", told.work));
        }
    }

    fn count_runs(&mut self, work: &Work, id: &str) {
        let Some(runs) = work.runs() else { return };
        self.counted += 1;
        if runs > 1 {
            self.twice.push(format!("{id} ran {runs} times"));
        }
    }

    /// Fails with the first of each kind.
    pub fn assert_clean(&self) {
        let kinds = [&self.lost, &self.changed, &self.twice, &self.stuck, &self.dishonest];
        let shown: Vec<_> = kinds.into_iter().flat_map(|kind| kind.iter().take(3)).map(String::as_str).collect();
        assert!(shown.is_empty(), "{self}\n{}", shown.join("\n"));
        assert!(self.told > 0 && self.seen > 0 && self.counted > 0, "too little happened: {self}");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tasks acknowledged, {} creations unanswered ({} of them there), {} outcomes seen; {} lost, {} changed, \
             {} of {} run twice, {} stuck, {} dishonest; {} outcomes unknown, {} calls not made",
            self.told + self.lost.len() + self.stuck.len(),
            self.unanswered,
            self.unanswered_there,
            self.seen,
            self.lost.len(),
            self.changed.len(),
            self.twice.len(),
            self.counted,
            self.stuck.len(),
            self.dishonest.len(),
            self.unknown,
            self.unavailable,
        )
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("it was JSON before")
}
