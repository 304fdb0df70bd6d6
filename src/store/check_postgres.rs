//! What would stand in the way of a start on PostgreSQL: the servers, the schema, and the rights of the role.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection as _, Row as _};
use tokio::time::timeout;

use super::check::Report;
use super::check_listen;
use super::connect::connect_to;
use super::migrate::{postgres_migrator, tables};
use super::open::OpenError;
use super::open_postgres::{base_options, check_server, connect};
use super::options::{DatabaseOptions, Pooler};
use super::postgres::PostgresDialect;
use super::schema::{Found, MARK, NOTES, has_schema};
use super::sql::Fault;
use super::targets::Targets;

/// Of a standby, or of one that was set aside; and by which it is told from every other server.
const STATE: &str = "SELECT pg_is_in_recovery()::text, current_setting('transaction_read_only'), \
                     pg_postmaster_start_time()::text";
/// Who we are, and what may be made where.
const ROLE: &str = "
    SELECT current_user::text, current_schema()::text,
        COALESCE(has_schema_privilege(current_schema(), 'CREATE'), FALSE)::text,
        has_database_privilege(current_database(), 'CREATE')::text";
/// The rights that the role lacks on tables that lie where ours do.
const LACKING: &str = "
    SELECT c.relname::text, r.name, n.nspname::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN (VALUES (1, 'SELECT'), (2, 'INSERT'), (3, 'UPDATE'), (4, 'DELETE')) AS r (place, name)
    WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('schema_info')) AND c.relkind IN ('r', 'p')
        AND NOT has_table_privilege(c.oid, r.name)
    ORDER BY c.relname, r.place";
/// The tables there that only their owner may change.
const OTHERS: &str = "
    SELECT c.relname::text, pg_get_userbyid(c.relowner)::text
    FROM pg_class c
    WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('schema_info')) AND c.relkind IN ('r', 'p')
        AND NOT pg_has_role(c.relowner, 'USAGE')
    ORDER BY c.relname";

/// How long a server may take for its answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a server stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It takes writes. Since when it runs, by which it is told from every other one.
    Primary(String),
    Standby,
    /// It follows nobody, and was set to take no writes.
    ReadOnly,
    /// Why there is no connection.
    Away(String),
}

/// Whether the tables are up to date, and the role can work with them.
pub async fn check(options: &DatabaseOptions, targets: &Targets<PgConnectOptions>, report: &mut Report) -> bool {
    if !servers(options, targets, report).await {
        return false;
    }
    let main = match connected(options, targets).await {
        Ok(main) => main,
        Err(error) => {
            report.bad_database(error);
            return false;
        }
    };
    report.good_database();
    let looked = timeout(PATIENCE, schema(options, main, report)).await;
    match looked.unwrap_or_else(|_| Err(Fault::link("no answer in time").into())) {
        Ok(None) => false,
        Ok(Some(mut main)) => {
            check_listen::check(options, &mut main, report).await;
            // A failed goodbye changes nothing.
            let _ = main.close().await;
            true
        }
        Err(error) => {
            report.bad("migrations", format!("it cannot be told which are missing: {error}"));
            false
        }
    }
}

/// Whether one of the servers can be used, as far as that is known.
async fn servers(options: &DatabaseOptions, targets: &Targets<PgConnectOptions>, report: &mut Report) -> bool {
    let states = join_all((0..targets.len()).map(|at| state(base_options(options, targets.options(at))))).await;
    if !options.urls.is_empty() {
        for (at, state) in states.iter().enumerate() {
            let what = format!("database server {}", targets.name(at));
            match state {
                State::Primary(_) => report.good(what, "primary: it takes writes"),
                State::Standby => report.good(what, "standby"),
                State::ReadOnly => report.good(what, "read-only: default_transaction_read_only is on"),
                State::Away(why) => {
                    let todo = "bring it back, correct its URL, or take it out of database.urls";
                    report.bad(what, format!("unreachable: {why}: {todo}"));
                }
            }
        }
    }
    // Several poolers may lead to one server.
    let primaries: BTreeSet<&String> =
        states.iter().filter_map(|state| if let State::Primary(since) = state { Some(since) } else { None }).collect();
    if primaries.len() > 1 {
        report.bad_database(
            "more than one server takes writes, so that nodes may be divided between them: make a standby of all but one \
             (docs/databases.md, After a failover)",
        );
    }
    // A pooler may have names of its own.
    let names: BTreeSet<&str> = (0..targets.len()).filter_map(|at| targets.options(at).get_database()).collect();
    if names.len() > 1 && options.pooler == Pooler::None {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        report.bad_database(format!(
            "database.urls name several databases ({names}), so that nodes may be divided between them: name one, on each server"
        ));
    }
    let is_any = |wanted: &State| states.contains(wanted);
    if !primaries.is_empty() || !(is_any(&State::Standby) || is_any(&State::ReadOnly)) {
        return true;
    }
    report.bad_database(match (options.urls.len(), is_any(&State::Standby)) {
        (0 | 1, true) => {
            "the server is a standby, which takes no writes, so that serve cannot start: name the primary, or all servers in \
             database.urls, or promote it"
        }
        (0 | 1, false) => {
            "the server takes no writes, because default_transaction_read_only is on, so that serve cannot start: name the \
             primary, or all servers in database.urls, or set it off"
        }
        _ => {
            "none of the servers takes writes, so that serve cannot start: promote one, or add the primary to database.urls"
        }
    });
    false
}

