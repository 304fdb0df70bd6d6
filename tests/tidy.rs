//! Reads the source tree as text and fails when a wall of `ARCHITECTURE.md` is broken or the house is untidy.
//!
//! Each rule is a function from text to faults; the tests below run it on the tree, and on bad samples that it must find.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use self::source::{Named, module_of, names, product, test_files};

mod source;

/// What each part of the crate may name of the others, beside itself. `x` is what `x/mod.rs` itself offers,
/// `x::*` also what its submodules do, `x::y` what that one does. Parts that are not listed (`app`, `cli`, `main`, ...) compose: they are free.
const WALLS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("lifecycle", &[]),
    ("protocol", &["domain::*"]),
    ("store", &["domain::*", "lifecycle"]),
    ("executor", &["domain::*", "protocol::*", "store", "lifecycle"]),
    ("engine", &["domain::*", "store", "executor", "lifecycle"]),
    ("auth", &["domain::*", "store", "lifecycle"]),
    ("http", &["domain::*", "protocol::*", "engine::*", "auth::*", "store", "lifecycle"]),
    ("config", &["domain::*", "store", "executor::*", "engine", "auth", "http"]),
    ("demo", &["domain::clock", "domain::ids", "lifecycle"]),
    ("bench", &["domain::*", "protocol::*", "lifecycle"]),
];

/// Names that a part may not use even where the wall has a door for it.
const CLOSED: &[(&str, &str, &str)] = &[
    ("executor", "store::ScopedStore", "an executor never acts for a caller"),
    ("engine", "store::Database", "the engine holds a scoped or a system handle"),
    ("http", "store::Database", "request-facing code holds a scoped handle"),
    ("http", "store::SystemStore", "request-facing code holds a scoped handle"),
    ("config", "store::Store", "settings touch no data"),
    ("config", "store::Database", "settings touch no data"),
];

/// External crates and the parts that may name them.
const HOMES: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("axum", &["http", "app"]),
    ("hyper", &["http", "app", "demo", "bench"]),
    ("hyper_util", &["http", "app", "demo", "bench"]),
    ("hyper_rustls", &["bench"]),
    ("rustls", &["bench"]),
    ("reqwest", &["executor", "config", "auth"]),
    ("jsonwebtoken", &["auth"]),
    ("tower_http", &["http", "app"]),
    ("dotenvy", &["config"]),
];

/// Functions of `std::env` that read the environment.
const ENVIRONMENT: [&str; 4] = ["var", "vars", "var_os", "vars_os"];

/// The most lines of a file, without its tests.
const LONGEST: usize = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// The faults of one source file against walls, homes and the reading of the environment. `modules` holds every
/// module of the crate as `store::sqlite`.
fn walls(file: &str, text: &str, modules: &BTreeSet<String>) -> Vec<Fault> {
    let module = module_of(file);
    let part = module.first().map_or("main", String::as_str);
    let mut faults = Vec::new();
    for Named { line, ours, path } in names(&module, product(text)) {
        let mut fault = |what: String| faults.push(Fault { file: file.to_owned(), line, what });
        let joined = path.join("::");
        if ours {
            let Some(target) = path.first() else { continue };
            let Some((_, allowed)) = WALLS.iter().find(|(from, _)| *from == part) else { continue };
            let deep = path.len() > 1 && modules.contains(&format!("{target}::{}", path[1]));
            let open = target == part
                || allowed.contains(&format!("{target}::*").as_str())
                || (deep && allowed.contains(&format!("{target}::{}", path[1]).as_str()))
                || (!deep && allowed.contains(&target.as_str()));
            if !open {
                fault(format!("{part} must not know {joined}"));
            } else if let Some((_, _, why)) = CLOSED.iter().find(|(from, to, _)| *from == part && *to == joined) {
                fault(format!("{part} must not know {joined}: {why}"));
            }
        } else {
            let first = path.first().map_or("", String::as_str);
            if let Some((_, homes)) = HOMES.iter().find(|(name, _)| *name == first)
                && !homes.contains(&part)
            {
                fault(format!("{part} must not know {first}, whose homes are {}", homes.join(", ")));
            }
            let reads = path.windows(2).any(|pair| pair[0] == "env" && ENVIRONMENT.contains(&pair[1].as_str()));
            if reads && part != "config" {
                fault(format!("{part} must not read the environment ({joined}), only config does"));
            }
        }
    }
    faults
}

