//! How to reach the database.

use std::path::PathBuf;
use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use super::open::OpenError;
use super::targets::{Server, Targets};

/// What the configuration says of the database.
#[derive(Debug, Clone)]
pub struct DatabaseOptions {
    /// `sqlite://PATH` or `postgres://...`; may hold a password.
    pub url: SecretString,
    /// Several PostgreSQL servers of one database, instead of `url`: the first that takes writes is used.
    pub urls: Vec<SecretString>,
    /// PostgreSQL servers themselves, where `url` or `urls` lead to a pooler: to listen for hints.
    pub listen_urls: Vec<SecretString>,
    pub pooler: Pooler,
    /// The PostgreSQL schema to work in; without one, the role's `search_path` decides.
    pub schema: Option<String>,
    /// The most connections to PostgreSQL of this process.
    pub max_connections: u32,
}

/// What stands between us and PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooler {
    #[default]
    None,
    /// A pooler that gives each transaction whichever connection is free. Nothing of a session lasts.
    Transaction,
}

/// Where the database is.
pub(super) enum Target {
    Sqlite(PathBuf),
    Postgres(Targets<PgConnectOptions>),
}

impl DatabaseOptions {
    /// One server or file, with 16 connections.
    #[must_use]
    pub fn new(url: impl Into<SecretString>) -> Self {
        Self {
            url: url.into(),
            urls: Vec::new(),
            listen_urls: Vec::new(),
            pooler: Pooler::None,
            schema: None,
            max_connections: 16,
        }
    }

