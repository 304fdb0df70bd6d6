//! The one list of configuration keys. Everything else follows from it: which names the file and the environment may
//! use, how a value is read, what it is without one, and `docs/configuration.md`.
//!
//! To add a key: a line here, a field in its section's file.

use std::time::Duration;

use super::value::Kind;

mod tables;

pub use tables::{TENANT_KEYS, TOOL_KEYS, UPSTREAM_KEYS};

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Where it stands in the file: `section.name`, or the name alone in a repeated table.
    pub path: &'static str,
    pub kind: Kind,
    /// The value without any, as the file would have it; `None` is "not set".
    pub default: Option<&'static str>,
    pub doc: &'static str,
    /// Its value never appears in a message or a log.
    pub secret: bool,
}

impl Key {
    const fn new(path: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Self {
        Self { path, kind, default: Some(default), doc, secret: false }
    }

    const fn unset(path: &'static str, kind: Kind, doc: &'static str) -> Self {
        Self { path, kind, default: None, doc, secret: false }
    }

    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// The one environment variable of a key of [`KEYS`].
    #[must_use]
    pub fn variable(&self) -> String {
        format!("TASKHOLD_{}", self.path.to_uppercase().replace('.', "_"))
    }

    /// The section that it stands in, empty for the top of the file.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// Far beyond any sensible value, near enough that sums of a few cannot overflow.
const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);

const fn duration(min: Duration, max: Duration) -> Kind {
    Kind::Duration { min, max, none: false }
}

const fn duration_or_none(min: Duration, max: Duration) -> Kind {
    Kind::Duration { min, max, none: true }
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// The keys that have a variable each.
pub const KEYS: &[Key] = &[
    Key::new(
        "log",
        Kind::LogFilter,
        "info",
        "What is logged: a level (`error`, `warn`, `info`, `debug`, `trace`, `off`) or a list of `target=level`.",
    ),
    Key::new(
        "server.listen",
        Kind::Address,
        "127.0.0.1:8080",
        "Where to listen. Port 0 takes a free one. An address that other machines reach needs `auth.mode = \"token\"` or `\"oauth\"`.",
    ),
    Key::unset(
        "server.public_url",
        Kind::Url,
        "The URL under which clients reach the service, without a path after the host unless a proxy adds one. \
         URLs that the service sends out come from it; its host is an allowed host.",
    ),
    Key::new(
        "server.allowed_hosts",
        Kind::TextList,
        "",
        "Further host names that a request's `Host` may have, besides loopback names, the listen address and the host \
         of `server.public_url`.",
    ),
    Key::new(
        "server.allowed_origins",
        Kind::OriginList,
        "",
        "Origins of web pages that may call the service, such as `https://app.example.com`.",
    ),
    Key::new(
        "server.drain",
        duration(Duration::ZERO, DAY),
        "25s",
        "How long a stopping service lets running calls finish before it gives them back. It waits as long for answers that are being read, but not for a client that takes nothing of its answer for 3 s.",
    ),
    Key::new(
        "server.drain_delay",
        duration(Duration::ZERO, DAY),
        "0s",
        "How long a service that was asked to stop serves on as before, while `/readyz` says that it is not ready: the time that load balancers need to send their requests elsewhere. `server.drain` begins after it.",
    ),
    Key::new(
        "database.url",
        Kind::DatabaseUrl,
        "sqlite://taskhold.db",
        "The database: `sqlite://FILE` (relative to the working directory; `sqlite:///FILE` is absolute) or \
         `postgres://USER:PASSWORD@HOST/DATABASE`. A password in it is never shown.",
    ),
    Key::unset(
        "database.urls",
        Kind::PostgresUrls,
        "Several PostgreSQL servers of one database, instead of `database.url`: the first that takes writes is used, and \
         when it goes, or becomes a standby or read-only, the next one that does, without a restart. If `database.url` is \
         set too, it is the first of the list. See [databases.md](databases.md).",
    ),
    Key::new(
        "database.pooler",
        Kind::Choice(&["none", "transaction"]),
        "none",
        "What stands before PostgreSQL. `transaction`: a connection pooler that gives each transaction whichever \
         connection is free, such as PgBouncer with `pool_mode = transaction`. See [databases.md](databases.md#poolers).",
    ),
    Key::unset(
        "database.listen_url",
        Kind::PostgresUrls,
        "The PostgreSQL server itself, or several as in `database.urls`, to listen for hints of other nodes where \
         `database.url` leads to a pooler, through which none come. Without it nodes ask the database a little more often.",
    ),
    Key::unset(
        "database.schema",
        Kind::Identifier,
        "The PostgreSQL schema that holds the tables; the role's own search path when not set. Not for SQLite, and \
         not with `database.pooler = \"transaction\"`.",
    ),
    Key::new(
        "database.migrate",
        Kind::Choice(&["auto", "off"]),
        "auto",
        "`auto` brings the tables up to date at each start; `off` leaves that to `taskhold migrate` and refuses to \
         start on old tables.",
    ),
    Key::new(
        "database.max_connections",
        Kind::Count { min: 9, max: 1000 },
        "16",
        "The most connections to PostgreSQL of one process, all together: seven have one owner each, the others are a pool.",
    ),
    Key::new(
        "auth.mode",
        Kind::Choice(&["token", "oauth", "none"]),
        "token",
        "`token`: callers show an access token of this installation (`taskhold token create`). `oauth`: callers show one of \
         `oauth.issuer`; see [oauth.md](oauth.md). `none`: everybody who reaches the port is the same caller; tasks are not \
         listed.",
    ),
    Key::new(
        "auth.allow_remote_without_auth",
        Kind::Flag,
        "false",
        "Lets `auth.mode = \"none\"` listen on an address that other machines reach.",
    ),
    Key::unset(
        "oauth.issuer",
        Kind::Url,
        "The issuer of the access tokens, exactly as their `iss` has it. `auth.mode = \"oauth\"` needs it, and \
         `server.public_url`.",
    ),
    Key::unset(
        "oauth.audience",
        Kind::Text,
        "What the `aud` of an access token must have. When not set, the URL of the endpoint: `server.public_url` with `/mcp` \
         after it.",
    ),
    Key::unset(
        "oauth.jwks_url",
        Kind::Endpoint,
        "Where the issuer's signing keys are. When not set, its metadata say so (RFC 8414 or OpenID Connect Discovery).",
    ),
    Key::unset(
        "oauth.tenant_claim",
        Kind::Text,
        "The claim whose text names the caller's tenant, as `[tenants.NAME]` and limits mean it. A token without it is \
         refused then. When not set, callers have no tenant.",
    ),
    Key::unset(
        "oauth.client_claim",
        Kind::Text,
        "The claim that names the client, such as `client_id` or `azp`, if one user's tasks of one client are not to be seen \
         by another. A token without it is refused then. When not set, a user is the same caller by whichever client.",
    ),
    Key::new(
        "oauth.leeway",
        duration(Duration::ZERO, Duration::from_secs(300)),
        "5s",
        "By how much the issuer's clock may differ: a token counts so much longer than it says, and so much earlier.",
    ),
    Key::new(
        "oauth.require_scopes",
        Kind::Flag,
        "true",
        "Whether a token allows only what its scopes `tasks:read`, `tasks:write` and `tools:call` say. With `false`, for \
         issuers that cannot give such scopes, every good token allows all.",
    ),
    Key::new("tasks.enabled", Kind::Flag, "true", "Whether calls can be tasks at all."),
    Key::new(
        "tasks.default_ttl",
        duration_or_none(SECOND, CENTURY),
        "1h",
        "The time to live, from creation, of a task whose caller asks for none. `none` (for ever) needs \
         `tasks.max_ttl = \"none\"`. Without authentication one hour at most.",
    ),
    Key::new(
        "tasks.min_ttl",
        duration(Duration::ZERO, CENTURY),
        "10s",
        "The shortest time to live that is granted; shorter wishes are raised to it.",
    ),
    Key::new(
        "tasks.max_ttl",
        duration_or_none(SECOND, CENTURY),
        "24h",
        "The longest time to live that is granted; longer wishes are lowered to it. `none` grants any, also for ever.",
    ),
    Key::new(
        "tasks.min_retention",
        duration(Duration::ZERO, CENTURY),
        "10min",
        "How long an ended task stays readable at least, whatever its time to live.",
    ),
    Key::new(
        "tasks.hard_lifetime",
        duration(SECOND, CENTURY),
        "26h",
        "The age at which a task that has not ended is ended as failed. At least `tasks.max_ttl` + \
         `runner.hard_run_limit` + `tasks.min_retention`.",
    ),
    Key::new(
        "tasks.grace",
        duration(Duration::ZERO, DAY),
        "5s",
        "How long a call of an `optional` tool may run before it becomes a task, where the client leaves that to the service \
         (revision 2026-07-28 with the tasks extension). With `0s` it is a task at once.",
    ),
    Key::new(
        "tasks.poll_interval",
        duration(Duration::from_millis(1), Duration::from_secs(3600)),
        "1s",
        "How often clients are asked to poll.",
    ),
    Key::new(
        "tasks.input_timeout",
        duration_or_none(Duration::from_millis(1), CENTURY),
        "none",
        "How long a task waits for each answer of its caller. Past it the tool gets an error and goes on. With `none` the run limit alone ends the waiting.",
    ),
    Key::new(
        "tasks.round_timeout",
        duration(SECOND, DAY),
        "10min",
        "How long a call that is no task waits for its client to come back with what it asked (`input_required` of revision \
         2026-07-28). Past it the call is cancelled.",
    ),
    Key::new(
        "tasks.require_name_header",
        Kind::Flag,
        "false",
        "Whether `tasks/get`, `tasks/update` and `tasks/cancel` of revision 2026-07-28 are refused without the `Mcp-Name` \
         header, by which proxies route them. One that names another task is always refused.",
    ),
    Key::new("tasks.page_size", Kind::Count { min: 1, max: 200 }, "50", "Tasks per page of `tasks/list`."),
    Key::new(
        "runner.slots",
        Kind::Count { min: 1, max: 100_000 },
        "256",
        "How many tasks one process runs at a time; more wait their turn.",
    ),
    Key::new(
        "runner.asking",
        Kind::Count { min: 0, max: 1_000_000 },
        "10000",
        "How many tasks of one process may wait for their callers' input without holding a slot; more keep theirs.",
    ),
    Key::new(
        "runner.run_limit",
        duration(SECOND, CENTURY),
        "30min",
        "How long one attempt of a call may run, where its tool has no limit of its own.",
    ),
    Key::new("runner.hard_run_limit", duration(SECOND, CENTURY), "1h", "The most that any tool's `run_limit` may be."),
    Key::new(
        "runner.attempts",
        Kind::Count { min: 1, max: 100 },
        "3",
        "How often a call is tried, the first time included, where trying again is safe.",
    ),
    Key::new("limits.body", Kind::Size { min: KIB, max: GIB }, "4 MiB", "The largest request body."),
    Key::new(
        "limits.arguments",
        Kind::Size { min: KIB, max: GIB },
        "1 MiB",
        "The largest `arguments` of a call. At most `limits.body`.",
    ),
    Key::new("limits.result", Kind::Size { min: KIB, max: GIB }, "16 MiB", "The largest result of a call."),
    Key::new(
        "limits.message",
        Kind::Size { min: 64, max: 64 * KIB },
        "512",
        "The longest status message; longer ones are cut.",
    ),
    Key::new(
        "limits.question",
        Kind::Size { min: KIB, max: GIB },
        "1 MiB",
        "The largest question that a tool may ask its caller; a larger one is an error to the tool.",
    ),
    Key::new(
        "limits.answer",
        Kind::Size { min: KIB, max: GIB },
        "1 MiB",
        "The largest answer to a question; a larger one is refused like one that does not fit.",
    ),
    Key::new(
        "limits.open_questions",
        Kind::Count { min: 1, max: 10_000 },
        "32",
        "The most unanswered questions of one call, a task or not; more are errors to the tool.",
    ),
    Key::new(
        "limits.questions",
        Kind::Count { min: 1, max: 1_000_000 },
        "1000",
        "The most questions of one task in its life; more are errors to the tool.",
    ),
    Key::new(
        "limits.parked_calls",
        Kind::Count { min: 1, max: 1_000_000 },
        "1000",
        "The most calls of one caller that are no tasks and wait for their client to come back with what they asked; one more \
         is refused when it asks, and cancelled.",
    ),
    Key::new(
        "limits.refused_answers",
        Kind::Count { min: 0, max: 100 },
        "3",
        "How often a question is asked again after an answer that does not fit; then the tool gets an error.",
    ),
    Key::unset(
        "limits.slots",
        Kind::Count { min: 1, max: 1_000_000 },
        "The most tasks of one caller that run at once, on all nodes together; more wait in the queue, also while slots are \
         free. Unlimited when not set: then slots are shared fairly between callers.",
    ),
    Key::new(
        "limits.queued",
        Kind::Count { min: 1, max: 10_000_000 },
        "100000",
        "The most tasks of one caller that wait for a slot; one more is refused. It may be overrun by what other nodes make \
         within a second.",
    ),
    Key::new(
        "limits.progress_interval",
        duration(Duration::from_millis(1), Duration::from_secs(3600)),
        "100ms",
        "The least time between two progress notifications of one call, after 16 that may come at once; what comes faster \
         is left out, but for the newest. Those of a task are at least 500 ms apart.",
    ),
    Key::new(
        "limits.sessions",
        Kind::Count { min: 1, max: 1_000_000 },
        "1000",
        "The most sessions of one caller; the one unused the longest makes room for a new one, unless its stream is open. Use is noted every 10 minutes.",
    ),
    Key::new(
        "limits.subscriptions",
        Kind::Count { min: 1, max: 1_000_000 },
        "1000",
        "The most resources that one session, or one stream of a client without sessions, may be subscribed to.",
    ),
    Key::new(
        "limits.streams",
        Kind::Count { min: 1, max: 1_000_000 },
        "1000",
        "The most open streams, waiting requests, running calls that are no tasks, and results over 64 KiB that are being read, of one caller on one process.",
    ),
    Key::new(
        "limits.connections",
        Kind::Count { min: 1, max: 1_000_000 },
        "10000",
        "The most open connections of one process.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::value::Raw;
    use super::*;

    // req: OPS-02
    #[test]
    fn each_key_has_one_variable_of_its_own() {
        let variables: HashSet<String> = KEYS.iter().map(Key::variable).collect();
        assert_eq!(variables.len(), KEYS.len());
        let key = KEYS.iter().find(|key| key.path == "auth.allow_remote_without_auth").unwrap();
        assert_eq!(key.variable(), "TASKHOLD_AUTH_ALLOW_REMOTE_WITHOUT_AUTH");
    }

    #[test]
    fn each_default_is_a_value_that_its_key_allows() {
        for key in [KEYS, UPSTREAM_KEYS, TOOL_KEYS, TENANT_KEYS].concat() {
            if let Some(default) = key.default {
                key.kind.read(&Raw::Text(default.to_owned())).unwrap_or_else(|why| panic!("{}: {why}", key.path));
            }
        }
    }
}
