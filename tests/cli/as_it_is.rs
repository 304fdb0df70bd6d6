//! Commands that find no database, an old one, or somebody else's: they leave it as it is and say what to do.

use std::fs;
use std::path::Path;

use taskhold::store::migrate;

use super::run;
use crate::store::migrations::{BEFORE_TALK, MIGRATIONS};
use crate::support::database::{Backend, EmptyDatabase, number, options, run as run_sql};

const STRANGER: &str = "00000000-0000-4000-8000-000000000000";
/// What works with the database as it is.
const COMMANDS: [&[&str]; 6] = [
    &["tasks", "list"],
    &["tasks", "show", STRANGER],
    &["tasks", "cancel", STRANGER],
    &["token", "list"],
    &["token", "revoke", STRANGER],
    &["token", "rotate", STRANGER],
];

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = run(folder, arguments);
    assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}: {stderr}");
    stderr
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

// req: OPS-03
#[test]
fn in_a_wrong_directory_no_database_is_made_and_the_file_is_named_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("taskhold.db");
    for arguments in COMMANDS {
        let said = refused(folder.path(), arguments);
        let wanted = format!("there is no file {}: `taskhold migrate` makes it", path.display());
        assert!(said.contains(&wanted) && said.contains("name that one"), "{arguments:?}: {said}");
    }
    for arguments in [&["check"][..], &["migrate", "--check"]] {
        assert_eq!(run(folder.path(), arguments).0, 1);
    }
    assert_eq!(entries(folder.path()), Vec::<String>::new());
}

// req: OPS-03
#[test]
fn the_first_token_says_which_database_was_made_for_it_and_later_ones_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("taskhold.db");
    let (code, token, said) = run(folder.path(), &["token", "create", "--name", "a"]);
    assert!(code == 0 && token.starts_with("th_") && token.lines().count() == 1, "{said}");
    assert!(said.contains(&format!("made the new database {}: ", path.display())), "{said}");
    let (code, _, said) = run(folder.path(), &["token", "create", "--name", "b"]);
    assert!(code == 0 && !said.contains("made"), "{said}");
    // Where nothing may be made by the way, nothing is.
    fs::write(folder.path().join("off.toml"), "[database]\nmigrate = \"off\"\nurl = \"sqlite://new.db\"\n").unwrap();
    let said = refused(folder.path(), &["token", "create", "--name", "c", "--config", "off.toml"]);
    assert!(said.contains("there is no file ") && !folder.path().join("new.db").exists(), "{said}");
}

// req: OPS-03, KEEP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_tables_is_left_so_but_by_the_first_token() {
    let database = EmptyDatabase::new(Backend::Postgres).await;
    let folder = tempfile::tempdir().unwrap();
    let with = |arguments: &[&'static str]| [arguments, &["--database-url", database.url.as_str()]].concat();
    for arguments in COMMANDS {
        let said = refused(folder.path(), &with(arguments));
        assert!(said.contains("the database has no tables of taskhold: `taskhold migrate` makes them"), "{said}");
    }
    let tables = "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(number(&database.url, tables).await, 0);
    let (code, _, said) = run(folder.path(), &with(&["token", "create", "--name", "a"]));
    assert!(code == 0 && said.contains("made new tables in the database postgres://"), "{said}");
}

// req: OPS-03, KEEP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_schema_is_changed_by_no_command_but_migrate_and_serve() {
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let database = EmptyDatabase::new(backend).await;
        migrate(&options(&database.url)).await.unwrap();
        run_sql(&database.url, BEFORE_TALK).await;
        let folder = tempfile::tempdir().unwrap();
        let with = |arguments: &[&'static str]| [arguments, &["--database-url", database.url.as_str()]].concat();
        for arguments in COMMANDS.iter().copied().chain([&["token", "create", "--name", "a"][..]]) {
            let said = refused(folder.path(), &with(arguments));
            assert!(said.contains("migrations are missing: 0002 talk, "), "{arguments:?}: {said}");
            assert!(said.contains("run `taskhold migrate`"), "{arguments:?}: {said}");
        }
        let (_, said, _) = run(folder.path(), &with(&["check"]));
        assert!(said.contains("\nmigrations: ok: 0002 talk, 0003 keys, "), "a start would run them: {said}");
        assert_eq!(number(&database.url, "SELECT COUNT(*) FROM _sqlx_migrations").await, 1);
        assert_eq!(run(folder.path(), &with(&["migrate"])).0, 0);
        assert_eq!(run(folder.path(), &with(&["tasks", "list"])).0, 0);
        assert_eq!(number(&database.url, "SELECT COUNT(*) FROM _sqlx_migrations").await, MIGRATIONS);
    }
}

// req: KEEP-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_not_ours_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("taskhold.db");
    let url = format!("sqlite://{}?mode=rwc", path.display());
    run_sql(&url, "CREATE TABLE bookmarks (title TEXT); INSERT INTO bookmarks VALUES ('a')").await;
    let theirs = fs::read(&path).unwrap();
    let all = COMMANDS.iter().copied().chain([
        &["token", "create", "--name", "a"][..],
        &["migrate"],
        &["migrate", "--check"],
        &["serve", "--listen", "127.0.0.1:0"],
    ]);
    let all: Vec<&[&str]> = all.collect();
    let (foreign, text) = ("belongs to another program: it has the table(s) bookmarks", "it is no SQLite database");
    for (contents, problem) in
        [(theirs.as_slice(), foreign), (b"a diary of more than sixteen bytes", text), (b"x", text)]
    {
        fs::write(&path, contents).unwrap();
        for arguments in &all {
            let said = refused(folder.path(), arguments);
            assert!(said.contains(problem) && said.contains("name another"), "{arguments:?}: {said}");
        }
        let (code, said, _) = run(folder.path(), &["check"]);
        assert!(code == 1 && said.contains("database: to do: ") && said.contains(problem), "{said}");
        assert!(fs::read(&path).unwrap() == contents, "not a byte of it is changed");
        assert_eq!(entries(folder.path()), ["taskhold.db"]);
    }
}
