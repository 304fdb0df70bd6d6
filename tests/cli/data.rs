//! Commands on a database: SQLite in a folder of its own.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use taskhold::domain::clock::{Clock, SystemClock, Timestamp};
use taskhold::domain::context::{AuthContext, Credential};
use taskhold::domain::ids::TaskId;
use taskhold::domain::json::RawJson;
use taskhold::domain::lease::RestartPolicy;
use taskhold::domain::queue::Counted;
use taskhold::domain::retention::Ttl;
use taskhold::domain::work::{CallKey, NewTask};
use taskhold::store::{self, DatabaseOptions};

use super::run;

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let (code, stdout, stderr) = run(folder, arguments);
    assert_eq!(code, 0, "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {stdout}"))
}

fn fails(folder: &Path, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = run(folder, arguments);
    assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}: {stderr}");
    stderr
}

// req: OPS-03, AUTH-06
#[test]
fn a_token_is_printed_once_alone_and_never_again() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(folder.path(), &["token", "create", "--name", "ci", "--expires", "30d"]);
    assert_eq!(code, 0, "{stderr}");
    let token = stdout.strip_suffix('\n').unwrap();
    assert!(token.starts_with("th_") && !token.contains(char::is_whitespace), "{token}");
    assert!(!stderr.contains(token));
    let secret = token.split('_').nth(2).unwrap();
    for arguments in [&["token", "list"][..], &["token", "list", "--json"]] {
        let (_, stdout, stderr) = run(folder.path(), arguments);
        assert!(stdout.contains("ci") && !stdout.contains(secret) && !stderr.contains(secret), "{stdout}");
    }
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "the database has the secret");
    }
    let tokens = json(folder.path(), &["token", "list", "--json"]);
    assert_eq!((&tokens[0]["name"], &tokens[0]["state"]), (&"ci".into(), &"active".into()));
    assert!(tokens[0]["expires"].is_string());
}

#[test]
fn a_token_that_nobody_could_use_or_tell_from_others_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, message) in [
        (&["--name", ""][..], "expected a text that is not empty and has no control characters"),
        (&["--name", "a", "--tenant", " "], "expected a text that is not empty and has no control characters"),
        (&["--name", "a\u{1b}[31m"], "expected a text that is not empty and has no control characters"),
        (&["--name", "a", "--expires", "never"], "expected a duration such as 30d, 12h or 1h 30min"),
        (&["--name", "a", "--expires", "0s"], "expected more than 0s"),
    ] {
        let (code, stdout, stderr) = run(folder.path(), &[&["token", "create"], arguments].concat());
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(stderr.contains(message), "{stderr}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no database was made for it");
}

// req: OPS-03, AUTH-05
#[test]
fn each_token_has_its_own_context_unless_it_joins_one_or_is_rotated() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = json(folder, &["token", "create", "--name", "a", "--tenant", "acme", "--json"]);
    let second = json(folder, &["token", "create", "--name", "b", "--json"]);
    assert_ne!(first["context"], second["context"]);
    let context = first["context"].as_str().unwrap();
    let joined = json(folder, &["token", "create", "--name", "c", "--context", context, "--json"]);
    assert_eq!((&joined["context"], &joined["tenant"]), (&first["context"], &"acme".into()));
    let rotated = json(folder, &["token", "rotate", first["id"].as_str().unwrap(), "--json"]);
    assert_eq!((&rotated["context"], &rotated["name"]), (&first["context"], &"a".into()));
    assert_ne!(rotated["token"], first["token"]);
    let graced = json(folder, &["token", "rotate", second["id"].as_str().unwrap(), "--grace", "1h", "--json"]);
    assert_eq!(graced["context"], second["context"]);
    let tokens = json(folder, &["token", "list", "--json"]);
    let state = |id: &Value| {
        let token = tokens.as_array().unwrap().iter().find(|token| token["id"] == *id).unwrap();
        (token["state"].as_str().unwrap().to_owned(), token["expires"].is_string())
    };
    assert_eq!(state(&first["id"]), ("revoked".to_owned(), false));
    assert_eq!(state(&second["id"]), ("active".to_owned(), true));
    assert_eq!(state(&graced["id"]), ("active".to_owned(), false));

    let stranger = "00000000-0000-4000-8000-000000000000";
    for (arguments, message) in [
        (&["token", "create", "--name", "d", "--context", stranger][..], "there is no context "),
        (
            &["token", "create", "--name", "d", "--context", context, "--tenant", "beta"],
            "belongs to tenant \"acme\", not to",
        ),
        (&["token", "revoke", stranger], "there is no token "),
        (&["token", "rotate", stranger], "there is no token "),
        (&["token", "rotate", first["id"].as_str().unwrap()], "is revoked or has expired and cannot be rotated"),
    ] {
        let stderr = fails(folder, arguments);
        assert!(stderr.contains(message), "{stderr}");
    }
}

