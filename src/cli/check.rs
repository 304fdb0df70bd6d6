//! `taskhold check`: what would stand in the way of `serve`.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::output;
use crate::app;
use crate::config::{AuthMode, Config, ConfigError, Overrides, find_program};
use crate::domain::clock::SystemClock;
use crate::executor::Catalogue as _;
use crate::executor::shelf::Clash;
use crate::executor::upstream::{LeftOut, Status};
use crate::store;

/// How long all upstreams together may take to list their tools; a first start may download them.
const PATIENCE: Duration = Duration::from_secs(90);

const NO_UPSTREAMS: &str = "none is configured, so there are no tools: add [[upstreams]] to taskhold.toml, or give \
                            --upstream NAME='COMMAND LINE' or NAME=URL";

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Check this upstream too, given as to `serve`; may be repeated
    #[arg(long = "upstream", value_name = "NAME=COMMAND LINE")]
    upstreams: Vec<String>,
    /// Print a JSON array of objects: what, ok, detail
    #[arg(long)]
    json: bool,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    ok: bool,
    /// What was found, or what to do.
    detail: String,
}

impl CheckArgs {
    pub fn override_into(&self, overrides: &mut Overrides) {
        overrides.upstreams.clone_from(&self.upstreams);
    }

    pub fn run(self, loaded: Result<Config, ConfigError>) -> anyhow::Result<ExitCode> {
        let findings = match loaded {
            Err(error) => error.problems().iter().map(|problem| Finding::bad("configuration", problem)).collect(),
            Ok(config) => super::runtime()?.block_on(findings(&config)),
        };
        if self.json {
            output::json(&findings)?;
        } else {
            for Finding { what, ok, detail } in &findings {
                let separator = if detail.is_empty() { "" } else { ": " };
                let line = format!("{what}: {}{separator}{detail}", if *ok { "ok" } else { "to do" });
                output::line(&output::plain(&line))?;
            }
        }
        Ok(if findings.iter().all(|finding| finding.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = vec![Finding::good("configuration", "")];
    if config.auth.mode == AuthMode::Oauth {
        findings.push(check_issuer(config).await);
    }
    let database = &config.database;
    let checked = store::check(&database.options(), &database.shown_url(), database.auto_migrate).await;
    findings.extend(checked.findings.into_iter().map(Finding::from));
    if config.upstreams.is_empty() {
        findings.push(Finding::bad("upstreams", NO_UPSTREAMS));
    } else if let Some(missing) = missing_programs(config) {
        findings.extend(missing);
    } else if checked.usable {
        match check_upstreams(config).await {
            Ok(tried) => findings.extend(tried),
            Err(error) => findings.push(Finding::bad("upstreams", format!("they cannot be tried: {error:#}"))),
        }
    } else {
        let later = "not tried: that takes tables that are up to date, by taskhold migrate or a start of taskhold serve, and \
                     the rights to use them";
        findings.push(Finding::good("upstreams", later));
    }
    findings
}

impl Finding {
    fn good(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { what: what.into(), ok: true, detail: detail.into() }
    }

    fn bad(what: impl Into<String>, detail: impl Display) -> Self {
        Self { what: what.into(), ok: false, detail: detail.to_string() }
    }
}

/// Fetches the issuer's signing keys once.
async fn check_issuer(config: &Config) -> Finding {
    let rules = app::oauth_rules(config);
    let what = format!("issuer {}", rules.issuer);
    match rules.try_keys().await {
        Ok(1) => Finding::good(what, "1 signing key"),
        Ok(count) => Finding::good(what, format!("{count} signing keys")),
        Err(why) => Finding::bad(what, why),
    }
}

impl From<store::Finding> for Finding {
    fn from(store::Finding { what, ok, detail }: store::Finding) -> Self {
        Self { what, ok, detail }
    }
}

/// `None` if every upstream's program is there.
fn missing_programs(config: &Config) -> Option<Vec<Finding>> {
    let missing: Vec<Finding> = config
        .upstreams
        .iter()
        .filter_map(|upstream| {
            // One with a URL has no command.
            let program = upstream.command.first().filter(|program| find_program(program).is_none())?;
            let todo = format!("the program {program:?} is not found: install it or correct the command");
            Some(Finding::bad(format!("upstream {}", upstream.name), todo))
        })
        .collect();
    (!missing.is_empty()).then_some(missing)
}

/// Starts each upstream once and asks for its tools, as `serve` would.
async fn check_upstreams(config: &Config) -> anyhow::Result<Vec<Finding>> {
    let store = app::open_store_as_it_is(config).await?;
    let upstreams = app::start_upstreams(config, &store, SystemClock::new()).await?;
    let settled = tokio::time::timeout(PATIENCE, upstreams.settled()).await;
    let mut findings = Vec::new();
    for (name, status) in upstreams.status() {
        let endpoint = upstreams.endpoint(&name);
        let what = endpoint.map_or_else(|| format!("upstream {name}"), |url| format!("upstream {name} at {url}"));
        findings.push(match status.problem {
            Some(problem) => {
                let stderr = status.stderr.last().map(|line| format!("; it last wrote: {line}"));
                Finding::bad(what, format!("{problem}{}", stderr.unwrap_or_default()))
            }
            None if settled.is_err() => Finding::bad(what, "it did not answer in time: try it by hand"),
            None => Finding::good(what, what_it_has(&status)),
        });
        for tool in status.unlisted {
            let todo = "it is configured in [upstreams.tools], and the upstream does not list it: correct the name, or \
                        take it out";
            findings.push(Finding::bad(format!("upstream {name}, tool {tool}"), todo));
        }
        for LeftOut { kind, name: item, why } in status.left_out {
            findings.push(Finding::bad(format!("upstream {name}, {kind} {item}"), format!("not offered: {why}")));
        }
    }
    for Clash { upstream, item, kept_by } in upstreams.shelf().clashes() {
        let why = format!("not offered: the upstream {kept_by} has it too and stands first in the configuration");
        findings.push(Finding::good(format!("upstream {upstream}, resource {item}"), why));
    }
    upstreams.stop().await;
    store.system().close().await;
    Ok(findings)
}

/// The revision that it speaks, its tools, and of the rest what there is.
fn what_it_has(status: &Status) -> String {
    let counts = [
        (status.tools, "tool"),
        (status.prompts, "prompt"),
        (status.resources, "resource"),
        (status.templates, "resource template"),
    ];
    let told = counts.into_iter().filter(|(count, what)| *count > 0 || *what == "tool");
    let counted = told.map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
    std::iter::once(format!("revision {}", status.revision)).chain(counted).collect::<Vec<_>>().join(", ")
}
