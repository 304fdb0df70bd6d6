//! A node under test: the real engine and a real database, a scripted executor and a clock moved by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use taskhold::domain::clock::{Clock, ManualClock, Timestamp};
use taskhold::domain::context::{AuthContext, ContextKey, Credential};
use taskhold::domain::ids::{TaskId, TokenId};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::mode::TaskMode;
use taskhold::domain::retention::TtlRules;
use taskhold::domain::task::{Status, Task};
use taskhold::engine::{
    Asked, Called, Caller, Engine, EngineParts, EngineRules, InputRules, Item, QueueRules, Refusal, RoundRules,
    ToolCall,
};
use taskhold::executor::Tool;
use taskhold::store::Store;

use crate::support::database::TestDatabase;
use crate::support::script::{Script, Tools, tool};

pub struct Node {
    pub engine: Arc<Engine>,
    pub script: Arc<Script>,
}

pub struct World {
    pub database: TestDatabase,
    pub clock: Arc<ManualClock>,
    pub rules: EngineRules,
}

impl World {
    pub async fn new(database: TestDatabase) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        Self { database, clock, rules: rules() }
    }

    /// One more node on the world's database, with a first look at the queue behind it.
    pub async fn node(&self) -> Node {
        self.node_with(self.clock.clone()).await
    }

    /// The same with a clock of its own.
    pub async fn node_with(&self, clock: Arc<dyn Clock>) -> Node {
        self.node_of(self.database.store.clone(), clock).await
    }

    /// The same with a store of its own, as another process has it: what one of them has seen of the file's changes the other
    /// has not.
    pub async fn node_apart(&self) -> Node {
        self.node_of(self.database.another().await, self.clock.clone()).await
    }

    /// The same with this store, which leads to the world's database.
    pub async fn node_on(&self, store: Store) -> Node {
        self.node_of(store, self.clock.clone()).await
    }

    async fn node_of(&self, store: Store, clock: Arc<dyn Clock>) -> Node {
        let script = Script::new();
        let parts = EngineParts {
            store,
            clock,
            executor: script.clone(),
            catalogue: Tools::new(tools()),
            rules: self.rules.clone(),
        };
        let engine = Engine::join(parts).await.unwrap();
        engine.claim_once().await.unwrap();
        Node { engine, script }
    }

    /// A caller with an authorization context of its own.
    pub async fn caller(&self, name: &str) -> Caller {
        self.caller_of(None, name).await
    }

    /// The same of a tenant.
    pub async fn caller_of(&self, tenant: Option<&str>, name: &str) -> Caller {
        let tenant_name = tenant.unwrap_or_default().to_owned();
        let key = ContextKey { tenant: tenant_name, subject: name.to_owned(), ..ContextKey::default() };
        let id = self.database.store.system().ensure_context(key, Timestamp::from_micros(0)).await.unwrap();
        let token = TokenId::new();
        Caller {
            auth: AuthContext::verified(id, tenant.map(Arc::from), Credential::Token(token)),
            session: None,
            capabilities: RawJson::trusted("{}"),
            initialized: true,
            takes_requests: true,
            tasks_enabled: true,
        }
    }
}

pub fn rules() -> EngineRules {
    EngineRules {
        ttl: TtlRules {
            default: Some(Duration::from_secs(3600)),
            min: Duration::from_secs(10),
            max: Some(Duration::from_secs(24 * 3600)),
            min_retention: Duration::from_secs(600),
            hard_lifetime: Duration::from_secs(26 * 3600),
        },
        grace: Duration::from_secs(5),
        poll_interval: Duration::from_secs(1),
        page_size: 3,
        slots: 8,
        run_limit: Duration::from_secs(600),
        hard_run_limit: Duration::from_secs(3600),
        attempts: 3,
        arguments_limit: 1000,
        message_limit: 100,
        progress_interval: Duration::from_millis(1),
        caller_grace: Duration::from_secs(60),
        waiters_per_context: 10,
        subscriptions_per_session: 3,
        session_idle: Duration::from_secs(24 * 3600),
        asking: 100,
        queue: QueueRules { slots: None, queued: 100_000, tenants: BTreeMap::new() },
        input: InputRules {
            timeout: None,
            question_limit: 10_000,
            answer_limit: 10_000,
            open: 4,
            questions: 8,
            refused: 2,
        },
        rounds: RoundRules { timeout: Duration::from_secs(600), calls: 5 },
    }
}

fn tools() -> Vec<Tool> {
    vec![
        tool("once", TaskMode::Optional, RestartPolicy::Fail),
        tool("again", TaskMode::Optional, RestartPolicy::Retry),
        tool("never", TaskMode::Never, RestartPolicy::Fail),
        tool("always", TaskMode::Always, RestartPolicy::Fail),
        tool("eager", TaskMode::Eager, RestartPolicy::Fail),
        Tool { ask_first: true, ..tool("asks first", TaskMode::Always, RestartPolicy::Fail) },
        Tool { grace: Some(Duration::ZERO), ..tool("at once", TaskMode::Optional, RestartPolicy::Fail) },
        Tool {
            input_timeout: Some(Duration::from_millis(30)),
            ..tool("impatient", TaskMode::Optional, RestartPolicy::Fail)
        },
        Tool { slots: Some(1), ..tool("one at a time", TaskMode::Optional, RestartPolicy::Fail) },
        Tool { run_limit: Some(Duration::from_millis(30)), ..tool("brief", TaskMode::Optional, RestartPolicy::Fail) },
    ]
}

pub fn call(tool: &str) -> ToolCall {
    call_with(tool, "{}")
}

pub fn call_with(tool: &str, arguments: &str) -> ToolCall {
    ToolCall {
        name: tool.to_owned(),
        params: RawJson::trusted(format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#)),
        arguments: RawJson::trusted(arguments),
        progress_token: None,
        key: None,
    }
}

/// Calls as a client does that takes nothing but the answer, under this JSON-RPC id.
pub async fn plainly(engine: &Arc<Engine>, caller: &Caller, call: ToolCall, id: &str) -> Result<Called, Refusal> {
    let asked = Asked::in_session(id.to_owned(), false, true);
    let mut stream = engine.call(caller, call, asked).await?;
    match stream.next().await {
        Item::Called { answer, .. } => answer,
        other => panic!("not an answer: {other:?}"),
    }
}

impl Node {
    pub async fn create(&self, caller: &Caller, tool: &str) -> Task {
        self.engine.create_task(caller, call(tool), None).await.unwrap().task
    }

    pub async fn status(&self, caller: &Caller, id: TaskId) -> Status {
        self.engine.get(caller, id).await.unwrap().status
    }

    pub async fn message(&self, caller: &Caller, id: TaskId) -> String {
        self.engine.get(caller, id).await.unwrap().message.unwrap_or_default()
    }

    /// Waits until the task has this message; messages are written in the background.
    pub async fn until_message(&self, caller: &Caller, id: TaskId, wanted: &str) {
        let seen = async {
            while self.message(caller, id).await != wanted {
                tokio::task::yield_now().await;
            }
        };
        let limit = Duration::from_secs(10);
        assert!(tokio::time::timeout(limit, seen).await.is_ok(), "{:?}", self.message(caller, id).await);
    }

    /// Enough heartbeats in time that this node may judge others.
    pub async fn beat_until_it_may_judge(&self) {
        for _ in 0..4 {
            self.engine.beat_once().await.unwrap();
        }
    }
}