// req: OPS-03
#[test]
fn a_revoked_token_is_listed_as_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let token = json(folder.path(), &["token", "create", "--name", "a", "--json"]);
    let revoked = json(folder.path(), &["token", "revoke", token["id"].as_str().unwrap(), "--json"]);
    assert_eq!((&revoked["id"], &revoked["state"]), (&token["id"], &"revoked".into()));
    assert_eq!(json(folder.path(), &["token", "list", "--json"])[0]["state"], "revoked");
    let (_, table, _) = run(folder.path(), &["token", "list"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[1].contains("  revoked  a  "), "{table}");
}

// req: OPS-03
#[test]
fn tasks_that_are_not_there_are_said_to_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(folder.path(), &["migrate"]).0, 0);
    assert_eq!(json(folder.path(), &["tasks", "list", "--json"]), serde_json::json!([]));
    let stranger = "00000000-0000-4000-8000-000000000000";
    for command in ["show", "cancel"] {
        let stderr = fails(folder.path(), &["tasks", command, stranger]);
        assert!(stderr.contains(&format!("there is no task {stranger}")), "{stderr}");
    }
}

/// A task of the context of a new token, as the engine would make it.
fn task(folder: &Path) -> (String, String) {
    stored(folder, None)
}

fn stored(folder: &Path, keyed: Option<CallKey>) -> (String, String) {
    let token = json(folder, &["token", "create", "--name", "a", "--tenant", "acme", "--json"]);
    let context = token["context"].as_str().unwrap().to_owned();
    let url = format!("sqlite://{}", folder.join("taskhold.db").display());
    let now = SystemClock::new().now();
    let new = NewTask {
        id: TaskId::new(),
        session: None,
        tool: "slow".to_owned(),
        upstream: "demo".to_owned(),
        upstream_tool: "slow_tool".to_owned(),
        params: RawJson::trusted("{}"),
        created: now,
        granted: Ttl::Milliseconds(60_000),
        hard_end: now + Duration::from_secs(3600),
        poll_interval_ms: 1000,
        restart: RestartPolicy::Fail,
        attempts_allowed: 3,
        run_limit: Duration::from_secs(60),
        capabilities: RawJson::trusted("{}"),
        progress_token: None,
        keyed,
        counted: Counted::default(),
        claim: None,
    };
    let id = new.id.to_string();
    let caller = AuthContext::verified(context.parse().unwrap(), None, Credential::Anonymous);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let options = DatabaseOptions { max_connections: 4, ..DatabaseOptions::new(url) };
        let store = store::open(&options).await.unwrap();
        let said = vec![(new.id, "queued\u{1b}[31m".to_owned())];
        store.scoped(&caller).create(new).await.unwrap();
        store.system().note_waiting(said, now).await.unwrap();
        store.system().close().await;
    });
    (id, context)
}

