//! A service under test, in this process, on a free port.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use taskhold::auth::{AuthRefusal, Authenticator};
use taskhold::domain::clock::{Clock, SystemClock};
use taskhold::domain::context::{AuthContext, ContextKey, Credential};
use taskhold::domain::ids::{ContextId, TokenId};
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::mode::TaskMode;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::retention::TtlRules;
use taskhold::engine::{Engine, EngineParts, EngineRules, InputRules, QueueRules, RoundRules};
use taskhold::executor::upstream::{Settings, UpstreamConfig, Upstreams};
use taskhold::executor::{Attempt, Catalogue, Executor, Tool};
use taskhold::http::server::{ServerRules, serve};
use taskhold::http::{Counts, HttpRules, HttpState, router};
use taskhold::lifecycle::spawn;
use taskhold::store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::support::client::Client;
use crate::support::database::{Backend, TestDatabase};
use crate::support::script::{Script, Tools, tool};
use crate::upstream::harness::{PATIENCE, settings, test_tools, within};

/// 15 s in a service.
const KEEP_ALIVE: Duration = Duration::from_millis(250);
pub const BODY_LIMIT: usize = 256 * 1024;

/// Engine and HTTP front of one node.
pub struct Front {
    pub url: String,
    /// The same routes without a socket.
    pub router: axum::Router,
    pub engine: Arc<Engine>,
    pub counts: Arc<Counts>,
    pub drain: CancellationToken,
    shutdown: CancellationToken,
}

/// What a front is made of.
pub struct Parts {
    pub store: Store,
    pub executor: Arc<dyn Executor>,
    pub catalogue: Arc<dyn Catalogue>,
    pub auth: Arc<dyn Authenticator>,
    pub rules: EngineRules,
}

impl Front {
    pub async fn start(parts: Parts) -> Self {
        Self::start_by(parts, http_rules()).await
    }

