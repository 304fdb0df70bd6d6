//! A host that hands what running work says and asks to the test.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use taskhold::domain::input::{Answer, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::work::UpstreamTask;
use taskhold::executor::{Event, Host, Unasked};
use tokio::sync::{mpsc, oneshot};

/// What the work of one call said; for [`Heard::questions`], each with where its answer goes.
pub struct Heard {
    pub events: mpsc::Receiver<Event>,
    pub questions: mpsc::UnboundedReceiver<(Question, oneshot::Sender<Answer>)>,
    pub handed_over: Arc<Mutex<Option<UpstreamTask>>>,
}

struct Listener {
    events: mpsc::Sender<Event>,
    questions: mpsc::UnboundedSender<(Question, oneshot::Sender<Answer>)>,
    handed_over: Arc<Mutex<Option<UpstreamTask>>>,
}

/// A host, and what it hears.
pub fn listener() -> (Arc<dyn Host>, Heard) {
    let (events, heard_events) = mpsc::channel(64);
    let (questions, heard_questions) = mpsc::unbounded_channel();
    let handed_over = Arc::default();
    let host = Listener { events, questions, handed_over: Arc::clone(&handed_over) };
    (Arc::new(host), Heard { events: heard_events, questions: heard_questions, handed_over })
}

#[async_trait]
impl Host for Listener {
    fn tell(&self, event: Event) {
        let _full = self.events.try_send(event);
    }

    async fn ask(&self, question: Question) -> Result<Answer, Unasked> {
        let (answer, answered) = oneshot::channel();
        let nobody = || Unasked(Answer::Error(RawJson::trusted(r#"{"code":-32601,"message":"nobody answers"}"#)));
        self.questions.send((question, answer)).map_err(|_| nobody())?;
        answered.await.map_err(|_| nobody())
    }

    async fn handed_over(&self, to: UpstreamTask) -> bool {
        *self.handed_over.lock().unwrap() = Some(to);
        true
    }
}

/// What the work gets, whoever made it.
pub trait Answers {
    fn answer_to(&self, question: Question) -> impl Future<Output = Answer> + Send;
}

impl Answers for dyn Host {
    async fn answer_to(&self, question: Question) -> Answer {
        self.ask(question).await.unwrap_or_else(|Unasked(error)| error)
    }
}
