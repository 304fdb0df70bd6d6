//! The command line: one file per command.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 the command line or
//! the configuration cannot be used.
//!
//! To add a command: a file here with its arguments and its `run`, a variant of [`Command`].

mod bench;
mod check;
mod demo_server;
mod migrate;
mod output;
mod serve;
mod supervise;
mod tasks;
mod token;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, Overrides, Sources, redact_url};
use crate::telemetry::logs::{self, Logs};

/// Makes the tools of any MCP server durable tasks.
///
/// Clients speak MCP to one URL, http://ADDRESS/mcp. Behind it stand the tools of the MCP servers that the configuration
/// names. A call of any of them can be a task: stored in PostgreSQL or SQLite before the client sees its id, and there
/// until its time to live ends, whatever happens to connections and processes.
///
/// Configuration comes from taskhold.toml, ./.env, the environment (TASKHOLD_*) and flags, in that rising order.
#[derive(Debug, Parser)]
#[command(name = "taskhold", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

const EVERY_COMMAND: &str = "Options of every command";

/// What every command takes.
#[derive(Debug, Args)]
struct Common {
    /// The configuration file; taskhold.toml in the working directory, if it is there, when not given
    #[arg(long, global = true, value_name = "FILE", help_heading = EVERY_COMMAND)]
    config: Option<PathBuf>,
    /// The database: sqlite://FILE or postgres://USER:PASSWORD@HOST/DATABASE
    ///
    /// A password on a command line can be seen by others on the machine: prefer TASKHOLD_DATABASE_URL.
    #[arg(long, global = true, value_name = "URL", help_heading = EVERY_COMMAND)]
    database_url: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve MCP over HTTP
    ///
    /// Listens on 127.0.0.1:8080 and stores in ./taskhold.db unless configured otherwise, brings the database's tables up to
    /// date, and writes "taskhold is listening on URL" to standard error once it does. SIGTERM or Ctrl-C gives running work
    /// time to end; a second one stops at once.
    Serve(serve::ServeArgs),
    /// Create, list, revoke and rotate access tokens
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// List, show and cancel tasks, across all callers
    #[command(subcommand)]
    Tasks(tasks::TasksCommand),
    /// Bring the database's tables up to date
    ///
    /// Several processes may do this at once: one works, the others wait for it. `serve` does the same first; no other command
    /// changes tables that are there.
    Migrate(migrate::MigrateArgs),
    /// Check configuration, OAuth issuer, database, migrations and upstreams
    ///
    /// Prints a line for each: "ok", or "to do" and what: of the database its servers, its tables, the rights of the role, and
    /// whether database.listen_url is of use. Starts each upstream once, when the tables are up to date; makes and
    /// changes no tables. Exits with 1 unless all are ok.
    Check(check::CheckArgs),
    /// Be the demo upstream: an MCP server on standard input and output, or by HTTP
    ///
    /// Its tools: count_primes (real work), wait, fail, crash, confirm_delete (asks before it answers). `serve --demo` puts it
    /// behind the service.
    DemoServer(demo_server::DemoServerArgs),
    /// Measure a server: operations a second, and how long they take
    ///
    /// Calls a tool of any MCP server with tasks over Streamable HTTP, by many connections at once. Each begins its next operation
    /// when the last one is answered, or, with --rate, operations begin when they are planned, and their latency counts from
    /// then: what waits for a slow server is counted as its clients would feel it. An operation is done when its answer is there and says what
    /// it should; all else is an error, counted by kind. Exits with 1 when no operation was done.
    ///
    /// Tasks that are made stay until their time to live ends.
    Bench(bench::BenchArgs),
    /// Run an upstream's command and end it when the service is gone
    #[command(hide = true)]
    Supervise(supervise::SuperviseArgs),
}

impl Cli {
    /// Runs the command; what went wrong goes to standard error, once.
    #[must_use]
    pub fn run(self) -> ExitCode {
        match self.try_run() {
            Ok(code) => code,
            Err(error) => {
                output::complain(&format!("taskhold: {error:#}"));
                if error.is::<ConfigError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
            }
        }
    }

    fn try_run(self) -> anyhow::Result<ExitCode> {
        let Self { common, command } = self;
        match command {
            // Those run below a service, or against one, whose configuration is not theirs.
            Command::Supervise(args) => Ok(args.run()),
            Command::DemoServer(args) => done(args.run()),
            Command::Bench(args) => args.run(),
            Command::Check(args) => {
                let mut overrides = common.overrides();
                args.override_into(&mut overrides);
                args.run(Config::load(&Sources::of_process(overrides)))
            }
            Command::Serve(args) => {
                let mut overrides = common.overrides();
                args.override_into(&mut overrides)?;
                let (config, _logs) = configure(overrides)?;
                done(args.run(config, &common))
            }
            Command::Token(command) => {
                let (config, _logs) = configure(common.overrides())?;
                done(command.run(&config))
            }
            Command::Tasks(command) => {
                let (config, _logs) = configure(common.overrides())?;
                done(command.run(&config))
            }
            Command::Migrate(args) => {
                let (config, _logs) = configure(common.overrides())?;
                done(args.run(&config))
            }
        }
    }
}

impl Common {
    fn overrides(&self) -> Overrides {
        let url = self.database_url.iter().map(|url| ("--database-url", "database.url", url.clone()));
        Overrides { file: self.config.clone(), flags: url.collect(), upstreams: Vec::new() }
    }

    /// The same flags for a command that people are to type; without a password.
    fn again(&self) -> String {
        let mut words = Vec::new();
        if let Some(file) = &self.config {
            words.extend(["--config".to_owned(), file.display().to_string()]);
        }
        if let Some(url) = &self.database_url {
            words.extend(["--database-url".to_owned(), redact_url(url)]);
        }
        words.iter().map(|word| format!(" {}", shell_words::quote(word))).collect()
    }
}

/// Reads the configuration and starts logging as it says, for as long as the second is kept.
fn configure(overrides: Overrides) -> Result<(Config, Logs), ConfigError> {
    let config = Config::load(&Sources::of_process(overrides))?;
    let logs = logs::init(&config.log);
    Ok((config, logs))
}

/// Runs a command that either works or fails.
fn done(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(work).map(|()| ExitCode::SUCCESS)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