fn too_long(file: &str, text: &str) -> Option<Fault> {
    let lines = product(text).lines().count();
    let what = format!("{lines} lines without tests, more than {LONGEST}: split it by noun");
    (lines > LONGEST).then(|| Fault { file: file.to_owned(), line: LONGEST + 1, what })
}

/// Marks of unfinished work, tests that are switched off without a reason, and paths of somebody's machine.
fn leftovers(file: &str, text: &str) -> Vec<Fault> {
    // Spelled in halves, so that this file is clean by its own rule.
    let marks = [("TO", "DO"), ("FIX", "ME"), ("unimpl", "emented!"), ("to", "do!")];
    let paths = [("/wo", "rk/"), ("/ro", "ot/"), ("/ho", "me/"), ("/Us", "ers/")];
    let is_rust = Path::new(file).extension().is_some_and(|extension| extension == "rs");
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut fault = |what: String| faults.push(Fault { file: file.to_owned(), line: number + 1, what });
        for mark in marks.map(|(a, b)| format!("{a}{b}")).iter().filter(|mark| has_word(line, mark)) {
            fault(format!("{mark} is left"));
        }
        for path in paths.map(|(a, b)| format!("{a}{b}")).iter().filter(|path| line.contains(path.as_str())) {
            fault(format!("{path} is a path of one machine"));
        }
        if is_rust && line.trim_start().starts_with("#[ignore") && !line.trim_start().starts_with("#[ignore = \"") {
            fault("a test is switched off without a reason".to_owned());
        }
    }
    faults
}

fn migrations_differ(postgres: &BTreeSet<String>, sqlite: &BTreeSet<String>) -> Vec<Fault> {
    let fault = |name: &String| Fault {
        file: format!("migrations/*/{name}"),
        line: 1,
        what: "is there for one database only".to_owned(),
    };
    postgres.symmetric_difference(sqlite).map(fault).collect()
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        ![before, after].into_iter().flatten().any(|c| c.is_alphanumeric() || c == '_')
    })
}

// --- reading the tree --------------------------------------------------------------------------------------------

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text files below `folder`, as paths from the root, with their text.
fn files(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if ["target", "node_modules", ".git", ".venv"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((from_root(&path), text));
            }
        }
    }
    found.sort();
    found
}

fn from_root(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_string_lossy().into_owned()
}

/// The sources of the product, without files of tests.
fn product_files() -> Vec<(String, String)> {
    let mut sources = files("src");
    let tests = test_files(&sources);
    sources.retain(|(file, _)| !tests.iter().any(|test| module_of(file).starts_with(test)));
    assert!(sources.len() > 20, "the source tree was not found");
    sources
}

fn assert_none(faults: &[Fault]) {
    let lines: Vec<String> = faults.iter().map(Fault::to_string).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), lines.join("\n"));
}

#[test]
fn no_wall_is_broken() {
    let sources = product_files();
    let modules = sources.iter().map(|(file, _)| module_of(file).join("::")).collect();
    let faults: Vec<Fault> = sources.iter().flat_map(|(file, text)| walls(file, text, &modules)).collect();
    assert_none(&faults);
}

#[test]
fn no_source_file_is_too_long() {
    let faults: Vec<Fault> = product_files().iter().filter_map(|(file, text)| too_long(file, text)).collect();
    assert_none(&faults);
}

#[test]
fn nothing_is_left_over() {
    let faults: Vec<Fault> = files("").iter().flat_map(|(file, text)| leftovers(file, text)).collect();
    assert_none(&faults);
}

