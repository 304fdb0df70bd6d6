//! The composition root: from a configuration to a running service, and back down in order. The only place that names
//! concrete types across layers.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use secrecy::ExposeSecret as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::auth::{Anonymous, Authenticator, OauthAuthenticator, OauthRules, TokenAuthenticator};
use crate::config::{self, AuthMode, Config, ServerConfig};
use crate::domain::clock::{Clock, SystemClock};
use crate::domain::scope::Scope;
use crate::engine::{Engine, EngineParts, EngineRules, InputRules, QueueRules, RoundRules, TenantRules};
use crate::executor::upstream::{self, KEPT_VARIABLES, Launcher, Upstreams};
use crate::http::server::{self, ServerRules};
use crate::http::{self, Counts, HttpRules, HttpState, ProtectedResource};
use crate::lifecycle;
use crate::store::{self, OpenError, Store};

/// How long the first start waits for upstreams that it has never heard of.
const FIRST_LISTS: Duration = Duration::from_secs(5);
/// Sessions unused for longer are forgotten.
const SESSION_IDLE: Duration = Duration::from_secs(24 * 3600);
/// Between two comments on a stream on which nothing happens.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long the caller of a call that is no task may be away before it counts as gone.
const CALLER_GRACE: Duration = Duration::from_secs(60);
/// What requests get at least after the engine has drained, and again when their calls were stopped, to write their last
/// answers.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// A service that listens.
pub struct Ready {
    pub address: SocketAddr,
    pub store: Store,
    pub clock: Arc<dyn Clock>,
}

/// Serves until the process is asked to stop, and stops in order. `announce` is called once it listens.
///
/// # Errors
/// If the database, the address or a part cannot be had, or `announce` fails.
pub async fn run(config: Config, announce: impl AsyncFnOnce(Ready) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut signals = lifecycle::StopSignals::new().context("cannot watch for signals")?;
    let store = open_store(&config).await?;
    let listener = TcpListener::bind(config.server.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.server.listen))?;
    let address = listener.local_addr().context("cannot tell the address that was bound")?;
    let clock: Arc<dyn Clock> = SystemClock::new();
    let auth = authenticator(&config, &store, &clock).await?;
    let upstreams = start_upstreams(&config, &store, Arc::clone(&clock)).await?;
    let engine = Engine::join(EngineParts {
        store: store.clone(),
        clock: Arc::clone(&clock),
        executor: upstreams.clone(),
        catalogue: upstreams.clone(),
        rules: engine_rules(&config),
    })
    .await
    .context("cannot join the nodes of the database; taskhold check says what stands in the way")?;
    engine.start();

    let counts = Arc::new(Counts::default());
    let [leaving, drain, closing] = [(); 3].map(|()| CancellationToken::new());
    let router = http::router(HttpState {
        engine: Arc::clone(&engine),
        auth,
        store: store.clone(),
        rules: http_rules(&config, address),
        counts: Arc::clone(&counts),
        leaving: leaving.clone(),
        drain: drain.clone(),
    });
    let rules = ServerRules { connections: config.limits.connections, ..ServerRules::default() };
    wait_for_first_lists(&config, &upstreams).await;
    let serving = lifecycle::spawn(
        "http",
        server::serve(listener, router, rules, closing.clone(), config.server.drain + LAST_ANSWERS * 2),
    );
    let announced = announce(Ready { address, store: store.clone(), clock: Arc::clone(&clock) }).await;

    let (delay, period) = if announced.is_ok() {
        let signal = signals.next().await;
        // Before anything else, so that load balancers send new requests elsewhere.
        leaving.cancel();
        let ServerConfig { drain, drain_delay, .. } = config.server;
        let (delay_s, drain_s) = (drain_delay.as_secs(), drain.as_secs());
        tracing::info!(signal, delay_s, drain_s, "stopping: running work gets time to end");
        (drain_delay, drain)
    } else {
        (Duration::ZERO, Duration::ZERO)
    };
    let stopping = async {
        // Those that still come meanwhile are served like any.
        tokio::time::sleep(delay).await;
        let began = clock.boot();
        // Who waits for a task goes to another node; the listener stays, so that readiness can be asked.
        drain.cancel();
        engine.drain(period).await;
        // Calls that are no tasks have what is left of the period, and so have slow readers.
        let left = || period.saturating_sub(clock.boot().saturating_sub(began)).max(LAST_ANSWERS);
        if tokio::time::timeout(left(), engine.calls_over()).await.is_err() {
            tracing::warn!("calls did not end within the drain period and are stopped");
            engine.cut_calls();
        }
        closing.cancel();
        tokio::pin!(serving);
        if tokio::time::timeout(left(), &mut serving).await.is_err() {
            // One may have begun in the moment of the stop.
            engine.cut_calls();
            if tokio::time::timeout(LAST_ANSWERS, serving).await.is_err() {
                tracing::warn!("what is left of the requests is cut off");
            }
        }
        engine.close();
    };
    tokio::select! {
        () = stopping => {}
        signal = signals.next() => tracing::warn!(signal, "stopping at once"),
    }
    counts.log();
    upstreams.stop().await;
    store.system().close().await;
    announced
}

