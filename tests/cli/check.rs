//! What `taskhold check` finds of a database that a start would stumble over.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use taskhold::domain::ids::TaskId;
use taskhold::store::migrate;

use super::run;
use crate::store::migrations::BEFORE_TALK;
use crate::support::cluster::Account;
use crate::support::database::{Backend, EmptyDatabase, number, options, run as run_sql};
use crate::support::pgbouncer::PgBouncer;

/// What `check` prints with a database and these settings, and an upstream with which all is well.
pub fn check(settings: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("taskhold.toml"), settings).unwrap();
    let upstream = format!("demo={} demo-server", env!("CARGO_BIN_EXE_taskhold"));
    let (code, stdout, stderr) = run(folder.path(), &["check", "--upstream", &upstream]);
    assert!(!stderr.contains("panicked"), "{stderr}");
    (code, stdout)
}

fn check_url(url: &str) -> (i32, String) {
    check(&format!("[database]\nurl = {url:?}\n"))
}

#[track_caller]
pub fn assert_says(said: &(i32, String), lines: &[&str]) {
    for line in lines {
        assert!(said.1.lines().any(|said| said.starts_with(line)), "{line:?} is not in:\n{}", said.1);
    }
    assert_eq!(said.0, i32::from(said.1.contains(": to do")), "{}", said.1);
}

/// A role without any right, on a database of its own, and its URL.
struct Role {
    database: EmptyDatabase,
    name: String,
    url: String,
}

impl Role {
    async fn new() -> Self {
        let database = EmptyDatabase::new(Backend::Postgres).await;
        let name = format!("role_{}", TaskId::new().as_uuid().simple());
        run_sql(&database.url, &format!("CREATE ROLE {name} LOGIN")).await;
        let (_, place) = database.url.split_once('@').unwrap();
        let url = format!("postgres://{name}@{place}");
        Self { database, name, url }
    }

    /// As the superuser; {role} is its name.
    async fn sql(&self, statements: &str) {
        run_sql(&self.database.url, &statements.replace("{role}", &self.name)).await;
    }

    async fn drop(self) {
        self.sql("DROP OWNED BY {role} CASCADE; DROP ROLE {role}").await;
    }
}

// req: OPS-03, KEEP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_run_the_missing_migrations_is_found() {
    let role = Role::new().await;
    let name = role.name.clone();
    let forbidden = format!(": the role {name} may not ");
    let todo = ": run taskhold migrate as a role that may";
    let missing = |said: &(i32, String), what: &str| {
        assert_says(said, &["database: ok", "migrations: to do: "]);
        assert!(said.1.contains(&format!("{forbidden}{what}{todo}")), "{}", said.1);
    };
    missing(&check_url(&role.url), "make tables in the schema public");
    role.sql("REVOKE USAGE ON SCHEMA public FROM PUBLIC").await;
    let said = check_url(&role.url);
    assert!(
        said.1.contains(&format!("the search_path of the role {name} has no schema that it may use{todo}")),
        "{said:?}"
    );
    let in_schema = |schema: &str| check(&format!("[database]\nurl = {:?}\nschema = {schema:?}\n", role.url));
    missing(&in_schema("own"), "make the schema own");
    role.sql("CREATE SCHEMA own").await;
    missing(&in_schema("own"), "use the schema own");
    role.sql("GRANT USAGE, CREATE ON SCHEMA own TO {role}").await;
    assert_says(&in_schema("own"), &["migrations: ok: 0001 tasks, "]);
    // Tables that are there have an owner, who alone may change them.
    migrate(&options(&role.database.url)).await.unwrap();
    run_sql(&role.database.url, BEFORE_TALK).await;
    role.sql("GRANT USAGE, CREATE ON SCHEMA public TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        .await;
    let said = check_url(&role.url);
    assert!(
        said.1.contains(&format!("{forbidden}change the table ")) && said.1.contains(" of the role postgres"),
        "{said:?}"
    );
    assert_eq!(number(&role.database.url, "SELECT COUNT(*) FROM _sqlx_migrations").await, 1, "nothing was done");
    role.drop().await;
}

// req: OPS-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_a_role_lacks_are_named_with_the_grant_that_gives_them() {
    let role = Role::new().await;
    migrate(&options(&role.database.url)).await.unwrap();
    let what = format!("rights of the role {}: ", role.name);
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {}", role.name);
    let lacks = |said: &(i32, String), rights: &str| {
        assert_says(said, &[&format!("{what}to do: it lacks {rights}")]);
        assert!(said.1.contains(&grant), "{}", said.1);
    };
    // Not even the notes of the migrations can be read.
    let said = check_url(&role.url);
    assert_says(&said, &["upstreams: ok: not tried: "]);
    lacks(&said, "SELECT on _sqlx_migrations; SELECT, INSERT, UPDATE, DELETE on access_tokens, ");
    role.sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}").await;
    let said = check_url(&role.url);
    lacks(&said, "INSERT, UPDATE, DELETE on access_tokens, ");
    assert!(said.1.contains("migrations: ok\n") && said.1.contains("; UPDATE on schema_info: GRANT"), "{}", said.1);
    role.sql("GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}").await;
    role.sql("REVOKE DELETE ON signals, task_live FROM {role}").await;
    lacks(&check_url(&role.url), "DELETE on signals, task_live: ");
    // What it was told is what it needs.
    run_sql(&role.database.url, &grant).await;
    let said = check_url(&role.url);
    assert_says(&said, &[&format!("{what}ok"), "migrations: ok", "upstream demo: ok: revision "]);
    assert_eq!(said.0, 0, "{}", said.1);
    role.drop().await;
}

