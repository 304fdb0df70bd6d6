//! Questions of running tasks, as the tests of the store ask them.

use taskhold::domain::answer::summary;
use taskhold::domain::clock::Timestamp;
use taskhold::domain::ids::{ContextId, DeliveryId, InputId, LeaseToken, NodeId, SessionId, StreamId, TaskId};
use taskhold::domain::input::{Answer, InputKind, Question};
use taskhold::domain::json::RawJson;
use taskhold::domain::task::{Status, Task};
use taskhold::domain::work::NewTask;
use taskhold::store::{Afterwards, Asked, Hold, NewInput, Purpose, ScopedStore, SystemStore};

use super::{at, caller, claimed_task};
use crate::support::database::TestDatabase;

/// A running task of a session, and who may speak for it.
pub struct Running {
    pub context: ContextId,
    pub scoped: ScopedStore,
    pub system: SystemStore,
    pub session: SessionId,
    pub node: NodeId,
    pub task: TaskId,
    pub token: LeaseToken,
}

impl Running {
    pub async fn new(db: &TestDatabase) -> Self {
        let (context, scoped) = caller(&db.store, "asked").await;
        let (session, node) = (SessionId::new(), NodeId::new());
        db.store.system().register_node(node).await.unwrap();
        let (new, token) = claimed_task(at(0), node);
        scoped.create(NewTask { session: Some(session), ..new.clone() }).await.unwrap();
        Self { context, scoped, system: db.store.system(), session, node, task: new.id, token }
    }

    pub async fn task(&self) -> Task {
        self.scoped.get(self.task).await.unwrap().unwrap()
    }

    /// Asks by the current lease; answers the id under which the question is stored.
    pub async fn ask(&self, text: &str, now: Timestamp) -> InputId {
        match self.system.ask(self.question(text, now)).await.unwrap() {
            Asked::Stored(task) => {
                assert_eq!(task, self.task().await);
                assert_eq!(task.status, Status::InputRequired);
                self.scoped.open_inputs(self.task).await.unwrap().last().unwrap().id
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn question(&self, text: &str, now: Timestamp) -> NewInput {
        NewInput {
            id: InputId::new(),
            task: self.task,
            token: self.token,
            question: question(text),
            name: None,
            deadline: None,
            most: 1000,
            message: summary(&question(text), 60),
            now,
        }
    }

    /// Sends a question to a stream of its session, on this node; answers the JSON-RPC id.
    pub async fn send(&self, input: InputId) -> DeliveryId {
        let hold = self.hold(input);
        assert!(self.system.hold_input(hold.clone()).await.unwrap(), "nobody has it");
        hold.delivery
    }

    pub fn hold(&self, input: InputId) -> Hold {
        Hold {
            input,
            task: self.task,
            delivery: DeliveryId::new(),
            session: self.session,
            stream: StreamId::new(),
            sequence: 7,
            node: self.node,
            purpose: Purpose::Question,
            now: at(1),
        }
    }

    pub async fn answer(&self, delivery: DeliveryId, text: &str, now: Timestamp) -> Option<Task> {
        self.scoped.answer_input(delivery, answer(text), &then("works again"), now).await.unwrap()
    }

    pub async fn open(&self) -> Vec<InputId> {
        self.scoped.open_inputs(self.task).await.unwrap().into_iter().map(|open| open.id).collect()
    }
}

pub fn question(text: &str) -> Question {
    Question { kind: InputKind::Elicitation, params: Some(RawJson::trusted(format!(r#"{{"message":"{text}"}}"#))) }
}

pub fn answer(text: &str) -> Answer {
    Answer::Result(RawJson::trusted(format!(r#"{{"action":"accept","n":1e400,"by":"{text}"}}"#)))
}

/// What a task says that waits for no more answers.
pub fn then(message: &str) -> Afterwards {
    Afterwards { message: message.to_owned(), limit: 60 }
}
