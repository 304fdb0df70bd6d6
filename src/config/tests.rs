use std::ffi::OsString;
use std::time::Duration;

use secrecy::ExposeSecret;
use tempfile::TempDir;

use super::*;

mod upstreams;

/// A directory of its own and an environment that holds nothing else.
struct Given {
    directory: TempDir,
    sources: Sources,
}

impl Given {
    fn nothing() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sources = Sources { directory: directory.path().to_owned(), ..Sources::default() };
        Self { directory, sources }
    }

    fn file(text: &str) -> Self {
        Self::nothing().and_file("taskhold.toml", text)
    }

    fn and_file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.directory.path().join(name), text).unwrap();
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.sources.environment.push((name.into(), value.into()));
        self
    }

    fn flag(mut self, flag: &'static str, path: &'static str, value: &str) -> Self {
        self.sources.overrides.flags.push((flag, path, value.to_owned()));
        self
    }

    fn upstream(mut self, flag: &str) -> Self {
        self.sources.overrides.upstreams.push(flag.to_owned());
        self
    }

    fn load(&self) -> Config {
        Config::load(&self.sources).unwrap()
    }

    /// The one thing that is wrong.
    fn problem(&self) -> String {
        let error = Config::load(&self.sources).unwrap_err();
        assert_eq!(error.problems().len(), 1, "{error}");
        error.problems()[0].to_string()
    }
}

#[test]
fn without_anything_the_defaults_hold() {
    let config = Given::nothing().load();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.database.url.expose_secret(), "sqlite://taskhold.db");
    assert!(config.database.auto_migrate);
    assert_eq!(config.auth.mode, AuthMode::Token);
    assert_eq!(config.tasks.ttl.default, Some(Duration::from_secs(3600)));
    assert_eq!(config.tasks.ttl.hard_lifetime, Duration::from_secs(26 * 3600));
    assert_eq!(config.runner.slots, 256);
    assert_eq!(config.limits.body, 4 << 20);
    assert_eq!(config.log, "info");
    assert!(config.upstreams.is_empty());
}

// req: OPS-02
#[test]
fn file_dotenv_environment_and_flags_win_in_that_rising_order() {
    let slots = |given: &Given| given.load().runner.slots;
    let given = Given::file("[runner]\nslots = 2\n");
    assert_eq!(slots(&given), 2);
    let given = given.and_file(".env", "TASKHOLD_RUNNER_SLOTS=3\n");
    assert_eq!(slots(&given), 3);
    let given = given.variable("TASKHOLD_RUNNER_SLOTS", "4");
    assert_eq!(slots(&given), 4);
    let given = given.flag("--slots", "runner.slots", "5");
    assert_eq!(slots(&given), 5);
}

// req: OPS-02
#[test]
fn dotenv_is_not_searched_upwards() {
    let outer = Given::nothing().and_file(".env", "TASKHOLD_RUNNER_SLOTS=3\n");
    let inner = outer.directory.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let config = Config::load(&Sources { directory: inner, ..Sources::default() }).unwrap();
    assert_eq!(config.runner.slots, 256);
}

#[test]
fn a_named_file_is_read_and_must_be_there() {
    let mut given = Given::nothing().and_file("other.toml", "[runner]\nslots = 2\n");
    given.sources.overrides.file = Some(given.directory.path().join("other.toml"));
    assert_eq!(given.load().runner.slots, 2);
    given.sources.overrides.file = Some("/nowhere/other.toml".into());
    assert!(given.problem().starts_with("the file /nowhere/other.toml cannot be read: "), "{}", given.problem());
}