/// The database with its tables up to date: brought so, unless `database.migrate = "off"`.
///
/// # Errors
/// If it cannot be used.
pub async fn open_store(config: &Config) -> anyhow::Result<Store> {
    if config.database.auto_migrate {
        store::migrate(&config.database.options()).await.with_context(|| cannot_use(config))?;
    }
    open_store_as_it_is(config).await
}

/// The database as it is: nothing is made or changed.
///
/// # Errors
/// If it cannot be used, or its tables are not up to date.
pub async fn open_store_as_it_is(config: &Config) -> anyhow::Result<Store> {
    store::open(&config.database.options()).await.with_context(|| cannot_use(config))
}

/// The database as it is, or a new one where there is none yet, unless `database.migrate = "off"`. The second part says what
/// was made.
///
/// # Errors
/// If it cannot be used, or its tables are not up to date.
pub async fn open_or_make_store(config: &Config) -> anyhow::Result<(Store, Option<String>)> {
    let options = config.database.options();
    let made = match store::open(&options).await {
        Err(OpenError::NoFile(path)) if config.database.auto_migrate => format!("the new database {}", path.display()),
        Err(OpenError::NoTables) if config.database.auto_migrate => {
            format!("new tables in the database {}", config.database.shown_url())
        }
        opened => return Ok((opened.with_context(|| cannot_use(config))?, None)),
    };
    Ok((open_store(config).await?, Some(made)))
}

fn cannot_use(config: &Config) -> String {
    format!("cannot use the database {}", config.database.shown_url())
}

/// The configured upstreams, each being followed.
///
/// # Errors
/// If this program's own file cannot be found, which supervises the children.
pub async fn start_upstreams(config: &Config, store: &Store, clock: Arc<dyn Clock>) -> anyhow::Result<Arc<Upstreams>> {
    let launcher = Launcher::of_this_binary(config::variables(&KEPT_VARIABLES)).context("cannot find this program")?;
    let settings = upstream::Settings {
        result_limit: config.limits.result,
        open_questions: config.limits.open_questions,
        ..upstream::Settings::new(launcher)
    };
    let configs = config.upstreams.iter().map(upstream_config).collect();
    Ok(Upstreams::start(configs, settings, store.system(), clock).await)
}

/// An upstream that no list is known of yet gets a moment before the service says that it is ready, so that the first call
/// finds its tools. One that takes longer is served as soon as it answers.
async fn wait_for_first_lists(config: &Config, upstreams: &Upstreams) {
    if config.upstreams.iter().all(|upstream| upstreams.is_known(&upstream.name)) {
        return;
    }
    if tokio::time::timeout(FIRST_LISTS, upstreams.settled()).await.is_err() {
        tracing::info!("some upstreams have not answered yet; their tools are listed as soon as they do");
    }
}

