//! Whether `database.listen_url` is of use: what is said at the database has to be heard there, as nodes hear each other.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection as _, Row as _};
use tokio::time::timeout;

use super::check::Report;
use super::check_postgres::{State, state_of};
use super::connect::connect_to;
use super::dialect::Dialect as _;
use super::hints::{self, Origin};
use super::open_postgres::{base_options, is_of_a_pooler, is_pooler};
use super::options::DatabaseOptions;
use super::postgres::{CHANNEL, PostgresDialect, listen_at};
use super::sql::{Fault, args};
use super::wakeup::{Ear, OPENING, PROOF};

/// Of all that is done with one server: more than its parts, which have limits of their own, usually take.
const PATIENCE: Duration = Duration::from_secs(20);
const POOLER: &str = "it leads to a connection pooler, through which nothing is heard: name the server itself";

/// What a server to listen at is good for.
enum Verdict {
    Heard,
    /// It may become of use.
    Standby,
    /// What to do.
    Useless(String),
}

pub async fn check(options: &DatabaseOptions, main: &mut PgConnection, report: &mut Report) {
    let listeners = match options.named_listeners() {
        Ok(Some(listeners)) => listeners,
        Ok(None) => return,
        Err(error) => return report.bad("database.listen_url", error),
    };
    let mut verdicts = Vec::new();
    for at in 0..listeners.len() {
        verdicts.push(listen(main, &base_options(options, listeners.options(at))).await);
    }
    let is_heard = verdicts.iter().any(|verdict| matches!(verdict, Verdict::Heard));
    for (at, verdict) in verdicts.into_iter().enumerate() {
        let what = format!("database.listen_url {}", listeners.name(at));
        match verdict {
            Verdict::Heard => report.good(what, "what is said at the database is heard there"),
            Verdict::Standby if is_heard => report.good(what, "standby"),
            Verdict::Standby => {
                report
                    .bad(what, "the server is a standby, where nothing can be heard: name the primary, or all servers");
            }
            Verdict::Useless(why) => report.bad(what, why),
        }
    }
}

async fn listen(main: &mut PgConnection, server: &PgConnectOptions) -> Verdict {
    let looked = timeout(PATIENCE, look(main, server)).await;
    match looked.unwrap_or_else(|_| Err(Fault::link("no answer in time"))) {
        Ok(verdict) => verdict,
        Err(fault) if is_of_a_pooler(&fault) => Verdict::Useless(POOLER.to_owned()),
        Err(fault) => Verdict::Useless(format!(
            "it cannot be listened at: {}: correct the URL, or bring the server back; until then nodes ask the database \
             more often",
            fault.detail()
        )),
    }
}

async fn look(main: &mut PgConnection, server: &PgConnectOptions) -> Result<Verdict, Fault> {
    let mut connection = connect_to::<PostgresDialect>(server, false).await?;
    if state_of(&mut connection).await? == State::Standby {
        return Ok(Verdict::Standby);
    }
    let verdict = if channel(&mut connection).await? != channel(main).await? {
        Verdict::Useless(
            "it leads to another database or schema than database.url: name the same database, and for the role the same \
             search_path"
                .to_owned(),
        )
    } else if is_pooler(server).await? {
        // Before anything is listened to: its other clients would be sent what we asked for.
        Verdict::Useless(POOLER.to_owned())
    } else if is_heard(main, server).await? {
        Verdict::Heard
    } else {
        Verdict::Useless(
            "what is said at database.url is not heard there: it leads to another server or database; name the server that \
             database.url leads to"
                .to_owned(),
        )
    };
    let _ = connection.close().await;
    Ok(verdict)
}

/// The channel of the tables that a connection leads to; `None` if they are not there.
async fn channel(connection: &mut PgConnection) -> Result<Option<String>, Fault> {
    match sqlx::raw_sql(CHANNEL).fetch_optional(connection).await {
        Ok(row) => Ok(row.map(|row| row.try_get(0)).transpose()?),
        Err(sqlx::Error::Database(refusal)) if refusal.code().as_deref() == Some("42P01") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Says what nodes say when they have nothing to say, and waits as long as they do to hear it.
async fn is_heard(main: &mut PgConnection, server: &PgConnectOptions) -> Result<bool, Fault> {
    let mut ear = timeout(OPENING, listen_at(server)).await.map_err(|_| Fault::link("no connection in time"))??;
    let origin = Origin::new();
    let mut transaction = main.begin().await?;
    for text in hints::write(origin, []) {
        let notify = PostgresDialect::NOTIFY.unwrap_or_default();
        PostgresDialect::fetch(&mut *transaction, notify, args![text], false).await?;
    }
    transaction.commit().await?;
    match timeout(PROOF, hear(&mut *ear, origin)).await {
        Ok(Err(fault)) => Err(fault),
        heard => Ok(heard.is_ok()),
    }
}

async fn hear(ear: &mut dyn Ear, origin: Origin) -> Result<(), Fault> {
    while hints::read(&ear.next().await?).is_none_or(|(said_by, _)| said_by != origin) {}
    Ok(())
}
