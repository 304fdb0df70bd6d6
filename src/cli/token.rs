//! `taskhold token`: access tokens.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use secrecy::ExposeSecret;
use serde::Serialize;

use super::output;
use crate::app;
use crate::auth::issue::{Issued, Issuer, NewToken};
use crate::config::{AuthMode, Config};
use crate::domain::clock::{Clock, SystemClock, Timestamp};
use crate::domain::ids::{ContextId, TokenId};
use crate::store::TokenRecord;

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create an access token and print it: the only line on standard output, and the only time it is shown
    ///
    /// Each token has a context of its own, so that its tasks are seen by it alone, unless --context adds it to another
    /// token's. Where there is no database yet one is made, and standard error says which.
    Create(Create),
    /// List all tokens; the tokens themselves cannot be shown again
    List(List),
    /// Revoke a token: every node refuses it within 5 seconds; its tasks stay with its context
    Revoke(Revoke),
    /// Create a token for the same context and end the old one
    ///
    /// The new one has the old one's name and length of life. It is printed as by `token create`.
    Rotate(Rotate),
}

#[derive(Debug, Args)]
pub(super) struct Create {
    /// What it is for, for people
    #[arg(long, value_parser = label)]
    name: String,
    /// The context that it shares with other tokens, as `token list` shows it
    #[arg(long, value_name = "ID")]
    context: Option<ContextId>,
    /// The tenant that it belongs to
    #[arg(long, value_parser = label)]
    tenant: Option<String>,
    /// How long it is good, such as 30d or 12h; without end when not given
    #[arg(long, value_name = "DURATION", value_parser = lifetime)]
    expires: Option<Duration>,
    /// Print one JSON object: token, id, context, tenant, name, created, expires
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// Print a JSON array of objects: id, context, tenant, name, state, created, expires, revoked
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Revoke {
    /// The token's id, as `token list` shows it
    id: TokenId,
    /// Print one JSON object: id, state
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Rotate {
    /// The old token's id, as `token list` shows it
    id: TokenId,
    /// How long the old token stays good beside the new one
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    grace: Duration,
    /// Print one JSON object: token, id, context, tenant, name, created, expires
    #[arg(long)]
    json: bool,
}

impl TokenCommand {
    pub async fn run(self, config: &Config) -> anyhow::Result<()> {
        let (store, made) = match self {
            // The first step of many: a token before the first start.
            Self::Create(_) => app::open_or_make_store(config).await?,
            Self::List(_) | Self::Revoke(_) | Self::Rotate(_) => (app::open_store_as_it_is(config).await?, None),
        };
        if let Some(made) = made {
            output::complain(&format!("made {made}: the token is for services that use it, and for no others"));
        }
        let clock = SystemClock::new();
        let makes_one = matches!(self, Self::Create(_) | Self::Rotate(_));
        let result = self.run_on(&store.system(), clock).await;
        store.system().close().await;
        if result.is_ok() && makes_one && config.auth.mode == AuthMode::Oauth {
            output::complain(
                "auth.mode = \"oauth\": a service of this configuration takes tokens of oauth.issuer, and not this one",
            );
        }
        result
    }

    async fn run_on(self, store: &crate::store::SystemStore, clock: Arc<SystemClock>) -> anyhow::Result<()> {
        let now = clock.now();
        match self {
            Self::List(list) => {
                let mut records = store.all_tokens().await?;
                records.sort_by_key(|record| (record.created, record.id));
                list.print(&records, now)
            }
            Self::Create(create) => {
                let issuer = Issuer::open(store.clone(), clock).await?;
                let json = create.json;
                let new = NewToken {
                    name: create.name,
                    context: create.context,
                    tenant: create.tenant,
                    lifetime: create.expires,
                };
                print_issued(&issuer.mint(new).await?, json)
            }
            Self::Revoke(revoke) => {
                Issuer::open(store.clone(), clock).await?.revoke(revoke.id).await?;
                if revoke.json {
                    return output::json(&serde_json::json!({ "id": revoke.id.to_string(), "state": "revoked" }));
                }
                output::complain(&format!("revoked {}", revoke.id));
                Ok(())
            }
            Self::Rotate(rotate) => {
                let issued = Issuer::open(store.clone(), clock).await?.rotate(rotate.id, rotate.grace).await?;
                print_issued(&issued, rotate.json)
            }
        }
    }
}

impl List {
    fn print(&self, records: &[TokenRecord], now: Timestamp) -> anyhow::Result<()> {
        if self.json {
            return output::json(&records.iter().map(|record| Shown::new(record, now)).collect::<Vec<_>>());
        }
        let rows: Vec<_> = records
            .iter()
            .map(|record| {
                let shown = Shown::new(record, now);
                [
                    shown.id,
                    shown.state.to_owned(),
                    shown.name,
                    shown.tenant.unwrap_or_default(),
                    shown.context,
                    shown.created,
                    shown.expires.unwrap_or_default(),
                ]
            })
            .collect();
        Ok(output::table(["ID", "STATE", "NAME", "TENANT", "CONTEXT", "CREATED", "EXPIRES"], &rows)?)
    }
}

/// A token as people and programs read it.
#[derive(Serialize)]
struct Shown {
    id: String,
    context: String,
    tenant: Option<String>,
    name: String,
    state: &'static str,
    created: String,
    expires: Option<String>,
    revoked: Option<String>,
}

impl Shown {
    fn new(record: &TokenRecord, now: Timestamp) -> Self {
        let state = match (record.revoked, record.expires) {
            (Some(_), _) => "revoked",
            (None, Some(expires)) if expires <= now => "expired",
            (None, _) => "active",
        };
        Self {
            id: record.id.to_string(),
            context: record.context.to_string(),
            tenant: (!record.tenant.is_empty()).then(|| record.tenant.clone()),
            name: record.name.clone(),
            state,
            created: record.created.to_rfc3339(),
            expires: record.expires.map(Timestamp::to_rfc3339),
            revoked: record.revoked.map(Timestamp::to_rfc3339),
        }
    }
}

/// Something that a person can recognize in a list.
fn label(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err("expected a text that is not empty and has no control characters");
    }
    Ok(text.to_owned())
}

fn lifetime(text: &str) -> Result<Duration, &'static str> {
    duration(text).and_then(|duration| if duration.is_zero() { Err("expected more than 0s") } else { Ok(duration) })
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "expected a duration such as 30d, 12h or 1h 30min")
}

fn print_issued(issued: &Issued, json: bool) -> anyhow::Result<()> {
    let (token, record) = (issued.token.expose_secret(), &issued.record);
    let shown = Shown::new(record, record.created);
    if json {
        return output::json(&serde_json::json!({
            "token": token, "id": shown.id, "context": shown.context, "tenant": shown.tenant, "name": shown.name,
            "created": shown.created, "expires": shown.expires,
        }));
    }
    output::line(token)?;
    let until = shown.expires.map_or_else(|| "without end".to_owned(), |expires| format!("until {expires}"));
    output::complain(&format!(
        "created token {} of context {}, good {until}; it is not shown again",
        shown.id, shown.context
    ));
    Ok(())
}