async fn state(target: PgConnectOptions) -> State {
    let asked = async {
        let mut connection = connect_to::<PostgresDialect>(&target, false).await?;
        let state = state_of(&mut connection).await?;
        // A failed goodbye changes nothing.
        let _ = connection.close().await;
        Ok::<_, Fault>(state)
    };
    let asked = timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(Fault::link("no answer in time")));
    asked.unwrap_or_else(|fault| State::Away(fault.detail().to_owned()))
}

pub(super) async fn state_of(connection: &mut PgConnection) -> Result<State, sqlx::Error> {
    let row = sqlx::raw_sql(STATE).fetch_one(connection).await?;
    let (recovers, read_only): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    Ok(match (recovers.as_str(), read_only.as_str()) {
        ("true", _) => State::Standby,
        (_, "on") => State::ReadOnly,
        _ => State::Primary(row.try_get(2)?),
    })
}

/// As a start connects.
async fn connected(options: &DatabaseOptions, targets: &Targets<PgConnectOptions>) -> Result<PgConnection, OpenError> {
    check_server(options, targets).await?;
    connect(&targets.map(|target| base_options(options, target))).await
}

/// Looks at the tables. Answers the connection if they are up to date and the role can work with them.
async fn schema(
    options: &DatabaseOptions,
    mut main: PgConnection,
    report: &mut Report,
) -> Result<Option<PgConnection>, OpenError> {
    let role = Role::of(&mut main).await?;
    let lacking = role.lacking(&mut main).await?;
    let found = match Found::in_postgres(&mut main).await {
        Ok(found) => found,
        Err(error) => {
            // Who may not even read the notes is told which rights are missing.
            let Some(lacking) = lacking else { return Err(error) };
            report.bad(role.what(), lacking);
            return Ok(None);
        }
    };
    let pending = match found.pending() {
        Ok(pending) => pending,
        Err(error) => {
            report.bad("migrations", error);
            return Ok(None);
        }
    };
    let obstacle = if pending.is_empty() { None } else { role.obstacle(&mut main, options, found.is_ours).await? };
    report.migrations(&pending, &found.changed(&postgres_migrator()), obstacle.as_deref());
    let can_work = lacking.is_none();
    match lacking {
        Some(lacking) => report.bad(role.what(), lacking),
        None if found.is_ours => report.good(role.what(), ""),
        None => {}
    }
    Ok((pending.is_empty() && can_work).then_some(main))
}

/// Who we are to the server.
struct Role {
    name: String,
    /// Where new tables go; `None` if there is no such place.
    schema: Option<String>,
    may_make_tables: bool,
    may_make_schemas: bool,
}

impl Role {
    async fn of(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let row = sqlx::raw_sql(ROLE).fetch_one(connection).await?;
        let is_true = |at: usize| row.try_get::<String, _>(at).map(|text| text == "true");
        Ok(Self {
            name: row.try_get(0)?,
            schema: row.try_get(1)?,
            may_make_tables: is_true(2)?,
            may_make_schemas: is_true(3)?,
        })
    }

    fn what(&self) -> String {
        format!("rights of the role {}", self.name)
    }

    /// What it may not do with the tables that are there, and should.
    async fn lacking(&self, connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
        let (ours, mut place) = (tables(), String::new());
        let mut lacking: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in sqlx::raw_sql(LACKING).fetch_all(connection).await? {
            let (table, right): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let is_needed = match table.as_str() {
                NOTES => right == "SELECT",
                MARK => ["SELECT", "UPDATE"].contains(&right.as_str()),
                table => ours.contains(&table),
            };
            if is_needed {
                place = row.try_get(2)?;
                lacking.entry(table).or_default().push(right);
            }
        }
        if lacking.is_empty() {
            return Ok(None);
        }
        // Mostly the same is missing everywhere.
        let mut tables_by_rights: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (table, rights) in lacking {
            tables_by_rights.entry(rights.join(", ")).or_default().push(table);
        }
        let parts = tables_by_rights.into_iter().map(|(rights, tables)| format!("{rights} on {}", tables.join(", ")));
        Ok(Some(format!(
            "it lacks {}: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place} TO {} (docs/databases.md, \
             Roles)",
            parts.collect::<Vec<_>>().join("; "),
            self.name
        )))
    }

    /// Why it cannot migrate, if it cannot.
    async fn obstacle(
        &self,
        connection: &mut PgConnection,
        options: &DatabaseOptions,
        tables_are_there: bool,
    ) -> Result<Option<String>, sqlx::Error> {
        let name = &self.name;
        match (&self.schema, &options.schema) {
            (Some(_), _) if self.may_make_tables => {}
            (Some(schema), _) => {
                return Ok(Some(format!("the role {name} may not make tables in the schema {schema}")));
            }
            (None, Some(wanted)) if has_schema(connection, wanted).await? => {
                return Ok(Some(format!("the role {name} may not use the schema {wanted}")));
            }
            (None, Some(wanted)) if !self.may_make_schemas => {
                return Ok(Some(format!("the role {name} may not make the schema {wanted}")));
            }
            (None, Some(_)) => {}
            (None, None) => {
                return Ok(Some(format!("the search_path of the role {name} has no schema that it may use")));
            }
        }
        if !tables_are_there {
            return Ok(None);
        }
        let ours = tables();
        for row in sqlx::raw_sql(OTHERS).fetch_all(connection).await? {
            let (table, owner): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            if ours.contains(&table.as_str()) || table == NOTES {
                return Ok(Some(format!("the role {name} may not change the table {table} of the role {owner}")));
            }
        }
        Ok(None)
    }
}
