//! Commands on a database that has several servers, whichever stands first.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::check::{assert_says, check};
use super::run;
use crate::support::cluster::{Cluster, Stop};

/// A folder whose configuration names these servers.
fn folder(urls: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("taskhold.toml"), several(urls)).unwrap();
    folder
}

fn several(urls: &[&str]) -> String {
    format!("[database]\nurls = {urls:?}\n")
}

fn done(folder: &Path, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = run(folder, arguments);
    assert_eq!(code, 0, "{arguments:?}: {stderr}");
    stdout
}

// req: KEEP-11, OPS-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_finds_the_server_that_takes_writes_and_check_says_how_each_stands() {
    let primary = Cluster::new(&[]).await;
    let first = primary.create_database("tasks").await;
    let standby = primary.standby().await;
    let second = standby.url("tasks");
    let name = |url: &str| url.split_once('@').unwrap().1.to_owned();
    let is = |url: &str, state: &str| format!("database server {}: {state}", name(url));

    // A standby first, and all there is to do.
    let here = folder(&[&second, &first]);
    done(here.path(), &["migrate"]);
    done(here.path(), &["token", "create", "--name", "a"]);
    let listed: Value = serde_json::from_str(&done(here.path(), &["token", "list", "--json"])).unwrap();
    done(here.path(), &["token", "revoke", listed[0]["id"].as_str().unwrap()]);
    done(here.path(), &["tasks", "list"]);
    let said = check(&several(&[&second, &first]));
    assert_says(&said, &[&is(&second, "ok: standby"), &is(&first, "ok: primary: it takes writes"), "database: ok"]);
    assert_eq!(said.0, 0, "{}", said.1);

    // A standby alone takes no writes; who only reads may.
    for settings in [several(&[&second]), format!("[database]\nurl = {second:?}\n")] {
        let said = check(&settings);
        assert_says(&said, &["database: to do: "]);
        assert!(
            said.1.contains("the server is a standby, which takes no writes, so that serve cannot start"),
            "{}",
            said.1
        );
    }
    let alone = folder(&[&second]);
    let (code, _, stderr) = run(alone.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert!(code == 1 && stderr.contains("(25006)") && stderr.contains("taskhold check says"), "{stderr}");
    done(alone.path(), &["tasks", "list"]);
    done(alone.path(), &["token", "list"]);
    let said = check(&format!("[database]\nurl = {first:?}\nlisten_url = {second:?}\n"));
    assert!(said.1.contains(": to do: the server is a standby, where nothing can be heard"), "{}", said.1);
    let said = check(&format!("[database]\nurl = {first:?}\nlisten_url = [{second:?}, {first:?}]\n"));
    assert_says(&said, &[&format!("database.listen_url {}: ok: standby", name(&second))]);
    assert_eq!(said.0, 0, "{}", said.1);

    // One that was set aside, and none that takes writes.
    primary.set("default_transaction_read_only", "on").await;
    let said = check(&several(&[&first, &second]));
    assert_says(&said, &[&is(&first, "ok: read-only"), &is(&second, "ok: standby"), "database: to do: "]);
    assert!(said.1.contains("none of the servers takes writes") && said.1.contains("promote one"), "{}", said.1);
    let (code, _, stderr) = run(folder(&[&first, &second]).path(), &["tasks", "list"]);
    assert!(code == 1 && stderr.matches("the server is a standby or read-only").count() == 2, "{stderr}");

    // The old primary is gone, and comes back as it was.
    primary.set("default_transaction_read_only", "off").await;
    primary.stop(Stop::Immediate).await;
    standby.promote().await;
    let said = check(&several(&[&first, &second]));
    assert_says(&said, &[&is(&first, "to do: unreachable: "), &is(&second, "ok: primary"), "database: ok"]);
    primary.start().await;
    let said = check(&several(&[&first, &second]));
    assert_says(&said, &[&is(&first, "ok: primary"), &is(&second, "ok: primary"), "database: to do: "]);
    assert!(said.1.contains("more than one server takes writes") && !said.1.contains("database: ok"), "{}", said.1);
    // One server with two databases.
    let other = format!("{}/postgres", second.rsplit_once('/').unwrap().0);
    let said = check(&several(&[&second, &other]));
    assert_says(&said, &["database: to do: "]);
    assert!(said.1.contains("database.urls name several databases (postgres, "), "{}", said.1);
    // One server under two names is one.
    let again = second.replace("127.0.0.1", "localhost");
    let said = check(&several(&[&second, &again]));
    assert_says(&said, &[&is(&second, "ok: primary"), &is(&again, "ok: primary")]);
    assert!(!said.1.contains("more than one"), "{}", said.1);
}
