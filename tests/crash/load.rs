//! Clients that make tasks and look at their ends, and keep a book of what they were told, whatever breaks meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::client::{Answer, Client};
use crate::support::rng::Rng;
use crate::support::server::{PATIENCE, new_token};

const CLIENTS: usize = 16;
const CONTEXTS: usize = 4;

/// Running clients.
pub struct Load {
    clients: Vec<JoinHandle<Book>>,
    /// Not at work: for whoever wants to ask something beside it.
    pub one_of_each_context: Vec<Client>,
    stop: CancellationToken,
}

/// What one client knows.
pub struct Book {
    pub client: Client,
    /// Which of the contexts it belongs to.
    pub context: usize,
    pub tasks: Vec<Told>,
    /// Calls whose creation was not answered: they may exist or not.
    pub unanswered: Vec<Work>,
    /// Answers that no client should get.
    pub faults: Vec<String>,
}

/// A task whose id a client was told.
pub struct Told {
    pub id: Value,
    pub work: Work,
    pub end: End,
}

/// What a client saw of a task's end, each as it was written.
#[derive(Default)]
pub struct End {
    pub task: Option<String>,
    pub outcome: Option<String>,
    pub cancelled: bool,
}

/// A call, and what it has to give.
#[derive(Debug, Clone)]
pub enum Work {
    Echo(u64),
    Sleep(u64),
    /// Not to be repeated; leaves a line in its file each time it runs.
    Charge {
        file: PathBuf,
        ms: u64,
    },
    FailTool(u64),
    FailRpc(u64),
}

impl Load {
    /// Opens the sessions of all clients, then lets them work.
    pub async fn start(url: &str, database_url: &str, folder: &Path, rng: &mut Rng) -> Self {
        let mut tokens = Vec::new();
        for context in 0..CONTEXTS {
            tokens.push(new_token(database_url, &format!("context {context}")).await);
        }
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            clients.push(Client::connected(url, &tokens[number % CONTEXTS]).await);
        }
        let (stop, one_of_each_context) = (CancellationToken::new(), clients[..CONTEXTS].to_vec());
        let clients = clients.into_iter().enumerate().map(|(number, client)| {
            let worker = Worker {
                book: Book {
                    client,
                    context: number % CONTEXTS,
                    tasks: Vec::new(),
                    unanswered: Vec::new(),
                    faults: Vec::new(),
                },
                rng: rng.fork(),
                folder: folder.to_owned(),
                number,
            };
            tokio::spawn(worker.run(stop.clone()))
        });
        Self { clients: clients.collect(), one_of_each_context, stop }
    }

    /// Lets every client end what it is at.
    pub async fn stop(self) -> Vec<Book> {
        self.stop.cancel();
        let mut books = Vec::new();
        for client in self.clients {
            books.push(client.await.unwrap());
        }
        books
    }
}

struct Worker {
    book: Book,
    rng: Rng,
    folder: PathBuf,
    number: usize,
}