    pub async fn start_by(parts: Parts, rules: HttpRules) -> Self {
        let engine_parts = EngineParts {
            store: parts.store.clone(),
            clock: SystemClock::new(),
            executor: parts.executor,
            catalogue: parts.catalogue,
            rules: parts.rules,
        };
        let engine = Engine::join(engine_parts).await.unwrap();
        // A first look at the queue: nobody waits, so that tasks run at once.
        engine.claim_once().await.unwrap();
        engine.start();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (drain, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let counts = Arc::new(Counts::default());
        let router = router(HttpState {
            engine: engine.clone(),
            auth: parts.auth,
            store: parts.store,
            rules,
            counts: Arc::clone(&counts),
            leaving: CancellationToken::new(),
            drain: drain.clone(),
        });
        let rules = ServerRules::default();
        let running = serve(listener, router.clone(), rules, shutdown.clone(), Duration::from_secs(5));
        spawn("server", running);
        Self { url: format!("http://{address}/mcp"), router, engine, counts, drain, shutdown }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// A front whose work is done by the test.
pub struct Service {
    pub url: String,
    pub script: Arc<Script>,
    pub tools: Arc<Tools>,
    pub names: Arc<Names>,
    pub drain: CancellationToken,
    pub front: Front,
    pub database: TestDatabase,
}

impl Service {
    pub async fn on_sqlite() -> Self {
        Self::start(TestDatabase::new(Backend::Sqlite).await).await
    }

    pub async fn start(database: TestDatabase) -> Self {
        Self::with(database, engine_rules()).await
    }

    pub async fn with(database: TestDatabase, rules: EngineRules) -> Self {
        Self::offering(database, rules, tools()).await
    }

    pub async fn offering(database: TestDatabase, rules: EngineRules, tools: Vec<Tool>) -> Self {
        let (script, tools) = (Script::new(), Tools::new(tools));
        let names = Arc::new(Names::new(database.store.clone()));
        let front = Front::start(Parts {
            store: database.store.clone(),
            executor: script.clone(),
            catalogue: tools.clone(),
            auth: names.clone(),
            rules,
        })
        .await;
        Self { url: front.url.clone(), script, tools, names, drain: front.drain.clone(), front, database }
    }

    /// One more node on the same database, with the same callers and work.
    pub async fn another_node(&self) -> Front {
        Front::start(Parts {
            store: self.database.another().await,
            executor: self.script.clone(),
            catalogue: self.tools.clone(),
            auth: self.names.clone(),
            rules: engine_rules(),
        })
        .await
    }

    /// A client of this name, with a session of 2025-11-25.
    pub async fn client(&self, name: &str) -> Client {
        Client::connected(&self.url, name).await
    }

    pub async fn client_of(&self, name: &str, revision: &'static str) -> Client {
        let mut client = Client::new(&self.url, Some(name));
        client.initialize(revision).await;
        client
    }

    /// Ends the next call with this raw result.
    pub async fn answer_next(&self, json: &str) {
        let call = self.script.next().await;
        call.end(Attempt::Answered(Outcome::Result {
            json: RawJson::trusted(json),
            is_error: json.contains("isError\":true"),
        }));
    }

    /// Ends the next call with this raw error.
    pub async fn fail_next(&self, json: &str) {
        let call = self.script.next().await;
        call.end(Attempt::Answered(Outcome::Error { json: RawJson::trusted(json) }));
    }
}

/// A front before the demo server's test tools, which run as real processes.
pub struct Gateway {
    pub upstreams: Arc<Upstreams>,
    pub names: Arc<Names>,
    pub front: Front,
    pub database: TestDatabase,
}

impl Gateway {
    pub async fn start(database: TestDatabase) -> Self {
        Self::with(database, settings(), vec![test_tools("test")], engine_rules()).await
    }

    pub async fn with(
        database: TestDatabase,
        settings: Settings,
        configs: Vec<UpstreamConfig>,
        rules: EngineRules,
    ) -> Self {
        let gateway = Self::unsettled(database, settings, configs, rules).await;
        within("the upstreams to settle", gateway.upstreams.settled()).await;
        gateway
    }

    /// The same before anything was heard of the upstreams.
    pub async fn unsettled(
        database: TestDatabase,
        settings: Settings,
        configs: Vec<UpstreamConfig>,
        rules: EngineRules,
    ) -> Self {
        let upstreams = Upstreams::start(configs, settings, database.store.system(), SystemClock::new()).await;
        Self::before(database, upstreams, rules).await
    }

    /// A front before upstreams that were started already.
    pub async fn before(database: TestDatabase, upstreams: Arc<Upstreams>, rules: EngineRules) -> Self {
        let names = Arc::new(Names::new(database.store.clone()));
        let front = Front::start(Parts {
            store: database.store.clone(),
            executor: upstreams.clone(),
            catalogue: upstreams.clone(),
            auth: names.clone(),
            rules,
        })
        .await;
        Self { upstreams, names, front, database }
    }

    pub async fn client(&self, name: &str) -> Client {
        Client::connected(&self.front.url, name).await
    }

    /// One more node on the same database and upstreams.
    pub async fn another_node(&self) -> Front {
        Front::start(Parts {
            store: self.database.another().await,
            executor: self.upstreams.clone(),
            catalogue: self.upstreams.clone(),
            auth: self.names.clone(),
            rules: engine_rules(),
        })
        .await
    }
}

/// Waits for a condition that comes about by itself.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, poll).await.is_ok(), "this did not come about: {what}");
}

/// Every bearer token is the name of its caller, but `wrong` and those that were revoked. `anyone` sends none.
pub struct Names {
    store: Store,
    known: Mutex<HashMap<String, ContextId>>,
    revoked: Mutex<HashSet<String>>,
    pub away: AtomicBool,
    pub open_to_anyone: AtomicBool,
}

impl Names {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            known: Mutex::default(),
            revoked: Mutex::default(),
            away: AtomicBool::new(false),
            open_to_anyone: AtomicBool::new(false),
        }
    }