// req: OPS-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listen_url_at_which_nothing_is_heard_is_found() {
    let [database, another] =
        [EmptyDatabase::new(Backend::Postgres).await, EmptyDatabase::new(Backend::Postgres).await];
    let pooler = PgBouncer::before(&database.url, 4, &[]).await;
    migrate(&options(&database.url)).await.unwrap();
    let check_at = |listen: &str| {
        check(&format!(
            "[database]\nurl = {:?}\npooler = \"transaction\"\nlisten_url = {listen:?}\n",
            pooler.url_of(&database.url)
        ))
    };
    let says = |listen: &str, wanted: &str| {
        let said = check_at(listen);
        let line = said.1.lines().find(|line| line.starts_with("database.listen_url "));
        assert!(line.is_some_and(|line| line.contains(wanted)), "{wanted:?} is not in:\n{}", said.1);
        assert_eq!(said.0, i32::from(wanted.starts_with(": to do")), "{}", said.1);
    };
    says(&database.url, ": ok: what is said at the database is heard there");
    says(&another.url, ": to do: it leads to another database or schema than database.url");
    migrate(&options(&another.url)).await.unwrap();
    says(&another.url, ": to do: what is said at database.url is not heard there");
    let elsewhere = format!("{}?options=-csearch_path%3Down", database.url);
    run_sql(&database.url, "CREATE SCHEMA own; CREATE TABLE own.nodes (id BIGINT)").await;
    says(&elsewhere, ": to do: it leads to another database or schema than database.url");
    says(&pooler.url_of(&database.url), ": to do: it leads to a connection pooler, through which nothing is heard");
    says("postgres://u:hunter2@127.0.0.1:1/d", ": to do: it cannot be listened at: ");
    assert!(!check_at("postgres://u:hunter2@127.0.0.1:1/d").1.contains("hunter2"));
}

// req: OPS-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_checksum_is_found_and_the_one_that_is_shown_mends_it() {
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let database = EmptyDatabase::new(backend).await;
        migrate(&options(&database.url)).await.unwrap();
        let set = async |checksum: &str| {
            let literal =
                if backend == Backend::Sqlite { format!("X'{checksum}'") } else { format!("'\\x{checksum}'") };
            run_sql(&database.url, &format!("UPDATE _sqlx_migrations SET checksum = {literal} WHERE version = 3"))
                .await;
        };
        set("00").await;
        let said = check_url(&database.url);
        assert_says(&said, &["migration 0003 keys: to do: it was run with another text than it has in this binary"]);
        assert!(said.1.contains("a start runs, and the next migration will be refused"), "{}", said.1);
        let (_, shown) = said.1.split_once("whose checksum is ").unwrap();
        let shown = shown.split(':').next().unwrap();
        set(shown).await;
        assert_eq!(check_url(&database.url).0, 0);
    }
}

/// The binary, run by a user who is not root.
struct Another {
    account: Account,
    binary: PathBuf,
}

impl Another {
    fn new(folder: &Path) -> Self {
        let account = Account::of_servers();
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_taskhold"));
        let reaches = account.command(&binary).arg("--version").output().is_ok_and(|output| output.status.success());
        if reaches {
            return Self { account, binary };
        }
        let copy = folder.join("binary");
        fs::copy(&binary, &copy).unwrap();
        Self { account, binary: copy }
    }

    fn run(&self, folder: &Path, arguments: &[&str]) -> (i32, String) {
        let mut command = self.account.command(&self.binary);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let output = command.args(arguments).current_dir(folder).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
    }
}

// req: OPS-03, KEEP-13
#[test]
fn a_file_or_a_folder_that_may_not_be_written_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().canonicalize().unwrap().join("data");
    fs::create_dir(&data).unwrap();
    let allow = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    allow(folder.path(), 0o755);
    let another = Another::new(folder.path());
    let file = data.join("taskhold.db");
    // Everything is others' for that user, if we are root; else it is our own.
    let modes = |folder: u32, file_mode: Option<u32>| {
        allow(&data, 0o755);
        if let Some(mode) = file_mode {
            allow(&file, mode);
        }
        allow(&data, folder);
    };
    const COMMANDS: [&[&str]; 3] = [&["check"], &["migrate"], &["tasks", "list"]];
    let finds = |what: &Path, commands: &[&[&str]]| {
        let wanted = format!("{} cannot be written by this user: Permission denied", what.display());
        for arguments in commands {
            let (code, said) = another.run(&data, arguments);
            assert!(code == 1 && said.contains(&wanted), "{arguments:?}: {said}");
            assert!(said.contains("run this as the user of the service"), "{said}");
        }
    };
    modes(0o555, None);
    finds(&data, &COMMANDS[..2]);
    modes(0o755, None);
    assert_eq!(run(&data, &["migrate"]).0, 0);
    modes(0o777, Some(0o444));
    finds(&file, &COMMANDS);
    modes(0o555, Some(0o666));
    finds(&data, &COMMANDS);
    // What another user's process left beside it.
    let log = data.join("taskhold.db-wal");
    allow(&data, 0o755);
    fs::write(&log, "").unwrap();
    allow(&log, 0o444);
    modes(0o777, Some(0o666));
    finds(&log, &COMMANDS);
    fs::remove_file(&log).unwrap();
    let (_, said) = another.run(&data, &["check"]);
    assert!(said.contains("database: ok") && said.contains("migrations: ok"), "{said}");
    allow(&data, 0o755);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let (code, said, _) = run(&data, &["check"]);
    assert!(code == 1 && said.contains("it is a folder: name a file"), "{said}");
}
