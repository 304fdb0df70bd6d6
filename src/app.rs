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

use crate::auth::{Anonymous, Authenticator, TokenAuthenticator};
use crate::config::{self, AuthMode, Config};
use crate::domain::clock::{Clock, SystemClock};
use crate::engine::{Engine, EngineParts, EngineRules};
use crate::executor::upstream::{self, KEPT_VARIABLES, Launcher, Upstreams};
use crate::http::server::{self, ServerRules};
use crate::http::{self, HttpRules, HttpState};
use crate::lifecycle;
use crate::store::{self, Store};

/// Sessions unused for longer are forgotten.
const SESSION_IDLE: Duration = Duration::from_secs(24 * 3600);
/// What requests get at least after the engine has drained, to write their last answers.
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
    .context("cannot join the nodes of the database")?;
    engine.start();

    let (drain, closing) = (CancellationToken::new(), CancellationToken::new());
    let router = http::router(HttpState {
        engine: Arc::clone(&engine),
        auth,
        store: store.clone(),
        rules: http_rules(&config, address),
        drain: drain.clone(),
    });
    let rules = ServerRules { connections: config.limits.connections, ..ServerRules::default() };
    let serving =
        lifecycle::spawn("http", server::serve(listener, router, rules, closing.clone(), config.server.drain));
    let announced = announce(Ready { address, store: store.clone(), clock: Arc::clone(&clock) }).await;

    let period = if announced.is_ok() {
        let signal = signals.next().await;
        tracing::info!(signal, drain_s = config.server.drain.as_secs(), "stopping: running work gets time to end");
        config.server.drain
    } else {
        Duration::ZERO
    };
    let stopping = async {
        let began = clock.boot();
        // Who waits for a task goes to another node; the listener stays, so that readiness can be asked.
        drain.cancel();
        engine.drain(period).await;
        closing.cancel();
        // Calls that are no tasks have what is left of the period.
        let left = period.saturating_sub(clock.boot().saturating_sub(began)).max(LAST_ANSWERS);
        if tokio::time::timeout(left, serving).await.is_err() {
            tracing::warn!("requests did not end within the drain period and are cut off");
        }
    };
    tokio::select! {
        () = stopping => {}
        signal = signals.next() => tracing::warn!(signal, "stopping at once"),
    }
    upstreams.stop().await;
    store.system().close().await;
    announced
}

/// The database with its tables up to date: brought so, unless `database.migrate = "manual"`.
///
/// # Errors
/// If it cannot be used.
pub async fn open_store(config: &Config) -> anyhow::Result<Store> {
    let options = config.database.options();
    let what = || format!("cannot use the database {}", config.database.shown_url());
    if config.database.auto_migrate {
        store::migrate(&options).await.with_context(what)?;
    }
    store::open(&options).await.with_context(what)
}

/// The configured upstreams, each being followed.
///
/// # Errors
/// If this program's own file cannot be found, which supervises the children.
pub async fn start_upstreams(config: &Config, store: &Store, clock: Arc<dyn Clock>) -> anyhow::Result<Arc<Upstreams>> {
    let launcher = Launcher::of_this_binary(config::variables(&KEPT_VARIABLES)).context("cannot find this program")?;
    let settings = upstream::Settings { result_limit: config.limits.result, ..upstream::Settings::new(launcher) };
    let configs = config.upstreams.iter().map(upstream_config).collect();
    Ok(Upstreams::start(configs, settings, store.system(), clock).await)
}

async fn authenticator(
    config: &Config,
    store: &Store,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Arc<dyn Authenticator>> {
    let auth: Result<Arc<dyn Authenticator>, store::StoreError> = match config.auth.mode {
        AuthMode::Token => {
            TokenAuthenticator::open(store.system(), Arc::clone(clock)).await.map(|auth| Arc::new(auth) as _)
        }
        AuthMode::None => Anonymous::open(&store.system(), &**clock).await.map(|auth| Arc::new(auth) as _),
    };
    auth.context("cannot prepare authentication")
}

fn engine_rules(config: &Config) -> EngineRules {
    EngineRules {
        ttl: config.tasks.ttl.clone(),
        poll_interval: config.tasks.poll_interval,
        page_size: config.tasks.page_size,
        slots: config.runner.slots,
        run_limit: config.runner.run_limit,
        hard_run_limit: config.runner.hard_run_limit,
        attempts: config.runner.attempts,
        arguments_limit: config.limits.arguments,
        message_limit: config.limits.message,
        waiters_per_context: config.limits.streams,
        session_idle: SESSION_IDLE,
    }
}

fn http_rules(config: &Config, address: SocketAddr) -> HttpRules {
    let public_url = config.server.public_url.as_deref();
    let (hosts, origins) = (HttpRules::own_hosts(address, public_url), HttpRules::own_origins(address, public_url));
    HttpRules {
        allowed_hosts: hosts.into_iter().chain(config.server.allowed_hosts.iter().cloned()).collect(),
        allowed_origins: origins.into_iter().chain(config.server.allowed_origins.iter().cloned()).collect(),
        body_limit: config.limits.body,
        session_idle: SESSION_IDLE,
        tasks_enabled: config.tasks.enabled,
        tenants_without_tasks: tenants_without_tasks(config),
    }
}

fn tenants_without_tasks(config: &Config) -> HashSet<String> {
    let without = config.tenants.iter().filter(|(_, tenant)| !tenant.tasks);
    without.map(|(name, _)| name.clone()).collect()
}

fn upstream_config(upstream: &config::UpstreamConfig) -> upstream::UpstreamConfig {
    upstream::UpstreamConfig {
        name: upstream.name.clone(),
        command: upstream.command.clone(),
        env: upstream.env.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned())).collect(),
        cwd: upstream.cwd.clone(),
        shared: upstream.shared,
        prefix: upstream.prefix,
        max_links: upstream.max_links,
        task: upstream.task,
        tools: upstream.tools.iter().map(|(name, tool)| (name.clone(), tool_config(tool))).collect(),
    }
}

fn tool_config(tool: &config::ToolConfig) -> upstream::ToolConfig {
    upstream::ToolConfig {
        task: tool.task,
        run_limit: tool.run_limit,
        restart: tool.restart,
        ttl: tool.ttl,
        poll_interval: tool.poll_interval,
        immediate_response: tool.immediate_response.clone(),
    }
}
