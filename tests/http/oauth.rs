//! A service whose callers show access tokens of an OAuth issuer.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use taskhold::auth::{OauthAuthenticator, OauthRules};
use taskhold::domain::clock::{Clock, ManualClock, SystemClock};
use taskhold::domain::scope::Scope;
use taskhold::http::{HttpRules, ProtectedResource};

use super::harness::{Front, Parts, engine_rules, http_rules, tools};
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase};
use crate::support::issuer::{Issuer, SigningKey, changed};
use crate::support::script::{Script, Tools};
use crate::upstream::harness::within;

contract! {
    a_token_that_lapses_takes_its_stream_and_not_its_task,
}

/// Behind a proxy that adds a path.
const PUBLIC_URL: &str = "https://x.example/t/acme";
const RESOURCE: &str = "https://x.example/t/acme/mcp";
pub const METADATA: &str = "https://x.example/.well-known/oauth-protected-resource/t/acme/mcp";
const ALL_SCOPES: &str = "tasks:read tasks:write tools:call";

pub struct World {
    pub front: Front,
    issuer: Issuer,
    key: SigningKey,
    clock: Arc<ManualClock>,
    pub script: Arc<Script>,
    _database: TestDatabase,
}

impl World {
    pub async fn on_sqlite() -> Self {
        Self::on(TestDatabase::new(Backend::Sqlite).await).await
    }

    async fn on(database: TestDatabase) -> Self {
        Self::by(database, true).await
    }

    /// `require_scopes` is what is configured by that name.
    async fn by(database: TestDatabase, require_scopes: bool) -> Self {
        let key = SigningKey::es256("k");
        let issuer = Issuer::start(std::slice::from_ref(&key)).await;
        let clock = ManualClock::at(SystemClock::new().now());
        let rules = OauthRules {
            issuer: issuer.url.clone(),
            audience: RESOURCE.to_owned(),
            jwks_url: None,
            tenant_claim: None,
            client_claim: None,
            leeway: Duration::ZERO,
            require_scopes,
        };
        let auth = OauthAuthenticator::unattended(rules, database.store.system(), clock.clone()).unwrap();
        let script = Script::new();
        let parts = Parts {
            store: database.store.clone(),
            executor: script.clone(),
            catalogue: Tools::new(tools()),
            auth: Arc::new(auth),
            rules: engine_rules(),
        };
        let scopes: &[Scope] = if require_scopes { &Scope::ALL } else { &[] };
        let resource = Some(ProtectedResource::new(PUBLIC_URL, &issuer.url, scopes));
        let front = Front::start_by(parts, HttpRules { resource, ..http_rules() }).await;
        Self { front, issuer, key, clock, script, _database: database }
    }

    /// One that is good for so long, with these scopes.
    pub fn token(&self, seconds: i64, scope: &str) -> String {
        let ends = self.clock.now().micros() / 1_000_000 + seconds;
        self.key.token(&changed(self.issuer.claims("ada", ends), &json!({ "aud": RESOURCE, "scope": scope })))
    }

    pub fn client(&self, token: Option<&str>) -> Client {
        Client::new(&self.front.url, token)
    }
}

pub fn challenge(answer: &Answer) -> &str {
    answer.header("www-authenticate").unwrap_or_else(|| panic!("no challenge in {answer:?}"))
}

// req: AUTH-01, AUTH-10
// field case: F-AUTH-05
#[tokio::test]
async fn who_has_no_good_token_is_told_where_to_get_one() {
    let world = World::on_sqlite().await;
    let (bad, lapsed) = ("no.jwt.atall", world.token(0, ALL_SCOPES));
    for (token, error) in
        [(None, ""), (Some(bad), "error=\"invalid_token\", "), (Some(lapsed.as_str()), "error=\"invalid_token\", ")]
    {
        let client = world.client(token);
        let expected = format!("Bearer {error}resource_metadata=\"{METADATA}\", scope=\"{ALL_SCOPES}\"");
        let bare = async |method| Answer::read(client.build(method).send().await.unwrap()).await;
        for answer in [
            client.request("tools/list", json!({})).await,
            client.request("tools/call", json!({ "name": "optional", "task": {} })).await,
            bare(Method::GET).await,
            bare(Method::DELETE).await,
        ] {
            assert_eq!((answer.status, answer.body.as_str()), (401, ""), "{answer:?}");
            assert_eq!(challenge(&answer), expected);
        }
    }
    assert!(world.script.is_idle().await);
}

// req: AUTH-10, HTTP-01
// field case: F-AUTH-06
#[tokio::test]
async fn metadata_are_where_clients_look_and_name_the_public_url() {
    let world = World::on_sqlite().await;
    let origin = world.front.url.strip_suffix("/mcp").unwrap();
    let get = async |path: &str| {
        let request = reqwest::Client::new().get(format!("{origin}{path}")).header("host", "evil.example");
        Answer::read(request.header("x-forwarded-host", "evil.example").send().await.unwrap()).await
    };
    let well_known = "/.well-known/oauth-protected-resource";
    for path in [String::new(), "/mcp".to_owned(), "/t/acme/mcp".to_owned()] {
        let answer = get(&format!("{well_known}{path}")).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{path}");
        assert_eq!(
            answer.json(),
            json!({
                "resource": RESOURCE,
                "authorization_servers": [world.issuer.url],
                "scopes_supported": ["tasks:read", "tasks:write", "tools:call"],
                "bearer_methods_supported": ["header"],
                "resource_name": "Taskhold",
            })
        );
    }
    for path in ["/other", "/t/acme", "/mcp/", "/t/acme/mcp/more"] {
        assert_eq!(get(&format!("{well_known}{path}")).await.status, 404, "{path}");
    }
}

