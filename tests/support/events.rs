//! A reader of server-sent events, which shows each as it comes.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;

use super::client::Client;
use super::server::PATIENCE;

/// An open stream.
pub struct Events {
    response: reqwest::Response,
    buffer: String,
    /// The id of the last event that had one.
    pub last_id: Option<String>,
    check: Option<Check>,
}

/// Panics at a message that is not as it has to be.
pub type Check = Box<dyn Fn(&Value) + Send + Sync>;

/// One block of a stream: an event, or comments alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    pub name: Option<String>,
    pub data: Option<String>,
    pub retry: Option<u64>,
    pub comment: Option<String>,
}

impl Events {
    pub async fn new(response: reqwest::Response) -> Self {
        let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        let is_stream = kind.as_ref().is_some_and(|kind| kind.starts_with("text/event-stream"));
        if response.status().as_u16() != 200 || !is_stream {
            panic!("no stream: {} {kind:?} {}", response.status(), response.text().await.unwrap_or_default());
        }
        Self { response, buffer: String::new(), last_id: None, check: None }
    }

    /// The same stream, each of whose messages is checked.
    pub fn checked(self, check: Check) -> Self {
        Self { check: Some(check), ..self }
    }

    /// The stream of the client's session.
    pub async fn of_session(client: &Client) -> Self {
        Self::new(client.build(Method::GET).send().await.unwrap()).await
    }

    /// The stream goes on after this event.
    pub async fn resumed(client: &Client, last_id: &str) -> Self {
        Self::new(client.build(Method::GET).header("last-event-id", last_id).send().await.unwrap()).await
    }

    /// The answer of a request, once it has begun.
    pub async fn of_request(client: &Client, body: String) -> Self {
        let request = client.build(Method::POST).header("content-type", "application/json").body(body);
        Self::new(request.send().await.unwrap()).await
    }

    /// The next block; `None` at the end, however it comes.
    pub async fn block(&mut self) -> Option<Event> {
        let wait = tokio::time::timeout(PATIENCE, self.read_block());
        let event = wait.await.unwrap_or_else(|_| panic!("nothing came; in hand: {:?}", self.buffer))?;
        if event.id.is_some() {
            self.last_id.clone_from(&event.id);
        }
        Some(event)
    }

    async fn read_block(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                return Some(Event::parse(&block));
            }
            let bytes = self.response.chunk().await.ok()??;
            self.buffer.push_str(std::str::from_utf8(&bytes).expect("the stream is text"));
        }
    }

    /// The next message; `None` at the end.
    pub async fn message(&mut self) -> Option<Value> {
        loop {
            let event = self.block().await?;
            if let Some(data) = event.data.filter(|data| !data.is_empty()) {
                let message = serde_json::from_str(&data).unwrap();
                if let Some(check) = &self.check {
                    check(&message);
                }
                return Some(message);
            }
        }
    }

    /// The next message of this method, or response if it is none.
    pub async fn until(&mut self, method: &str) -> Value {
        loop {
            let message = self.message().await.unwrap_or_else(|| panic!("the stream ended before {method}"));
            if message["method"] == method {
                return message;
            }
        }
    }

    /// The messages that come within this time.
    pub async fn within(&mut self, time: Duration) -> Vec<Value> {
        let deadline = tokio::time::Instant::now() + time;
        let mut messages = Vec::new();
        while let Ok(Some(message)) = tokio::time::timeout_at(deadline, self.message()).await {
            messages.push(message);
        }
        messages
    }

    /// All messages up to the end.
    pub async fn rest(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.message().await {
            messages.push(message);
        }
        messages
    }
}

impl Event {
    fn parse(block: &str) -> Self {
        let mut event = Self::default();
        for line in block.lines().filter(|line| !line.is_empty()) {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "" => event.comment = Some(value),
                "id" => event.id = Some(value),
                "event" => event.name = Some(value),
                "data" => assert!(event.data.replace(value).is_none(), "one line of data: {block}"),
                "retry" => event.retry = Some(value.parse().unwrap()),
                _ => panic!("an unknown field in {block}"),
            }
        }
        event
    }
}