async fn authenticator(
    config: &Config,
    store: &Store,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Arc<dyn Authenticator>> {
    let (system, clock) = (store.system(), Arc::clone(clock));
    let auth: anyhow::Result<Arc<dyn Authenticator>> = match config.auth.mode {
        AuthMode::Token => {
            TokenAuthenticator::open(system, clock).await.map(|auth| Arc::new(auth) as _).map_err(Into::into)
        }
        AuthMode::Oauth => OauthAuthenticator::open(oauth_rules(config), system, clock)
            .map(|auth| Arc::new(auth) as _)
            .map_err(anyhow::Error::msg),
        AuthMode::None => Anonymous::open(&system, &*clock).await.map(|auth| Arc::new(auth) as _).map_err(Into::into),
    };
    auth.context("cannot prepare authentication")
}

/// Which access tokens of the issuer count.
#[must_use]
pub fn oauth_rules(config: &Config) -> OauthRules {
    let resource = protected_resource(config);
    config.oauth.rules(resource.as_ref().map_or("", ProtectedResource::url))
}

fn protected_resource(config: &Config) -> Option<ProtectedResource> {
    let (url, issuer) = (config.server.public_url.as_deref()?, config.oauth.issuer.as_deref()?);
    let scopes: &[Scope] = if config.oauth.require_scopes { &Scope::ALL } else { &[] };
    (config.auth.mode == AuthMode::Oauth).then(|| ProtectedResource::new(url, issuer, scopes))
}

fn engine_rules(config: &Config) -> EngineRules {
    EngineRules {
        ttl: config.tasks.ttl.clone(),
        grace: config.tasks.grace,
        poll_interval: config.tasks.poll_interval,
        page_size: config.tasks.page_size,
        slots: config.runner.slots,
        asking: config.runner.asking,
        run_limit: config.runner.run_limit,
        hard_run_limit: config.runner.hard_run_limit,
        attempts: config.runner.attempts,
        arguments_limit: config.limits.arguments,
        message_limit: config.limits.message,
        waiters_per_context: config.limits.streams,
        subscriptions_per_session: config.limits.subscriptions,
        progress_interval: config.limits.progress_interval,
        caller_grace: CALLER_GRACE,
        session_idle: SESSION_IDLE,
        input: InputRules {
            timeout: config.tasks.input_timeout,
            question_limit: config.limits.question,
            answer_limit: config.limits.answer,
            open: config.limits.open_questions,
            questions: config.limits.questions,
            refused: config.limits.refused_answers,
        },
        queue: queue_rules(config),
        rounds: RoundRules { timeout: config.tasks.round_timeout, calls: config.limits.parked_calls },
    }
}

fn queue_rules(config: &Config) -> QueueRules {
    let of_tenant = |tenant: &config::TenantConfig| TenantRules { slots: tenant.slots, queued: tenant.queued };
    let limited = config.tenants.iter().map(|(name, tenant)| (name.clone(), of_tenant(tenant)));
    QueueRules {
        slots: config.limits.slots,
        queued: config.limits.queued,
        tenants: limited.filter(|(_, rules)| *rules != TenantRules::default()).collect(),
    }
}

fn http_rules(config: &Config, address: SocketAddr) -> HttpRules {
    let public_url = config.server.public_url.as_deref();
    let (hosts, origins) = (HttpRules::own_hosts(address, public_url), HttpRules::own_origins(address, public_url));
    HttpRules {
        allowed_hosts: hosts.into_iter().chain(config.server.allowed_hosts.iter().cloned()).collect(),
        allowed_origins: origins.into_iter().chain(config.server.allowed_origins.iter().cloned()).collect(),
        keep_alive: KEEP_ALIVE,
        body_limit: config.limits.body,
        session_idle: SESSION_IDLE,
        sessions: config.limits.sessions,
        tasks_enabled: config.tasks.enabled,
        task_names_required: config.tasks.name_header_required,
        tenants_without_tasks: tenants_without_tasks(config),
        resource: protected_resource(config),
    }
}

fn tenants_without_tasks(config: &Config) -> HashSet<String> {
    let without = config.tenants.iter().filter(|(_, tenant)| !tenant.tasks);
    without.map(|(name, _)| name.clone()).collect()
}

fn upstream_config(upstream: &config::UpstreamConfig) -> upstream::UpstreamConfig {
    upstream::UpstreamConfig {
        name: upstream.name.clone(),
        endpoint: upstream.url.as_ref().map(|url| upstream::Endpoint {
            url: url.expose_secret().to_owned(),
            headers: upstream.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        }),
        command: upstream.command.clone(),
        env: upstream.env.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned())).collect(),
        cwd: upstream.cwd.clone(),
        protocol: upstream.protocol,
        shared: upstream.shared,
        prefix: upstream.prefix,
        max_links: upstream.max_links,
        task: upstream.task,
        grace: upstream.grace,
        tools: upstream.tools.iter().map(|(name, tool)| (name.clone(), tool_config(tool))).collect(),
    }
}

fn tool_config(tool: &config::ToolConfig) -> upstream::ToolConfig {
    upstream::ToolConfig {
        task: tool.task,
        run_limit: tool.run_limit,
        slots: tool.slots,
        restart: tool.restart,
        ttl: tool.ttl,
        poll_interval: tool.poll_interval,
        grace: tool.grace,
        input_timeout: tool.input_timeout,
        ask_first: tool.ask_first,
        immediate_response: tool.immediate_response.clone(),
    }
}