// req: OPS-02
#[test]
fn unknown_names_are_refused_with_what_is_allowed() {
    assert_eq!(
        Given::file("[runner]\nslot = 2\n").problem(),
        "unknown key runner.slot (taskhold.toml line 2); allowed in [runner]: slots, asking, run_limit, hard_run_limit, \
         attempts"
    );
    assert_eq!(
        Given::file("\n[runnr]\nslots = 2\n").problem(),
        "unknown key runnr (taskhold.toml line 2); allowed at the top of the file: log; sections: server, database, \
         auth, oauth, tasks, runner, limits, upstreams, tenants"
    );
    assert_eq!(
        Given::nothing().variable("TASKHOLD_RUNNER_SLOT", "2").problem(),
        "unknown variable TASKHOLD_RUNNER_SLOT in the environment; allowed: TASKHOLD_RUNNER_SLOTS, \
         TASKHOLD_RUNNER_ASKING, TASKHOLD_RUNNER_RUN_LIMIT, TASKHOLD_RUNNER_HARD_RUN_LIMIT, TASKHOLD_RUNNER_ATTEMPTS"
    );
    let problem = Given::nothing().and_file(".env", "TASKHOLD_NO=2\n").problem();
    assert!(problem.starts_with("unknown variable TASKHOLD_NO in .env; allowed: TASKHOLD_LOG, "), "{problem}");
    assert_eq!(
        Given::file("[[upstreams]]\nname = \"a\"\ncommand = \"b\"\nuri = \"c\"\n").problem(),
        "unknown key upstreams.a.uri (taskhold.toml line 4); allowed in upstreams.a: name, command, url, headers, \
         bearer_env, env, cwd, protocol, shared, prefix, max_links, task, grace, tools"
    );
    assert_eq!(
        Given::file("[tenants.a]\nlimits = 1\n").problem(),
        "unknown key tenants.a.limits (taskhold.toml line 2); allowed in tenants.a: tasks, slots, queued"
    );
}

// req: OPS-02
#[test]
fn variables_of_kubernetes_and_of_tests_are_ignored() {
    Given::nothing()
        .variable("TASKHOLD_SERVICE_HOST", "10.0.0.1")
        .variable("TASKHOLD_PORT", "tcp://10.0.0.1:80")
        .variable("TASKHOLD_PORT_80_TCP", "tcp://10.0.0.1:80")
        .variable("TASKHOLD_TEST_POSTGRES", "x")
        .variable("TASKHOLDER", "x")
        .load();
    let problem = Given::nothing().variable("TASKHOLD_PORTAL", "x").problem();
    assert!(problem.starts_with("unknown variable TASKHOLD_PORTAL"), "{problem}");
}