#[test]
fn both_databases_have_the_same_migrations() {
    let names = |database: &str| -> BTreeSet<String> {
        let folder: PathBuf = root().join("migrations").join(database);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    let (postgres, sqlite) = (names("postgres"), names("sqlite"));
    assert!(!postgres.is_empty(), "no migrations were found");
    assert_none(&migrations_differ(&postgres, &sqlite));
}

// --- the rules find what they are for ----------------------------------------------------------------------------

fn found(file: &str, text: &str) -> Vec<String> {
    let modules = [
        "store",
        "store::sqlite",
        "executor",
        "executor::upstream",
        "domain",
        "domain::ids",
        "domain::task",
        "engine",
        "http",
    ]
    .map(str::to_owned)
    .into();
    walls(file, text, &modules).into_iter().map(|fault| format!("{}: {}", fault.line, fault.what)).collect()
}

#[test]
fn a_broken_wall_is_found_however_it_is_written() {
    let what = ["1: domain must not know store::Store"];
    assert_eq!(found("src/domain/task.rs", "use crate::store::Store;"), what);
    assert_eq!(found("src/domain/task.rs", "use super::super::store::Store;"), what);
    assert_eq!(found("src/domain/mod.rs", "use super::store::Store;"), what);
    assert_eq!(found("src/domain/task.rs", "use crate::{domain::ids::TaskId, store::Store};"), what);
    assert_eq!(found("src/domain/task.rs", "fn f(store: &crate::store::Store) {}"), what);
    assert_eq!(found("src/domain/task.rs", "use crate::store::*;"), ["1: domain must not know store::*"]);
    assert_eq!(
        found("src/domain/a/b.rs", "\nuse crate::{\n    domain::ids,\n    store::{self, sqlite::Lite},\n};"),
        ["4: domain must not know store", "4: domain must not know store::sqlite::Lite"]
    );
}

#[test]
fn a_door_for_the_root_does_not_open_the_submodules() {
    assert_eq!(found("src/engine/get.rs", "use crate::store::{ScopedStore, StoreError};").len(), 0);
    assert_eq!(found("src/engine/get.rs", "use crate::executor::Executor;").len(), 0);
    assert_eq!(
        found("src/engine/get.rs", "use crate::executor::upstream::Link;"),
        ["1: engine must not know executor::upstream::Link"]
    );
    assert_eq!(
        found("src/engine/get.rs", "use crate::store::sqlite::open;"),
        ["1: engine must not know store::sqlite::open"]
    );
    assert_eq!(found("src/engine/get.rs", "use crate::http::Error;"), ["1: engine must not know http::Error"]);
    assert_eq!(found("src/executor/upstream/link.rs", "use crate::store::SystemStore;").len(), 0);
    assert_eq!(
        found("src/executor/upstream/link.rs", "use crate::store::ScopedStore;"),
        ["1: executor must not know store::ScopedStore: an executor never acts for a caller"]
    );
}

#[test]
fn a_door_for_one_submodule_opens_no_other() {
    assert_eq!(found("src/demo/tasks.rs", "use crate::domain::ids::random_bytes;").len(), 0);
    assert_eq!(
        found("src/demo/tasks.rs", "use crate::domain::task::Task;"),
        ["1: demo must not know domain::task::Task"]
    );
    assert_eq!(found("src/demo/tasks.rs", "use crate::domain::*;"), ["1: demo must not know domain::*"]);
}

#[test]
fn a_crate_away_from_home_is_found() {
    let what = ["1: engine must not know sqlx, whose homes are store"];
    assert_eq!(found("src/engine/get.rs", "use sqlx::Row;"), what);
    assert_eq!(found("src/engine/get.rs", "use {sqlx::Row, std::fmt};"), what);
    assert_eq!(found("src/engine/get.rs", "use sqlx;"), what);
    assert_eq!(found("src/engine/get.rs", "fn f() { ::sqlx::query(x); }"), what);
    assert_eq!(found("src/engine/get.rs", "use ::sqlx::Row;"), what);
    assert_eq!(found("src/engine/get.rs", "fn f() { ours::sqlx::query(x); }").len(), 0);
    assert_eq!(
        found("src/main.rs", "fn f(a: axum::Router) {}"),
        ["1: main must not know axum, whose homes are http, app"]
    );
    assert_eq!(found("src/store/sqlite.rs", "use sqlx::Row;").len(), 0);
    assert_eq!(found("src/app.rs", "use axum::Router; use sqlx::Row;").len(), 1);
}

#[test]
fn reading_the_environment_is_found() {
    let what = ["1: cli must not read the environment (std::env::var), only config does"];
    assert_eq!(found("src/cli/serve.rs", "fn f() { std::env::var(\"HOME\"); }"), what);
    assert_eq!(found("src/cli/serve.rs", "use std::{env, fmt}; fn f() { env::vars_os(); }").len(), 1);
    assert_eq!(found("src/cli/serve.rs", "fn f() { std::env::current_exe(); }").len(), 0);
    assert_eq!(found("src/config/mod.rs", "fn f() { std::env::var(\"HOME\"); }").len(), 0);
}

#[test]
fn comments_strings_and_tests_are_no_code() {
    let text = "//! [`crate::store`]\n/* sqlx::Row */\nconst A: &str = \"crate::store::Store\";\nconst B: &str = r#\"\"sqlx::\"#;\n\
                const C: char = '\"';\nfn f<'a>(x: &'a str) {}\n#[cfg(test)]\nmod tests {\n    use crate::store::Store;\n}\n";
    assert_eq!(found("src/domain/task.rs", text), Vec::<String>::new());
    let after_character = "const C: char = '\"'; const D: char = '\\''; use sqlx::Row;";
    assert_eq!(found("src/domain/task.rs", after_character).len(), 1);
}

#[test]
fn files_of_tests_are_known_and_hide_nothing_else() {
    let text = "mod a;\n#[cfg(test)]\nmod checks;\nuse sqlx::Row;\n#[cfg(test)]\nmod tests {}\n";
    let sources = [("src/domain/mod.rs".to_owned(), text.to_owned())];
    assert_eq!(test_files(&sources), [vec!["domain".to_owned(), "checks".to_owned()]].into());
    assert_eq!(found("src/domain/mod.rs", text).len(), 1);
}

#[test]
fn a_long_file_is_found() {
    let lines = "fn f() {}\n".repeat(LONGEST);
    assert_eq!(too_long("src/a.rs", &format!("{lines}#[cfg(test)]\nmod tests {{\n{lines}}}\n")), None);
    assert!(too_long("src/a.rs", &format!("{lines}fn g() {{}}\n")).is_some());
}

#[test]
fn leftovers_are_found() {
    let count = |file: &str, text: &str| leftovers(file, text).len();
    assert_eq!(count("src/a.rs", &format!("// {}: later", ["TO", "DO"].concat())), 1);
    assert_eq!(count("src/a.rs", &format!("fn f() {{ {}() }}", ["to", "do!"].concat())), 1);
    assert_eq!(count("README.md", &format!("see {}x", ["/ro", "ot/"].concat())), 1);
    assert_eq!(count("tests/a.rs", "    #[ignore]"), 1);
    assert_eq!(count("tests/a.rs", "    #[ignore = \"takes an hour\"]"), 0);
    assert_eq!(count("src/a.rs", "let mastodons = autodo;"), 0);
}

#[test]
fn a_migration_of_one_database_only_is_found() {
    let of = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(migrations_differ(&of(&["0001_start.sql"]), &of(&["0001_start.sql"])), []);
    assert_eq!(migrations_differ(&of(&["0001_start.sql", "0002_more.sql"]), &of(&["0001_start.sql"])).len(), 1);
}