    pub fn revoke(&self, name: &str) {
        self.revoked.lock().unwrap().insert(name.to_owned());
    }

    /// The caller of this name.
    pub async fn caller(&self, name: &str) -> AuthContext {
        self.context(name, Credential::Token(TokenId::new())).await.expect("the database answers")
    }

    async fn context(&self, name: &str, credential: Credential) -> Result<AuthContext, AuthRefusal> {
        let tenant = name.split_once('@').map(|(_, tenant)| tenant.to_owned()).unwrap_or_default();
        let known = self.known.lock().unwrap().get(name).copied();
        let id = match known {
            Some(id) => id,
            None => {
                let key = ContextKey { subject: name.to_owned(), tenant: tenant.clone(), ..ContextKey::default() };
                let now = SystemClock::new().now();
                let id = self.store.system().ensure_context(key, now).await.map_err(|_| AuthRefusal::Unavailable)?;
                self.known.lock().unwrap().insert(name.to_owned(), id);
                id
            }
        };
        Ok(AuthContext::verified(id, Some(tenant.into()), credential))
    }
}

#[async_trait]
impl Authenticator for Names {
    async fn authenticate(&self, authorization: &[&[u8]]) -> Result<AuthContext, AuthRefusal> {
        if self.away.load(Ordering::SeqCst) {
            return Err(AuthRefusal::Unavailable);
        }
        if self.open_to_anyone.load(Ordering::SeqCst) {
            return self.context("anyone", Credential::Anonymous).await;
        }
        let [value] = authorization else {
            return Err(if authorization.is_empty() { AuthRefusal::Missing } else { AuthRefusal::Malformed });
        };
        let name = value.strip_prefix(b"Bearer ").ok_or(AuthRefusal::Malformed)?;
        let name = std::str::from_utf8(name).map_err(|_| AuthRefusal::Malformed)?;
        if name == "wrong" || self.revoked.lock().unwrap().contains(name) {
            return Err(AuthRefusal::Invalid);
        }
        self.context(name, Credential::Token(TokenId::new())).await
    }
}

pub fn tools() -> Vec<Tool> {
    let named = |name: &str, mode| tool(name, mode, RestartPolicy::Fail);
    vec![
        named("optional", TaskMode::Optional),
        named("never", TaskMode::Never),
        named("always", TaskMode::Always),
        named("eager", TaskMode::Eager),
        Tool {
            definition: RawJson::trusted(
                r#"{"name":"their name","title":"T","inputSchema":{"type":"object","x":1e400},"execution":{"taskSupport":"forbidden"},"_meta":{"n":1.0}}"#,
            ),
            immediate_response: Some("it is under way".to_owned()),
            poll_interval: Some(Duration::from_millis(250)),
            ..named("our_name", TaskMode::Optional)
        },
    ]
}

pub fn http_rules() -> HttpRules {
    HttpRules {
        allowed_hosts: vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "public.example:443".to_owned()],
        allowed_origins: vec!["https://app.example".to_owned()],
        keep_alive: KEEP_ALIVE,
        body_limit: BODY_LIMIT,
        session_idle: Duration::from_secs(24 * 3600),
        sessions: 100_000,
        tasks_enabled: true,
        task_names_required: false,
        tenants_without_tasks: HashSet::from(["plain".to_owned()]),
        resource: None,
    }
}

pub fn engine_rules() -> EngineRules {
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
        slots: 64,
        run_limit: Duration::from_secs(600),
        hard_run_limit: Duration::from_secs(3600),
        attempts: 3,
        arguments_limit: 100_000,
        message_limit: 100,
        progress_interval: Duration::from_millis(1),
        caller_grace: Duration::from_secs(60),
        waiters_per_context: 20,
        subscriptions_per_session: 2,
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