// req: OPS-02
#[test]
fn bad_values_are_refused_with_key_value_place_and_what_is_allowed() {
    for (file, message) in [
        (
            "[runner]\nslots = \"many\"",
            "runner.slots = \"many\" (taskhold.toml line 2): expected a whole number from 1 to 100000",
        ),
        ("[runner]\nslots = 0", "runner.slots = 0 (taskhold.toml line 2): expected a whole number from 1 to 100000"),
        (
            "[runner]\nslots = 1.5",
            "runner.slots = 1.5 (taskhold.toml line 2): expected a whole number from 1 to 100000",
        ),
        ("[auth]\nmode = \"basic\"", "auth.mode = \"basic\" (taskhold.toml line 2): expected token or oauth or none"),
        ("[tasks]\nenabled = 1", "tasks.enabled = 1 (taskhold.toml line 2): expected true or false"),
        (
            "[tasks]\npoll_interval = \"2h\"",
            "tasks.poll_interval = \"2h\" (taskhold.toml line 2): expected a duration of at least 1ms and at most 1h, \
             such as 90s or 1h 30min, or a number of seconds",
        ),
        (
            "[limits]\nbody = \"4 megs\"",
            "limits.body = \"4 megs\" (taskhold.toml line 2): expected a size from 1 KiB to 1 GiB, such as 64 KiB or a \
             number of bytes",
        ),
        (
            "log = 1979-05-27",
            "log = 1979-05-27 (taskhold.toml line 1): expected a level (error, warn, info, debug, trace, off) or a list \
             of target=level",
        ),
        (
            "log = \"warning\"",
            "log = \"warning\" (taskhold.toml line 1): expected a level (error, warn, info, debug, trace, off) or a list \
             of target=level",
        ),
        ("tenants = 7", "tenants (taskhold.toml line 1) is not a table of tables; write [tenants.NAME]"),
        ("[upstreams]\nname = \"a\"", "upstreams (taskhold.toml line 1) is not a list of tables; write [[upstreams]]"),
        (
            "server = 7",
            "unknown key server (taskhold.toml line 1); allowed at the top of the file: log; sections: \
         server, database, auth, oauth, tasks, runner, limits, upstreams, tenants",
        ),
        ("[server]\nlisten = ", "taskhold.toml line 2 is not TOML: "),
    ] {
        let problem = Given::file(file).problem();
        assert!(problem.starts_with(message), "{problem}\n{message}");
    }
    assert_eq!(
        Given::nothing().variable("TASKHOLD_SERVER_LISTEN", "8080").problem(),
        "server.listen = \"8080\" (TASKHOLD_SERVER_LISTEN): expected an address and port, such as 127.0.0.1:8080 or \
         [::1]:8080"
    );
    assert_eq!(
        Given::nothing().flag("--auth", "auth.mode", "off").problem(),
        "auth.mode = \"off\" (--auth): expected token or oauth or none"
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let given = Given::file("[runner]\nslots = 0\nattempts = 0\n").variable("TASKHOLD_X", "1");
    let error = Config::load(&given.sources).unwrap_err();
    assert_eq!(error.problems().len(), 3);
    assert!(
        error.to_string().starts_with("the configuration cannot be used\n  unknown variable TASKHOLD_X"),
        "{error}"
    );
}

// req: OPS-02
#[test]
fn secrets_and_passwords_never_appear() {
    let upstream = |env: &str| format!("[[upstreams]]\nname = \"a\"\ncommand = \"b\"\nenv = {env}\n");
    for given in [
        Given::file("[database]\nurl = \"mysql://u:hunter2@h/d\""),
        Given::nothing().variable("TASKHOLD_DATABASE_URL", "mysql://u:hunter2@h/d"),
        Given::nothing().flag("--database-url", "database.url", "mysql://u:hunter2@h/d"),
        Given::file("[database]\nurls = [\"postgres://u:hunter2@h/d\", \"mysql://u:hunter2@h/d\"]"),
        Given::nothing().variable("TASKHOLD_DATABASE_URLS", "postgres://u:hunter2@h/d,mysql://u:hunter2@h/d"),
        Given::file("[database]\nurl = \"postgres://u:hunter2@a/d\"\nurls = [\"postgres://u:hunter2@b/d\"]"),
        Given::file("[database]\nurl = \"postgres://u:hunter2@h/d\nx = 1"),
        Given::file(&upstream("\"hunter2\"")),
        Given::file(&upstream("{ A = [\"hunter2\"] }")),
        Given::file(&upstream("{ A = \"hunter2${NO_SUCH}\" }")),
        Given::nothing().and_file(".env", "TASKHOLD_DATABASE_URL='postgres://u:hunter2@h/d\n"),
    ] {
        let error = Config::load(&given.sources).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let given = Given::file(&upstream("{ A = \"hunter2\", B = \"${B}\" }"))
        .variable("B", "hunter2")
        .variable("TASKHOLD_DATABASE_URL", "postgres://u:hunter2@h/d");
    let config = given.load();
    assert_eq!(config.upstreams[0].env["B"].expose_secret(), "hunter2");
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    assert_eq!(config.database.shown_url(), "postgres://u:***@h/d");
}

#[test]
fn several_servers_are_a_list_in_the_file_and_commas_in_the_variable() {
    let file = "[database]\nurl = \"postgres://u:p@a/d\"\nurls = [\"postgres://u:p@a/d\", \"postgres://u:p@b/d\"]";
    let variable = Given::nothing().variable("TASKHOLD_DATABASE_URLS", "postgres://u:p@a/d, postgres://u:p@b/d");
    for given in [Given::file(file), variable] {
        let database = given.load().database;
        assert_eq!(database.shown_url(), "postgres://u:***@a/d, postgres://u:***@b/d");
        assert_eq!(database.options().urls.len(), 2);
    }
    let problem = Given::file("[database]\nurls = []").problem();
    assert!(problem.contains("database.urls = []") && problem.contains("one or more URLs"), "{problem}");
    let pooled = "[database]\nurl = \"postgres://h/d\"\npooler = \"transaction\"\nlisten_url = \"postgres://b/d\"";
    let options = Given::file(pooled).load().database.options();
    assert_eq!((options.pooler, options.listen_urls.len()), (crate::store::Pooler::Transaction, 1));
}

// req: HTTP-02
#[test]
fn listening_to_others_without_authentication_is_refused_unless_forced() {
    let open = "[server]\nlisten = \"0.0.0.0:8080\"\n[auth]\nmode = \"none\"\n";
    let problem = Given::file(open).problem();
    assert!(problem.starts_with("server.listen = 0.0.0.0:8080 is reached by other machines"), "{problem}");
    assert!(problem.contains("auth.allow_remote_without_auth = true"), "{problem}");
    let forced = Given::file(&format!("{open}allow_remote_without_auth = true\n")).load();
    assert_eq!(forced.auth.mode, AuthMode::None);
    for fine in ["[server]\nlisten = \"0.0.0.0:8080\"", "[auth]\nmode = \"none\"\n[server]\nlisten = \"[::1]:0\""] {
        Given::file(fine).load();
    }
}

#[test]
fn values_must_fit_each_other() {
    for (file, message) in [
        ("[tasks]\ndefault_ttl = \"5s\"", "tasks.default_ttl = 5s is less than tasks.min_ttl = 10s"),
        ("[tasks]\ndefault_ttl = \"25h\"", "tasks.default_ttl = 1day 1h is more than tasks.max_ttl = 1day"),
        ("[tasks]\ndefault_ttl = \"none\"", "tasks.default_ttl = none is more than tasks.max_ttl = 1day"),
        (
            "[tasks]\nmax_ttl = \"48h\"",
            "tasks.hard_lifetime = 1day 2h is less than tasks.max_ttl + runner.hard_run_limit + tasks.min_retention = \
             2days 1h 10m",
        ),
        ("[runner]\nrun_limit = \"2h\"", "runner.run_limit = 2h is more than runner.hard_run_limit = 1h"),
        (
            "[limits]\nbody = \"64 KiB\"",
            "limits.arguments = 1048576 is more than limits.body = 65536, which holds them",
        ),
        ("[database]\nschema = \"a\"", "database.schema is set, but SQLite has no schemas"),
        (
            "[database]\nurls = [\"postgres://a/d\", \"postgres://b/d\"]\nurl = \"postgres://b/d\"",
            "database.url = \"postgres://b/d\" is not the first of database.urls = \"postgres://a/d, postgres://b/d\"",
        ),
        (
            "[database]\npooler = \"transaction\"",
            "database.pooler = \"transaction\", but database.url is a SQLite file",
        ),
        (
            "[database]\nlisten_url = \"postgres://h/d\"",
            "database.listen_url is set, but database.url is a SQLite file",
        ),
        (
            "[database]\nurl = \"postgres://h/d\"\npooler = \"transaction\"\nschema = \"a\"",
            "database.schema = \"a\" does not go with database.pooler = \"transaction\"",
        ),
        ("[server]\nallowed_hosts = [\"https://a\"]", "server.allowed_hosts has \"https://a\": expected a host name"),
    ] {
        let problem = Given::file(file).problem();
        assert!(problem.starts_with(message), "{problem}");
    }
    let endless = Given::file("[tasks]\nmax_ttl = \"none\"\ndefault_ttl = \"none\"\n").load();
    assert_eq!((endless.tasks.ttl.default, endless.tasks.ttl.max), (None, None));
}

// req: AUTH-10
#[test]
fn oauth_says_what_it_needs() {
    let mode = "[auth]\nmode = \"oauth\"\n";
    let error = Config::load(&Given::file(mode).sources).unwrap_err();
    assert_eq!(error.problems().len(), 2, "{error}");
    let text = error.to_string();
    assert!(text.contains("needs oauth.issuer") && text.contains("needs server.public_url"), "{text}");
    let server = "[server]\npublic_url = \"https://mcp.example.com/base/\"\n";
    let with = |oauth: &str| Given::file(&format!("{mode}{server}[oauth]\n{oauth}\n"));
    for (oauth, message) in [
        (
            "issuer = \"login\"",
            "oauth.issuer = \"login\" (taskhold.toml line 6): expected a URL that starts with http://",
        ),
        ("issuer = \"http://login.example.com\"", "oauth.issuer = \"http://login.example.com\" is not https: "),
        (
            "issuer = \"https://a.example\"\njwks_url = \"http://a.example/k\"",
            "oauth.jwks_url = \"http://a.example/k\" is not https: ",
        ),
        ("issuer = \"https://a.example\"\naudience = \"\"", "oauth.audience = \"\": expected a text that is not empty"),
        (
            "issuer = \"https://a.example\"\nleeway = \"1h\"",
            "oauth.leeway = \"1h\" (taskhold.toml line 7): expected a duration",
        ),
    ] {
        let problem = with(oauth).problem();
        assert!(problem.starts_with(message), "{problem}");
    }
    let given = with("issuer = \"http://127.0.0.1:9000/\"\ntenant_claim = \"org\"");
    let config = given.variable("TASKHOLD_OAUTH_CLIENT_CLAIM", "azp").load();
    assert_eq!(config.auth.mode, AuthMode::Oauth);
    let rules = config.oauth.rules("https://mcp.example.com/base/mcp");
    assert_eq!(
        (rules.issuer.as_str(), rules.audience.as_str()),
        ("http://127.0.0.1:9000/", "https://mcp.example.com/base/mcp")
    );
    assert_eq!((rules.tenant_claim.as_deref(), rules.client_claim.as_deref()), (Some("org"), Some("azp")));
    assert_eq!((rules.leeway, rules.require_scopes), (Duration::from_secs(5), true));
    // Where the mode is another, the section means nothing.
    Given::file("[oauth]\nissuer = \"http://login.example.com\"").load();
}

// req: AUTH-09
#[test]
fn without_authentication_the_default_ttl_is_an_hour_at_most() {
    assert_eq!(Given::file("[auth]\nmode = \"none\"").load().tasks.ttl.default, Some(Duration::from_secs(3600)));
    for ttl in ["\"61min\"", "\"none\"\nmax_ttl = \"none\""] {
        let problem = Given::file(&format!("[auth]\nmode = \"none\"\n[tasks]\ndefault_ttl = {ttl}\n")).problem();
        assert!(problem.contains("the most without authentication"), "{problem}");
    }
}

#[test]
fn tenants_can_be_kept_from_tasks() {
    let config = Given::file("[tenants.acme]\ntasks = false\n[tenants.beta]\n").load();
    assert!(config.tasks.enabled && !config.tenants["acme"].tasks && config.tenants["beta"].tasks);
    let config = Given::file("[tasks]\nenabled = false\n[tenants.acme]\ntasks = true\n").load();
    assert!(!config.tasks.enabled && config.tenants["acme"].tasks);
}

// req: AUTH-15
#[test]
fn what_runs_and_waits_is_limited_by_caller_and_tenant() {
    let config = Given::file("[limits]\nslots = 5\n[tenants.acme]\nslots = 7\nqueued = 9\n[tenants.beta]\n").load();
    assert_eq!((config.limits.slots, config.limits.queued), (Some(5), 100_000));
    let limits = |name: &str| (config.tenants[name].slots, config.tenants[name].queued);
    assert_eq!((limits("acme"), limits("beta")), ((Some(7), Some(9)), (None, None)));
    assert_eq!(Given::nothing().load().limits.slots, None);
    assert_eq!(
        Given::file("[tenants.acme]\nslots = 0\n").problem(),
        "tenants.acme.slots = 0 (taskhold.toml line 2): expected a whole number from 1 to 1000000"
    );
}

#[test]
fn a_variable_set_to_nothing_is_not_set_and_one_that_is_no_text_is_refused() {
    assert_eq!(Given::nothing().variable("TASKHOLD_RUNNER_SLOTS", "").load().runner.slots, 256);
    use std::os::unix::ffi::OsStringExt;
    let mut given = Given::nothing();
    given.sources.environment.push(("TASKHOLD_RUNNER_SLOTS".into(), OsString::from_vec(vec![0xff])));
    assert_eq!(given.problem(), "TASKHOLD_RUNNER_SLOTS in the environment is not UTF-8");
}

// req: OPS-02
#[test]
fn the_configuration_document_is_made_from_the_list_of_keys() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let document = document::render();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &document).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(stored == document, "docs/configuration.md is stale: UPDATE_DOCS=1 cargo test configuration_document");
}