    pub(super) fn target(&self) -> Result<Target, OpenError> {
        if !self.urls.is_empty() {
            return self.servers(&self.urls).map(Target::Postgres);
        }
        let url = self.url.expose_secret();
        match scheme(url) {
            Some("sqlite") => {
                if self.schema.is_some() {
                    return Err(OpenError::Url("a schema can be chosen on PostgreSQL only".to_owned()));
                }
                if self.pooler != Pooler::None {
                    return Err(OpenError::Url("a pooler stands before PostgreSQL only".to_owned()));
                }
                if url.contains(":memory:") || url.contains("mode=memory") {
                    return Err(OpenError::Url("an in-memory database keeps no task; name a file".to_owned()));
                }
                // sqlx's message may quote the URL.
                let options = SqliteConnectOptions::from_str(url)
                    .map_err(|_| OpenError::Url("expected sqlite://PATH".to_owned()))?;
                let path = options.get_filename().to_path_buf();
                if path.as_os_str().is_empty() {
                    return Err(OpenError::Url("expected sqlite://PATH".to_owned()));
                }
                Ok(Target::Sqlite(path))
            }
            Some("postgres" | "postgresql") => self.servers(std::slice::from_ref(&self.url)).map(Target::Postgres),
            _ => {
                Err(OpenError::Url("expected sqlite://PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned()))
            }
        }
    }

    /// Where to listen for hints; `None` where there is no such place: SQLite has none, and nothing comes through a pooler.
    ///
    /// # Errors
    /// If a URL cannot be used.
    pub fn listen_target(&self) -> Result<Option<Vec<PgConnectOptions>>, OpenError> {
        let servers = if let Some(named) = self.named_listeners()? {
            named
        } else if self.pooler == Pooler::Transaction {
            return Ok(None);
        } else {
            match self.target()? {
                Target::Sqlite(_) => return Ok(None),
                Target::Postgres(servers) => servers,
            }
        };
        Ok(Some((0..servers.len()).map(|at| servers.options(at).clone()).collect()))
    }

    /// The servers that are named to listen at, if some are.
    ///
    /// # Errors
    /// If a URL cannot be used.
    pub(super) fn named_listeners(&self) -> Result<Option<Targets<PgConnectOptions>>, OpenError> {
        if self.listen_urls.is_empty() { Ok(None) } else { servers(&self.listen_urls).map(Some) }
    }

    fn servers(&self, urls: &[SecretString]) -> Result<Targets<PgConnectOptions>, OpenError> {
        if let Some(schema) = &self.schema {
            if !is_plain_name(schema) {
                return Err(OpenError::Url(
                    "the schema's name may have lower-case letters, digits and underscores only".to_owned(),
                ));
            }
            if self.pooler == Pooler::Transaction {
                return Err(OpenError::Url(format!(
                    "a pooler passes no schema: leave database.schema out and give it to the role, by ALTER ROLE the_role \
                     IN DATABASE the_database SET search_path = {schema}"
                )));
            }
        }
        let servers = servers(urls)?;
        let has_options = (0..servers.len()).any(|at| servers.options(at).get_options().is_some());
        if self.pooler == Pooler::Transaction && has_options {
            return Err(OpenError::Url(
                "a pooler passes no options of a session: leave `options` out of the URL, and PGOPTIONS unset"
                    .to_owned(),
            ));
        }
        Ok(servers)
    }
}

fn scheme(url: &str) -> Option<&str> {
    url.split_once(':').map(|(scheme, _)| scheme)
}

/// PostgreSQL servers by their URLs.
fn servers(urls: &[SecretString]) -> Result<Targets<PgConnectOptions>, OpenError> {
    let server = |url: &SecretString| {
        let expected = || OpenError::Url("expected postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned());
        let url = url.expose_secret();
        if !matches!(scheme(url), Some("postgres" | "postgresql")) {
            return Err(expected());
        }
        if !parameters(url).all(is_known_parameter) {
            return Err(OpenError::Url(format!(
                "the URL has a parameter that is not known; allowed: {}, options[NAME]",
                PARAMETERS.join(", ")
            )));
        }
        // sqlx's message may quote the URL.
        let options = PgConnectOptions::from_str(url).map_err(|_| expected())?;
        Ok(Server { name: name(&options), options })
    };
    urls.iter().map(server).collect::<Result<Vec<_>, _>>().map(Targets::new)
}

/// The parameters of a PostgreSQL URL that sqlx reads. Of others it writes name and value into the log, whatever secret that is.
const PARAMETERS: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// The names of a URL's parameters, as they are written.
fn parameters(url: &str) -> impl Iterator<Item = &str> {
    let query = url.split_once('?').map_or("", |(_, query)| query.split('#').next().unwrap_or_default());
    query.split('&').filter(|parameter| !parameter.is_empty()).map(|parameter| {
        let (name, _value) = parameter.split_once('=').unwrap_or((parameter, ""));
        name
    })
}

fn is_known_parameter(name: &str) -> bool {
    PARAMETERS.contains(&name) || (name.starts_with("options[") && name.ends_with(']'))
}

/// For people: without the user and the password.
fn name(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}:{}/{database}", socket.display(), options.get_port()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// A name that needs no quotes anywhere: it travels in a startup parameter and in statements.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 63
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str, schema: Option<&str>) -> Result<Target, OpenError> {
        let schema = schema.map(str::to_owned);
        DatabaseOptions { schema, ..DatabaseOptions::new(url) }.target()
    }

    #[test]
    fn urls_say_which_database() {
        for (url, path) in [
            ("sqlite://taskhold.db", "taskhold.db"),
            ("sqlite:taskhold.db", "taskhold.db"),
            ("sqlite:///var/lib/taskhold/tasks.db", "/var/lib/taskhold/tasks.db"),
        ] {
            let Ok(Target::Sqlite(found)) = target(url, None) else { panic!("{url}") };
            assert_eq!(found.to_str(), Some(path));
        }
        assert!(matches!(target("postgres://u:p@h/d", Some("tasks_2")), Ok(Target::Postgres(_))));
    }

    fn urls(list: &[&str]) -> Vec<SecretString> {
        list.iter().map(|&url| url.into()).collect()
    }

    #[test]
    fn several_servers_have_names_without_secrets() {
        let urls = urls(&["postgres://u:hunter2@a:5433/d", "postgres://u:hunter2@b/d", "postgres:///d?host=/run/pg"]);
        let options = DatabaseOptions { urls, ..DatabaseOptions::new("sqlite://unused.db") };
        let Ok(Target::Postgres(targets)) = options.target() else { panic!("{options:?}") };
        let names: Vec<&str> = (0..targets.len()).map(|at| targets.name(at)).collect();
        assert_eq!(names, ["a:5433/d", "b:5432/d", "/run/pg:5432/d"]);
    }

    #[test]
    fn a_list_has_servers_of_postgresql_only() {
        let urls = urls(&["postgres://h/d", "sqlite://x.db"]);
        let error = DatabaseOptions { urls, ..DatabaseOptions::new("postgres://h/d") }.target().err().unwrap();
        assert!(error.to_string().contains("expected postgres://"), "{error}");
    }

    // req: KEEP-15
    #[test]
    fn a_pooler_passes_nothing_of_a_session() {
        let pooled = |url: &str, schema: Option<&str>| {
            let schema = schema.map(str::to_owned);
            DatabaseOptions { schema, pooler: Pooler::Transaction, ..DatabaseOptions::new(url) }.target()
        };
        assert!(matches!(pooled("postgres://h/d", None), Ok(Target::Postgres(_))));
        for (url, schema, hint) in [
            ("postgres://h/d", Some("tasks"), "ALTER ROLE the_role IN DATABASE the_database SET search_path = tasks"),
            ("postgres://h/d?options=-csearch_path%3Dtasks", None, "leave `options` out"),
            ("sqlite://x.db", None, "PostgreSQL only"),
        ] {
            let error = pooled(url, schema).err().unwrap().to_string();
            assert!(error.contains(hint), "{url} {schema:?}: {error}");
        }
    }

    #[test]
    fn hints_come_from_a_server_itself() {
        let listens = |options: &DatabaseOptions| {
            let targets = options.listen_target().unwrap()?;
            Some(targets.iter().map(|target| target.get_host().to_owned()).collect::<Vec<_>>())
        };
        let direct = DatabaseOptions::new("postgres://h/d");
        assert_eq!(listens(&direct), Some(vec!["h".to_owned()]));
        let pooled = DatabaseOptions { pooler: Pooler::Transaction, ..direct };
        assert_eq!(listens(&pooled), None);
        let beside = DatabaseOptions { listen_urls: urls(&["postgres://a/d", "postgres://b/d"]), ..pooled };
        assert_eq!(listens(&beside), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(listens(&DatabaseOptions::new("sqlite://x.db")), None);
    }

    #[test]
    fn unusable_urls_are_refused_without_their_password() {
        for (url, schema) in [
            ("mysql://u:hunter2@h/d", None),
            ("hunter2", None),
            ("postgres://u:hunter2@h:port/d", None),
            ("postgres://u:hunter2@h/d", Some("a; DROP")),
            ("postgres://u:p@h/d?sslpassword=hunter2", None),
            ("postgres://u:p@h/d?passwrod=hunter2", None),
            ("postgres://u:p@h/d?sslmode=require&hunter2", None),
            ("postgres://u:p?b=hunter2@h/d", None),
            ("sqlite::memory:", None),
            ("sqlite://x?mode=hunter2", None),
            ("sqlite://x", Some("tasks")),
        ] {
            let Err(error) = target(url, schema) else { panic!("{url}") };
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