// req: OPS-03
#[test]
fn operators_list_show_and_cancel_tasks_of_every_context() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (first, context) = task(folder);
    let (second, _) = task(folder);
    // Calls that are stored and are no tasks are not shown as some.
    let (call, _) = stored(folder, Some(CallKey { key: Some("k".to_owned()), digest: "d".to_owned(), parked: true }));
    assert!(fails(folder, &["tasks", "show", &call]).contains(&format!("there is no task {call}")));
    let refused = fails(folder, &["tasks", "cancel", &call]);
    assert!(refused.contains(&format!("{call} is no task but a call")), "{refused}");
    assert!(fails(folder, &["tasks", "cancel", &call]).contains("is not cancelled here"), "it goes on");
    let listed = json(folder, &["tasks", "list", "--json"]);
    let ids: Vec<&str> = listed.as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [&second, &first], "newest first");
    assert_eq!(json(folder, &["tasks", "list", "--json", "--limit", "1"]).as_array().unwrap().len(), 1);
    let (_, table, _) = run(folder, &["tasks", "list"]);
    let row = format!("{first}  working  slow  acme    ");
    assert!(table.lines().any(|line| line.starts_with(&row)) && !table.contains('\u{1b}'), "{table}");

    let shown = json(folder, &["tasks", "show", &first, "--json"]);
    for (member, value) in [
        ("status", "working"),
        ("tool", "slow"),
        ("upstream", "demo"),
        ("upstream_tool", "slow_tool"),
        ("tenant", "acme"),
        ("context", context.as_str()),
    ] {
        assert_eq!(shown[member], value, "{member}");
    }
    assert!(shown.get("outcome").is_none());

    let cancelled = json(folder, &["tasks", "cancel", &first, "--json"]);
    assert_eq!(cancelled, serde_json::json!({ "id": first, "status": "cancelled" }));
    let shown = json(folder, &["tasks", "show", &first, "--json"]);
    assert_eq!(shown["status"], "cancelled");
    assert_eq!(shown["message"], "cancelled by an operator");
    assert_eq!(shown["outcome"], serde_json::json!({ "kind": "cancelled", "json": null }));
    let created = Timestamp::parse_rfc3339(shown["created"].as_str().unwrap()).unwrap();
    let expires = Timestamp::parse_rfc3339(shown["expires"].as_str().unwrap()).unwrap();
    assert!(expires.since(created) >= Duration::from_secs(600), "kept for the minimum retention");
    assert!(fails(folder, &["tasks", "cancel", &first]).contains("has already ended"));
    let (_, text, _) = run(folder, &["tasks", "show", &first]);
    assert!(text.contains("status        cancelled\n") && text.contains("outcome       cancelled\n"), "{text}");
    assert_eq!(json(folder, &["tasks", "show", &second, "--json"])["status"], "working");
}

// req: OPS-03
#[test]
fn migrations_are_checked_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let by_hand = ["--database-url", "sqlite://other.db"];
    std::fs::write(folder.path().join("taskhold.toml"), "[database]\nmigrate = \"off\"\n").unwrap();
    let with = |arguments: &[&'static str]| [arguments, &by_hand].concat();
    fails(folder.path(), &with(&["migrate", "--check"]));
    let (code, missing, _) = run(folder.path(), &with(&["migrate", "--check", "--json"]));
    let missing: Value = serde_json::from_str(&missing).unwrap();
    assert_eq!((code, &missing["database"]), (1, &"sqlite://other.db".into()));
    assert!(!missing["pending"].as_array().unwrap().is_empty());
    assert!(!folder.path().join("other.db").exists(), "a check makes nothing");
    fails(folder.path(), &with(&["token", "list"]));
    let (code, stdout, stderr) = run(folder.path(), &with(&["migrate"]));
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert!(stderr.contains("the database sqlite://other.db is up to date"), "{stderr}");
    for _ in 0..2 {
        assert_eq!(run(folder.path(), &with(&["migrate", "--check"])).0, 0);
        assert_eq!(run(folder.path(), &with(&["migrate"])).0, 0);
    }
    assert_eq!(json(folder.path(), &with(&["migrate", "--json"]))["pending"], serde_json::json!([]));
    assert_eq!(run(folder.path(), &with(&["token", "list"])).0, 0);
    assert!(folder.path().join("other.db").exists() && !folder.path().join("taskhold.db").exists());
}

// req: OPS-03
#[test]
fn check_says_ok_or_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(folder.path(), &["check"]);
    assert_eq!(code, 1);
    assert!(
        stdout.contains("\nupstreams: to do: none is configured, so there are no tools: add [[upstreams]]"),
        "{stdout}"
    );
    let missing = "[[upstreams]]\nname = \"gone\"\ncommand = \"no-such-program-anywhere --x\"\n";
    std::fs::write(folder.path().join("taskhold.toml"), missing).unwrap();
    let (code, stdout, _) = run(folder.path(), &["check"]);
    assert_eq!(code, 1);
    assert!(stdout.contains("upstream gone: to do: the program \"no-such-program-anywhere\" is not found"), "{stdout}");
    let findings = json_of_failed_check(folder.path());
    assert_eq!((&findings[0]["what"], &findings[0]["ok"]), (&"configuration".into(), &true.into()));
}

fn json_of_failed_check(folder: &Path) -> Value {
    let (code, stdout, _) = run(folder, &["check", "--json"]);
    assert_eq!(code, 1);
    serde_json::from_str(&stdout).unwrap()
}
