//! How a client follows a task to its end: by looks, or by waiting for its result, and answering what it asks.

use reqwest::header::HeaderMap;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::history::{Era, What, is_terminal};
use super::person::{PAUSE, Person};
use super::work::{Kind, Work};
use crate::support::client::Answer;

impl Person {
    /// Follows a task until its end was seen, or until `stop`.
    pub async fn follow(&self, work: &Work, task: &str, waits: bool, stop: &CancellationToken) {
        let following = async {
            loop {
                let ended = match self.era {
                    Era::Legacy if waits || work.kind == Kind::Ask => self.wait(work, task).await,
                    era => self.look(era, Some(work), task).await,
                };
                match ended {
                    // A look at an end by who waited, and the outcome for who looked.
                    Some(true) => return,
                    Some(false) | None => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        tokio::select! {
            () = following => {}
            () = stop.cancelled() => {}
        }
    }

    /// Looks at a task, answers what it asks, and reads its outcome if it has one. Answers whether it has; `None` if the look
    /// has to be made again.
    pub async fn look(&self, era: Era, work: Option<&Work>, task: &str) -> Option<bool> {
        let (asked, params) = (self.history.now(), json!({ "taskId": task }));
        let answer = self.ask_in(era, "tasks/get", &params).await?;
        let Some(status) = self.note_task(asked, era, task, &answer) else {
            self.refused(asked, "tasks/get", task, &answer);
            return None;
        };
        if let Some(work) = work
            && era == Era::Modern
            && status == "input_required"
        {
            self.answer_questions(work, task, &answer.json()["result"]["inputRequests"]).await;
        }
        if !is_terminal(&status) {
            return Some(false);
        }
        if era == Era::Legacy {
            let asked = self.history.now();
            let answer = self.ask_in(era, "tasks/result", &params).await?;
            self.note_outcome(asked, task, &answer);
        }
        Some(true)
    }

    async fn answer_questions(&self, work: &Work, task: &str, requests: &Value) {
        let Some(requests) = requests.as_object() else { return };
        let answers: serde_json::Map<_, _> = requests.keys().map(|key| (key.clone(), work.answer())).collect();
        let (asked, params) = (self.history.now(), json!({ "taskId": task, "inputResponses": answers }));
        if let Some(answer) = self.ask_in(Era::Modern, "tasks/update", &params).await
            && answer.json().get("result").is_none()
        {
            self.refused(asked, "tasks/update", task, &answer);
        }
    }

    /// Waits for the result of a task on a stream, and answers what is asked there.
    async fn wait(&self, work: &Work, task: &str) -> Option<bool> {
        let asked = self.history.now();
        let body = self.legacy.message("tasks/result", &json!({ "taskId": task }));
        let request = self.legacy.build(reqwest::Method::POST).header("content-type", "application/json").body(body);
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) => return self.hiccup(asked, &format!("tasks/result: {}", super::person::chain(&error))),
        };
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return match Answer::try_read(response).await {
                Ok(answer) => {
                    let answer = self.sifted(asked, "tasks/result", answer)?;
                    Some(self.note_outcome(asked, task, &answer))
                }
                Err(error) => self.hiccup(asked, &format!("tasks/result: {}", super::person::chain(&error))),
            };
        }
        let status = response.status().as_u16();
        let mut buffer = String::new();
        loop {
            while let Some(end) = buffer.find("\n\n") {
                let block: String = buffer.drain(..end + 2).collect();
                let data = block.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
                let Ok(message) = serde_json::from_str::<Value>(data) else { continue };
                if message["method"] == "elicitation/create" {
                    self.respond(work, &message["id"]).await;
                } else if message.get("method").is_none() {
                    let answer = Answer { status, headers: HeaderMap::new(), body: data.to_owned() };
                    let answer = self.sifted(asked, "tasks/result", answer)?;
                    return Some(self.note_outcome(asked, task, &answer));
                }
            }
            match response.chunk().await {
                Ok(Some(bytes)) => buffer.push_str(&String::from_utf8_lossy(&bytes)),
                Ok(None) => {
                    self.history.note(asked, self.context, What::SentAway);
                    return None;
                }
                Err(error) => return self.hiccup(asked, &format!("tasks/result: {}", super::person::chain(&error))),
            }
        }
    }

    /// Answers a question, again and again until somebody takes the answer.
    async fn respond(&self, work: &Work, id: &Value) {
        let body = json!({ "jsonrpc": "2.0", "id": id, "result": work.answer() }).to_string();
        loop {
            let asked = self.history.now();
            match self.legacy.try_post(body.clone().into_bytes()).await {
                Ok(answer) if answer.status == 202 => return,
                Ok(answer) => {
                    // A whole answer other than that is one that says to come back.
                    if self.sifted(asked, "a response", answer).is_some() {
                        return self.strange(asked, "a response", "with a message");
                    }
                }
                Err(error) => {
                    self.hiccup::<()>(asked, &format!("a response: {}", super::person::chain(&error)));
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Notes a task as it was shown; answers its status, if it is a task.
    pub fn note_task(&self, asked: std::time::Duration, era: Era, task: &str, answer: &Answer) -> Option<String> {
        let json = answer.json();
        let shown = json.get("result")?;
        let text = |name: &str| shown[name].as_str().unwrap_or_default().to_owned();
        let status = text("status");
        let seen = What::Seen {
            task: task.to_owned(),
            era,
            status: status.clone(),
            created: text("createdAt"),
            updated: text("lastUpdatedAt"),
            text: answer.outcome(),
        };
        self.history.note(asked, self.context, seen);
        if era == Era::Modern && is_terminal(&status) {
            let text = ending(answer.text());
            self.history.note(asked, self.context, What::Outcome { task: task.to_owned(), era, text });
        }
        Some(status)
    }

    /// Notes what `tasks/result` gave, unless it says that there is no such task. Answers whether it is an outcome.
    fn note_outcome(&self, asked: std::time::Duration, task: &str, answer: &Answer) -> bool {
        if super::person::is_missing(&answer.json()) {
            self.history.note(asked, self.context, What::Missing { task: task.to_owned() });
            return false;
        }
        let what = What::Outcome { task: task.to_owned(), era: Era::Legacy, text: answer.outcome() };
        self.history.note(asked, self.context, what);
        true
    }
}

/// The outcome that a task of the stateless era has in itself, in the form of an answer.
fn ending(text: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        result: Shown<'a>,
    }
    #[derive(serde::Deserialize)]
    struct Shown<'a> {
        #[serde(borrow)]
        result: Option<&'a RawValue>,
        #[serde(borrow)]
        error: Option<&'a RawValue>,
    }
    match serde_json::from_str::<Message<'_>>(text).map(|message| message.result) {
        Ok(Shown { result: Some(result), .. }) => format!(r#"{{"result":{result}}}"#),
        Ok(Shown { error: Some(error), .. }) => format!(r#"{{"error":{error}}}"#),
        _ => "{}".to_owned(),
    }
}