impl Worker {
    async fn run(mut self, stop: CancellationToken) -> Book {
        while !stop.is_cancelled() {
            let step = async {
                if self.rng.below(4) == 0 && !self.book.tasks.is_empty() {
                    self.look_back().await
                } else {
                    self.create_and_follow().await
                }
            };
            let answered = tokio::time::timeout(PATIENCE, step).await.expect("an answer, or a broken link, in time");
            if answered.is_none() {
                // Nobody is there; whoever restarts the service does not tell.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        self.book
    }

    /// `None`, here and below, is a link that broke.
    async fn create_and_follow(&mut self) -> Option<()> {
        let work = self.pick();
        let answer = match self.book.client.try_request("tools/call", &work.params(true)).await {
            Ok(answer) => answer,
            // Nobody listened, so it was not sent.
            Err(error) if error.is_connect() => return None,
            Err(_) => {
                self.book.unanswered.push(work);
                return None;
            }
        };
        let Some(id) = self.result(&answer).map(|result| result["task"]["taskId"].clone()) else { return Some(()) };
        assert!(id.is_string(), "no id in {answer:?}");
        let cancels = matches!(work, Work::Sleep(_)) && self.rng.below(2) == 0;
        self.book.tasks.push(Told { id, work, end: End::default() });
        let at = self.book.tasks.len() - 1;
        if cancels {
            self.cancel(at).await?;
        }
        self.see_outcome(at).await
    }

    /// Looks at a task again whose end was seen, or not seen before the link broke.
    async fn look_back(&mut self) -> Option<()> {
        let at = usize::try_from(self.rng.below(self.book.tasks.len() as u64)).unwrap();
        let answer = self.ask("tasks/get", at).await?;
        let Some(task) = self.result(&answer) else { return Some(()) };
        // What still runs may have lost its runner, and then ends when nobody waits here any more.
        if task["status"] == "working" {
            if self.book.tasks[at].end.outcome.is_some() {
                self.fault(format!("an end was taken back: {answer:?}"));
            }
            return Some(());
        }
        self.note(at, &answer.outcome(), |end| &mut end.task);
        self.see_outcome(at).await
    }

    async fn cancel(&mut self, at: usize) -> Option<()> {
        let answer = self.ask("tasks/cancel", at).await?;
        // It may have ended before; then its outcome says how.
        let end = &mut self.book.tasks[at].end;
        end.cancelled = answer.json()["result"]["status"] == "cancelled";
        if end.cancelled {
            self.note(at, &answer.outcome(), |end| &mut end.task);
        }
        Some(())
    }

    async fn see_outcome(&mut self, at: usize) -> Option<()> {
        let answer = self.ask("tasks/result", at).await?;
        if answer.status == 200 {
            self.note(at, &answer.outcome(), |end| &mut end.outcome);
        } else {
            self.fault(format!("{answer:?}"));
        }
        Some(())
    }

    async fn ask(&self, method: &str, at: usize) -> Option<Answer> {
        self.book.client.try_request(method, &json!({ "taskId": self.book.tasks[at].id })).await.ok()
    }

    /// Notes what is seen of an end; the same every time.
    fn note(&mut self, at: usize, seen: &str, part: impl FnOnce(&mut End) -> &mut Option<String>) {
        let told = &mut self.book.tasks[at];
        let known = part(&mut told.end).get_or_insert_with(|| seen.to_owned());
        if *known != seen {
            let fault = format!("the end of {} changed from {known} to {seen}", told.id);
            self.fault(fault);
        }
    }

    fn result(&mut self, answer: &Answer) -> Option<Value> {
        let result = answer.json()["result"].take();
        if answer.status != 200 || result.is_null() {
            self.fault(format!("{answer:?}"));
            return None;
        }
        Some(result)
    }

    fn fault(&mut self, fault: String) {
        self.book.faults.push(fault);
    }

    fn pick(&mut self) -> Work {
        let mine = (self.number as u64) << 32 | (self.book.tasks.len() + self.book.unanswered.len()) as u64;
        let ms = self.rng.below(200);
        match self.rng.below(8) {
            0..=2 => Work::Charge { file: self.folder.join(mine.to_string()), ms },
            3 | 4 => Work::Echo(mine),
            5 => Work::FailTool(mine),
            6 => Work::FailRpc(mine),
            _ => Work::Sleep(ms),
        }
    }
}

impl Work {
    pub fn params(&self, as_task: bool) -> Value {
        let (name, arguments) = match self {
            Self::Echo(n) => ("echo", json!({ "n": n })),
            Self::Sleep(ms) => ("sleep", json!({ "ms": ms })),
            Self::Charge { file, ms } => ("charge", json!({ "file": file, "ms": ms })),
            Self::FailTool(n) => ("fail_tool", json!({ "message": n.to_string() })),
            Self::FailRpc(n) => ("fail_rpc", json!({ "code": n })),
        };
        let mut params = json!({ "name": name, "arguments": arguments });
        if as_task {
            params["task"] = json!({ "ttl": 3_600_000 });
        }
        params
    }

    /// Whether this is the end that the call gives when nothing breaks.
    pub fn gives(&self, outcome: &Value) -> bool {
        let (result, error) = (&outcome["result"], &outcome["error"]);
        let text = &result["content"][0]["text"];
        match self {
            Self::Echo(n) => result["structuredContent"]["n"] == *n,
            Self::Sleep(ms) => *text == format!("slept {ms} ms"),
            Self::Charge { .. } => text == "charged",
            Self::FailTool(n) => result["isError"] == true && *text == format!("{n}"),
            Self::FailRpc(n) => error["code"] == *n && error["data"]["tool"] == "fail_rpc",
        }
    }

    /// How often it ran, where that can be counted.
    pub fn runs(&self) -> Option<usize> {
        let Self::Charge { file, .. } = self else { return None };
        Some(std::fs::read_to_string(file).map_or(0, |lines| lines.lines().count()))
    }
}