// req: AUTH-10
#[tokio::test]
async fn where_tokens_need_no_scopes_none_are_named() {
    let world = World::by(TestDatabase::new(Backend::Sqlite).await, false).await;
    let answer = world.client(None).request("tools/list", json!({})).await;
    assert_eq!((answer.status, challenge(&answer)), (401, &*format!("Bearer resource_metadata=\"{METADATA}\"")));
    let origin = world.front.url.strip_suffix("/mcp").unwrap();
    let metadata = reqwest::get(format!("{origin}/.well-known/oauth-protected-resource")).await.unwrap();
    let metadata = Answer::read(metadata).await.json();
    assert_eq!((&metadata["resource"], metadata.get("scopes_supported")), (&json!(RESOURCE), None));
    let client = Client::connected(&world.front.url, &world.token(60, "openid")).await;
    let task = client.task("optional", json!({})).await;
    assert_eq!(client.cancel(&task["taskId"]).await.result()["status"], "cancelled");
}

// req: AUTH-10
#[tokio::test]
async fn who_may_only_read_reads_and_changes_nothing() {
    let world = World::on_sqlite().await;
    let all = world.token(600, "tools:call tasks:write");
    let owner = Client::connected(&world.front.url, &all).await;
    let task = owner.task("optional", json!({})).await;
    let work = world.script.next().await;
    let reader = Client { token: Some(world.token(600, "tasks:read")), ..owner.clone() };
    assert_eq!(reader.get(&task["taskId"]).await.result()["status"], "working");
    assert_eq!(reader.list().await, [task["taskId"].clone()]);
    assert_eq!(reader.cancel(&task["taskId"]).await.status, 403);
    assert_eq!(reader.call("optional", json!({})).await.status, 403);
    assert!(!work.stop.is_cancelled() && world.script.is_idle().await);
    // A stream of results is resumed by those alone who may wait for them.
    let body = owner.message("tasks/result", &json!({ "taskId": task["taskId"] }));
    let request = owner.build(Method::POST).header("content-type", "application/json").body(body);
    let mut waiting = within("a stream to begin", request.send()).await.unwrap();
    let primer = within("its first event", waiting.chunk()).await.unwrap().unwrap();
    let primer = String::from_utf8(primer.to_vec()).unwrap();
    let event = primer.lines().find_map(|line| line.strip_prefix("id: ")).unwrap_or_else(|| panic!("{primer}"));
    let resume = async |scope| {
        let client = Client { token: Some(world.token(600, scope)), ..owner.clone() };
        within("an answer", client.build(Method::GET).header("last-event-id", event).send()).await.unwrap()
    };
    assert_eq!(resume("tools:call").await.status(), 403);
    let resumed = resume("tasks:read").await;
    assert_eq!(resumed.status(), 200);
    work.answer("done");
    assert!(within("the result", Answer::read(resumed)).await.text().contains("done"));
}

// req: AUTH-07, AUTH-11
// field case: F-AUTH-05, F-AUTH-08 (the caller's half)
async fn a_token_that_lapses_takes_its_stream_and_not_its_task(database: TestDatabase) {
    let world = World::on(database).await;
    let client = Client::connected(&world.front.url, &world.token(60, ALL_SCOPES)).await;
    let task = client.task("optional", json!({})).await;
    let work = world.script.next().await;
    let body = client.message("tasks/result", &json!({ "taskId": task["taskId"] }));
    let request = client.build(Method::POST).header("content-type", "application/json").body(body);
    let waiting = within("a stream to begin", request.send()).await.unwrap();
    assert_eq!(waiting.status(), 200);
    let session = within("the session's stream to begin", client.build(Method::GET).send()).await.unwrap();
    assert_eq!(session.status(), 200);
    world.clock.advance(Duration::from_secs(60));
    for stream in [waiting, session] {
        let said = within("the stream to end", Answer::read(stream)).await;
        assert!(!said.body.contains("\"result\"") && !said.body.contains("\"error\""), "{said:?}");
    }
    let lapsed = client.get(&task["taskId"]).await;
    assert_eq!((lapsed.status, lapsed.body.as_str()), (401, ""));
    assert!(challenge(&lapsed).starts_with("Bearer error=\"invalid_token\", resource_metadata="), "{lapsed:?}");
    assert!(!work.stop.is_cancelled());

    let refreshed = Client { token: Some(world.token(60, ALL_SCOPES)), ..client.clone() };
    assert_eq!(refreshed.get(&task["taskId"]).await.result()["status"], "working");
    work.answer("it ran on");
    let result = refreshed.result(&task["taskId"]).await;
    assert!(result.text().contains("it ran on"), "{result:?}");
}