#[test]
fn the_example_files_can_be_used_and_change_nothing() {
    let example = include_str!("../../taskhold.example.toml");
    let dotenv = include_str!("../../.env.example");
    let given = Given::file(example).and_file(".env", dotenv);
    let defaults = Given::nothing().load();
    assert_eq!(format!("{:?}", given.load()), format!("{defaults:?}"), "each value in them is the default");
    // What is commented out can be used too.
    let uncommented = |text: &str, opens: &str| {
        let line = |line: &str| {
            let bare = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
            bare.unwrap_or(line).to_owned()
        };
        assert!(text.lines().any(|line| line.starts_with(opens)), "{opens}");
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let given = Given::file(&uncommented(example, "#[[upstreams]]"))
        .and_file(".env", &uncommented(dotenv, "#TASKHOLD_"))
        .variable("SEARCH_API_KEY", "x")
        .variable("TICKETS_TOKEN", "x")
        .variable("REGION", "x")
        .flag("--database-url", "database.url", "postgres://taskhold@db1.example/taskhold");
    let config = given.load();
    assert_eq!(config.upstreams.len(), 3);
    for key in keys::KEYS {
        assert!(dotenv.contains(&key.variable()), "{} is not in .env.example", key.path);
        assert!(
            example.contains(&format!("\n#{} = ", key.name())) || example.contains(&format!("\n{} = ", key.name()))
        );
    }
}
