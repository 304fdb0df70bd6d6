//! Where a caller's token must not be found.

use serde_json::json;

use crate::support::client::Client;
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::server::{PATIENCE, Server, binary, new_token};

contract! {
    no_token_reaches_an_upstream_or_a_log,
}

/// Records all that an upstream can see of its caller: its environment and arguments and those of its supervisor, and what
/// comes on its input.
const RECORDING: &str = r#"
{ tr '\0' '\n' < /proc/$$/environ; tr '\0' '\n' < /proc/$$/cmdline; tr '\0' '\n' < /proc/$PPID/environ; tr '\0' '\n' < /proc/$PPID/cmdline; } >> "$RECORD"
tee -a "$RECORD" | "$0" demo-server --test-tools
"#;

// req: AUTH-12
async fn no_token_reaches_an_upstream_or_a_log(database: TestDatabase) {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let binary = binary();
    let config = format!(
        "log = \"trace\"\n[[upstreams]]\nname = \"test\"\ncommand = [\"sh\", \"-c\", '''{RECORDING}''', \"{binary}\"]\n\
         env = {{ RECORD = \"{}\" }}\n",
        record.display()
    );
    std::fs::write(folder.path().join("taskhold.toml"), config).unwrap();
    let token = new_token(&database.url, "caller").await;
    let mut server = Server::start_in(Some(folder.path()), &database.url, &[]).await;
    let client = Client::connected(&server.url, &token).await;

    client.request("tools/list", json!({})).await.result();
    client.call("echo", json!({ "plain": "seen by the upstream" })).await.result();
    client.call("echo", json!([])).await.error();
    let task = client.task("echo", json!({ "task": "seen by the upstream, too" })).await;
    client.result(&task["taskId"]).await.result();
    client.get(&task["taskId"]).await.result();
    let failed = client.task("fail_rpc", json!({ "code": -32011 })).await;
    client.result(&failed["taskId"]).await.error();
    let cancelled = client.task("sleep", json!({ "ms": 60_000 })).await;
    client.cancel(&cancelled["taskId"]).await.result();
    client.list().await;
    // Refused, in each way that there is.
    let last = if token.ends_with('a') { "b" } else { "a" };
    let forged = format!("{}{last}", &token[..token.len() - 1]);
    let refused = Client { token: Some(forged.clone()), ..client.clone() };
    assert_eq!(refused.request("ping", json!({})).await.status, 401);
    for odd in [format!("Bearer  {token}"), format!("Basic {token}"), format!("Bearer {token}, Bearer {token}")] {
        let bare = Client { token: None, ..client.clone() };
        let request = bare.build(reqwest::Method::POST).header("content-type", "application/json");
        let request = request.header("authorization", &odd).body("{}");
        let status = request.send().await.unwrap().status().as_u16();
        assert!((400..=401).contains(&status), "{status}");
    }
    let in_query = Client { token: None, url: format!("{}?access_token={token}", client.url), ..client.clone() };
    assert_eq!(in_query.request("ping", json!({})).await.status, 401, "tokens count in the header only");
    server.signal(rustix::process::Signal::TERM);
    // To the end of its standard error.
    server.listen_for(PATIENCE).await;

    let log = server.log.join("\n");
    let record = std::fs::read_to_string(record).unwrap();
    for sign in ["PATH=", "supervise", "\"server/discover\"", "seen by the upstream", "seen by the upstream, too"] {
        assert!(record.contains(sign), "the record has {sign}");
    }
    assert!(log.contains("\"DEBUG\"") && log.contains("tools/call"), "the log has all that there is");
    // The parts as well: `th`, id, secret, check. The id is no secret; it is what the log may tell a token by.
    let parts: Vec<_> = token.split('_').collect();
    for secret in [token.as_str(), forged.as_str(), parts[2], parts[3]] {
        for (place, text) in [("log", &log), ("upstream", &record)] {
            let found = text.lines().find(|line| line.contains(secret));
            assert_eq!(found, None, "a token is in what the {place} got");
        }
    }
}
