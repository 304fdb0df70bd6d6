//! `serve --auth oauth`, with an issuer that runs in the test.

use std::path::Path;

use reqwest::Method;
use serde_json::json;
use taskhold::domain::clock::{Clock, SystemClock};
use tempfile::TempDir;

use crate::http::harness::until;
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::issuer::{Issuer, Manner, SigningKey, changed};
use crate::support::server::{PATIENCE, Server, binary};

contract! {
    tokens_of_an_issuer_are_taken_and_found_nowhere,
    a_service_starts_while_its_issuer_is_away,
}

/// A folder whose configuration names the issuer.
fn folder(issuer: &Issuer, database: &TestDatabase) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    // The tokens of the tests' issuer are for the endpoint below this.
    let config = format!(
        "log = \"trace\"\n[server]\npublic_url = \"https://mcp.example\"\n[database]\nurl = \"{}\"\n[oauth]\nissuer = \"{}\"\n",
        database.url, issuer.url
    );
    std::fs::write(folder.path().join("taskhold.toml"), config).unwrap();
    folder
}

async fn serve(folder: &Path, database: &TestDatabase) -> Server {
    let upstream = format!("test={} demo-server --test-tools", binary());
    Server::start_in(Some(folder), &database.url, &["--auth", "oauth", "--upstream", &upstream]).await
}

fn token(issuer: &Issuer, key: &SigningKey) -> String {
    key.token(&issuer.claims("ada", SystemClock::new().now().micros() / 1_000_000 + 600))
}

/// What a command of the same configuration writes to standard output and standard error.
async fn run(folder: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = tokio::process::Command::new(binary());
    command.args(arguments).env("TASKHOLD_AUTH_MODE", "oauth").env("TASKHOLD_LOG", "info").current_dir(folder);
    let output = command.output().await.unwrap();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// What `taskhold check` says of the issuer.
async fn checked(folder: &Path) -> String {
    let (stdout, _) = run(folder, &["check"]).await;
    let line = stdout.lines().find(|line| line.starts_with("issuer ")).map(str::to_owned);
    line.unwrap_or_else(|| panic!("{stdout}"))
}

// req: AUTH-10, AUTH-12
async fn tokens_of_an_issuer_are_taken_and_found_nowhere(database: TestDatabase) {
    let key = SigningKey::eddsa("k");
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    let folder = folder(&issuer, &database);
    assert_eq!(checked(folder.path()).await, format!("issuer {}: ok: 1 signing key", issuer.url));
    let mut server = serve(folder.path(), &database).await;
    let good = token(&issuer, &key);
    let client = Client::connected(&server.url, &good).await;
    let task = client.task("echo", json!({ "said": "by ada" })).await;
    assert!(client.result(&task["taskId"]).await.text().contains("by ada"));
    assert_eq!(client.list().await, [task["taskId"].clone()]);

    let elsewhere =
        key.token(&changed(issuer.claims("ada", 4_000_000_000), &json!({ "aud": "https://other.example" })));
    let unknown = token(&issuer, &SigningKey::eddsa("unknown"));
    let (ours, said) = run(folder.path(), &["token", "create", "--name", "x"]).await;
    assert!(said.contains("takes tokens of oauth.issuer, and not this one"), "{said}");
    for bad in [&elsewhere, &unknown, &ours.trim().to_owned()] {
        let refused = Client { token: Some(bad.clone()), ..client.clone() }.request("ping", json!({})).await;
        assert_eq!((refused.status, refused.body.as_str()), (401, ""));
        let challenge = refused.header("www-authenticate").unwrap();
        assert!(challenge.contains("https://mcp.example/.well-known/oauth-protected-resource/mcp"), "{challenge}");
    }
    server.signal(rustix::process::Signal::TERM);
    // To the end of its standard error.
    server.listen_for(PATIENCE).await;
    let log = server.log.join("\n");
    assert!(log.contains("its aud does not have oauth.audience"), "an operator is told why");
    for token in [good, elsewhere, unknown] {
        // The claims and the signature by themselves as well.
        let parts = token.split('.').skip(1).map(str::to_owned);
        for secret in parts.chain([token.clone()]) {
            assert_eq!(log.lines().find(|line| line.contains(&secret)), None, "a token is in the log");
        }
    }
}

// req: AUTH-10, KEEP-11
async fn a_service_starts_while_its_issuer_is_away(database: TestDatabase) {
    let key = SigningKey::es256("k");
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    issuer.behave(Manner { away: true, ..Manner::default() });
    let folder = folder(&issuer, &database);
    let problem = checked(folder.path()).await;
    assert!(problem.starts_with(&format!("issuer {}: to do: ", issuer.url)) && problem.contains("503"), "{problem}");
    let server = serve(folder.path(), &database).await;
    let ready = reqwest::get(server.url.replace("/mcp", "/readyz")).await.unwrap();
    assert_eq!(ready.status(), 200, "other nodes are no better off");
    let client = Client::new(&server.url, Some(&token(&issuer, &key)));
    let stream = async || Answer::read(client.build(Method::GET).send().await.unwrap()).await;
    let away = stream().await;
    assert_eq!((away.status, away.header("retry-after")), (503, Some("1")), "{away:?}");
    issuer.behave(Manner::default());
    // 400: it would need a session.
    until("the issuer's keys to be known", async || stream().await.status == 400).await;
}
