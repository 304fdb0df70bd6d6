//! Every route and every method, asked without a good token and by those whom it is none of their business.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use serde_json::{Value, json};
use taskhold::auth::TokenAuthenticator;
use taskhold::auth::issue::{Issued, Issuer, NewToken};
use taskhold::domain::clock::{Clock, ManualClock, SystemClock, Timestamp};
use taskhold::http::Route;
use taskhold::lifecycle::spawn;
use taskhold::protocol::legacy::Method;

use crate::http::harness::{Front, Parts, engine_rules, tools};
use crate::support::client::{Answer, Client};
use crate::support::contract;
use crate::support::database::TestDatabase;
use crate::support::script::{Script, ScriptedCall, Tools};

contract! {
    nobody_learns_anything_without_a_good_token,
    others_see_what_is_not_there,
}

/// What a request names that may be somebody else's.
struct Named<'a> {
    task: &'a str,
    cursor: &'a str,
    request: &'a str,
}

/// Something that is not there, in the form of what is.
const MISSING: Named<'_> = Named {
    task: "786512e2-9e0d-44bd-8f29-789f320fe840",
    cursor: "AAZc6F3xAAB4ZRLinQ1EvY8peJ8yD-hAAAAAAAAAAAAAAAAAAAAAAA",
    request: "missing",
};
const MISSING_SESSION: &str = "0b6f4a0e-7d7c-4b3c-9d5a-111111111111";

type Params = for<'a> fn(&Named<'a>) -> Value;

/// Each method that is served, and how a request aims it at somebody's task.
const METHODS: [(Method, Params); 17] = [
    (Method::Initialize, |named| {
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" },
                "_meta": related(named.task) })
    }),
    (Method::Ping, |named| json!({ "_meta": related(named.task) })),
    (Method::ToolsList, |named| json!({ "cursor": named.cursor })),
    // Arguments that are refused, so that the answer holds nothing of its own.
    (
        Method::ToolsCall,
        |named| json!({ "name": "optional", "arguments": { "bad": named.task.len() }, "_meta": related(named.task) }),
    ),
    (Method::PromptsList, |named| json!({ "cursor": named.cursor })),
    (Method::PromptsGet, |named| json!({ "name": "p", "_meta": related(named.task) })),
    (Method::ResourcesList, |named| json!({ "cursor": named.cursor })),
    (Method::ResourceTemplatesList, |named| json!({ "cursor": named.cursor })),
    (Method::ResourcesRead, |named| json!({ "uri": "x://1", "_meta": related(named.task) })),
    (Method::ResourcesSubscribe, |named| json!({ "uri": "x://1", "_meta": related(named.task) })),
    (Method::ResourcesUnsubscribe, |named| json!({ "uri": "x://1", "_meta": related(named.task) })),
    (Method::Complete, |named| json!({ "ref": {}, "_meta": related(named.task) })),
    (Method::SetLogLevel, |named| json!({ "level": "info", "_meta": related(named.task) })),
    (Method::TasksGet, |named| json!({ "taskId": named.task })),
    (Method::TasksResult, |named| json!({ "taskId": named.task })),
    (Method::TasksList, |named| json!({ "cursor": named.cursor })),
    (Method::TasksCancel, |named| json!({ "taskId": named.task })),
];

fn related(task: &str) -> Value {
    json!({ "io.modelcontextprotocol/related-task": { "taskId": task } })
}

/// Each route, and whether it asks who is calling.
const ROUTES: [(Route, bool); 7] = [
    (Route::Message, true),
    (Route::Stream, true),
    (Route::EndSession, true),
    (Route::Health, false),
    (Route::Readiness, false),
    (Route::ResourceMetadata, false),
    (Route::ResourceMetadataOf, false),
];

#[test]
fn the_tables_are_complete() {
    let methods: BTreeSet<_> = METHODS.iter().map(|(method, _)| *method).collect();
    assert_eq!(methods, BTreeSet::from(Method::ALL), "each method that is served has its row");
    let routes: BTreeSet<_> = ROUTES.iter().map(|(route, _)| *route).collect();
    assert_eq!(routes, BTreeSet::from(Route::ALL), "each route has its row");
    assert_eq!((METHODS.len(), ROUTES.len()), (Method::ALL.len(), Route::ALL.len()), "and no row is there twice");
}

fn message(method: Method, named: &Named<'_>) -> String {
    let (_, params) = METHODS.iter().find(|(row, _)| *row == method).unwrap();
    json!({ "jsonrpc": "2.0", "id": 1, "method": method.as_str(), "params": params(named) }).to_string()
}

/// All bodies that a client may send.
fn messages(named: &Named<'_>) -> Vec<String> {
    let mut messages: Vec<_> = METHODS.iter().map(|(method, _)| message(*method, named)).collect();
    messages.push(json!({ "jsonrpc": "2.0", "id": 1, "method": "no/such/method" }).to_string());
    messages.push(cancellation(named.request));
    messages.push(json!({ "jsonrpc": "2.0", "id": named.request, "result": {} }).to_string());
    messages.push("{".to_owned());
    messages
}

fn cancellation(request: &str) -> String {
    json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": request } }).to_string()
}

struct World {
    /// One for all requests: to make one costs more than to ask.
    http: reqwest::Client,
    front: Front,
    script: Arc<Script>,
    database: TestDatabase,
    issuer: Issuer,
    past: Issuer,
}

/// The owner of what nobody else may see.
struct Owner {
    client: Client,
    working: Value,
    completed: Value,
    cursor: String,
    work: ScriptedCall,
}

impl World {
    async fn new(database: TestDatabase) -> Self {
        let (script, clock) = (Script::new(), SystemClock::new());
        let system = database.store.system();
        let front = Front::start(Parts {
            store: database.store.clone(),
            executor: script.clone(),
            catalogue: Tools::new(tools()),
            auth: Arc::new(TokenAuthenticator::open(system, clock.clone()).await.unwrap()),
            rules: engine_rules(),
        })
        .await;
        let two_hours_ago = Timestamp::from_micros(clock.now().micros() - 2 * 3_600_000_000);
        let past = Issuer::open(database.store.system(), ManualClock::at(two_hours_ago)).await.unwrap();
        let issuer = Issuer::open(database.store.system(), clock).await.unwrap();
        Self { http: reqwest::Client::new(), front, script, database, issuer, past }
    }

    async fn mint(&self, tenant: &str) -> Issued {
        let tenant = Some(tenant.to_owned());
        self.issuer.mint(NewToken { name: "n".to_owned(), tenant, ..NewToken::default() }).await.unwrap()
    }

    async fn client(&self, tenant: &str) -> Client {
        let issued = self.mint(tenant).await;
        Client::connected(&self.front.url, issued.token.expose_secret()).await
    }

    async fn owner(&self) -> Owner {
        let client = self.client("acme").await;
        let working = client.task("optional", json!({})).await;
        let work = self.script.next().await;
        let mut completed = Value::Null;
        for _ in 0..3 {
            let task = client.task("optional", json!({})).await;
            self.script.next().await.answer("the owner's secret");
            completed = client.until_status(&task["taskId"], "completed").await;
        }
        let working = client.get(&working["taskId"]).await.result();
        let page = client.request("tasks/list", json!({})).await.result();
        let cursor = page["nextCursor"].as_str().unwrap().to_owned();
        Owner { client, working, completed, cursor, work }
    }

    /// A request of a route, as bytes would have it.
    async fn ask(&self, route: Route, authorization: Option<&str>, session: Option<&str>, body: &str) -> Answer {
        let url = self.front.url.replace("/mcp", &route.path().replace("{*resource}", "mcp"));
        let mut request = self.http.request(route.method(), url);
        request = request.header("accept", "application/json, text/event-stream");
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        if route == Route::Message {
            request = request.header("content-type", "application/json").body(body.to_owned());
        }
        let response = request.send().await.unwrap();
        if route == Route::Stream && response.status() == 200 {
            // It has no end.
            let (status, headers) = (200, response.headers().clone());
            return Answer { status, headers, body: String::new() };
        }
        Answer::read(response).await
    }
}

/// All that tells answers apart, but the date.
fn told(answer: &Answer) -> String {
    let mut headers = answer.headers.clone();
    for name in ["date", "mcp-session-id"] {
        headers.remove(name);
    }
    format!("{} {headers:?} {}", answer.status, answer.body)
}

// req: AUTH-01
async fn nobody_learns_anything_without_a_good_token(database: TestDatabase) {
    let world = World::new(database).await;
    let owner = world.owner().await;
    let session = owner.client.session.clone().unwrap();
    let hour = Some(Duration::from_secs(3600));
    let expired = world.past.mint(NewToken { lifetime: hour, ..NewToken::default() }).await.unwrap();
    let revoked = world.mint("acme").await;
    world.issuer.revoke(revoked.record.id).await.unwrap();
    let good = owner.client.token.clone().unwrap();
    let forged = format!("{}{}", &good[..good.len() - 1], if good.ends_with('a') { 'b' } else { 'a' });
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    let invalid = (401, Some(r#"Bearer error="invalid_token""#));
    let credentials = [
        ("none", None, (401, Some("Bearer"))),
        ("garbage", bearer("garbage"), invalid),
        ("forged", bearer(&forged), invalid),
        ("expired", bearer(expired.token.expose_secret()), invalid),
        ("revoked", bearer(revoked.token.expose_secret()), invalid),
        ("another scheme", Some("Basic b3duZXI6".to_owned()), (400, None)),
        ("nothing behind the scheme", Some("Bearer".to_owned()), (400, None)),
    ];
    let named = Named { task: owner.working["taskId"].as_str().unwrap(), cursor: &owner.cursor, request: "theirs" };
    let before = world.database.rows().await;
    for (route, guarded) in ROUTES {
        assert_eq!(route.is_open(), !guarded, "{route:?}");
        let bodies = if route == Route::Message { messages(&named) } else { vec![String::new()] };
        let mut open = BTreeSet::new();
        for (name, authorization, (status, challenge)) in &credentials {
            let mut answers = BTreeSet::new();
            for body in &bodies {
                let answer = world.ask(route, authorization.as_deref(), Some(&session), body).await;
                if guarded {
                    let found = (answer.status, answer.header("www-authenticate"));
                    assert_eq!(found, (*status, *challenge), "{route:?} {name} {body}");
                    assert!(*status == 400 || answer.body.is_empty(), "{route:?} {name} {answer:?}");
                } else {
                    // Without an issuer there is nothing to say of one.
                    let is_probe = matches!(route, Route::Health | Route::Readiness);
                    assert_eq!(answer.status, if is_probe { 200 } else { 404 }, "{route:?} {name}");
                    open.insert(told(&answer));
                }
                answers.insert(told(&answer));
            }
            assert_eq!(answers.len(), 1, "{route:?} {name}: the message makes no difference: {answers:?}");
        }
        assert!(open.len() <= 1, "{route:?} answers everybody alike: {open:?}");
    }
    assert_eq!(world.database.rows().await, before);
    assert!(!owner.work.stop.is_cancelled() && world.script.is_idle().await);
    assert_eq!(owner.client.get(&owner.working["taskId"]).await.result(), owner.working);
    assert_eq!(world.ask(Route::Stream, bearer(&good).as_deref(), Some(&session), "").await.status, 200);
}

// req: AUTH-03, AUTH-04, TASK-11, TASK-18
// field case: F-AUTH-01
async fn others_see_what_is_not_there(database: TestDatabase) {
    let world = World::new(database).await;
    let owner = world.owner().await;
    let session = owner.client.session.clone().unwrap();
    // A plain call of the owner that is under way.
    let plain = json!({ "jsonrpc": "2.0", "id": "theirs", "method": "tools/call", "params": { "name": "optional" } });
    let call = spawn("the owner's call", {
        let client = owner.client.clone();
        async move { client.send(&plain.to_string()).await }
    });
    let under_way = world.script.next().await;
    let listed = owner.client.list().await;
    for tenant in ["acme", "other", ""] {
        let stranger = if tenant.is_empty() {
            let issued = world.issuer.mint(NewToken::default()).await.unwrap();
            Client::connected(&world.front.url, issued.token.expose_secret()).await
        } else {
            world.client(tenant).await
        };
        let authorization = format!("Bearer {}", stranger.token.as_deref().unwrap());
        let own = stranger.session.as_deref();
        let ask = async |route: Route, session: Option<&str>, body: &str| {
            world.ask(route, Some(&authorization), session, body).await
        };
        let missing = messages(&MISSING);
        for task in [&owner.working["taskId"], &owner.completed["taskId"]] {
            let named = Named { task: task.as_str().unwrap(), cursor: &owner.cursor, request: "theirs" };
            for (aimed, blank) in messages(&named).iter().zip(&missing) {
                let (aimed, blank) = (ask(Route::Message, own, aimed).await, ask(Route::Message, own, blank).await);
                assert_eq!(told(&aimed), told(&blank), "{tenant}: what is theirs is what is not there");
                assert!(!aimed.body.contains(named.task) && !aimed.body.contains("secret"), "{aimed:?}");
            }
            for method in [Method::TasksGet, Method::TasksResult, Method::TasksCancel] {
                let answer = ask(Route::Message, own, &message(method, &named)).await;
                assert_eq!((answer.status, answer.error().0), (200, -32602), "{method:?}");
            }
        }
        let named = Named { task: owner.working["taskId"].as_str().unwrap(), cursor: &owner.cursor, request: "theirs" };
        assert_eq!(ask(Route::Message, own, &message(Method::TasksList, &named)).await.error().0, -32602);
        assert_eq!(stranger.request("tasks/list", json!({})).await.result(), json!({ "tasks": [] }));
        // Their session is one that is not there, by every way in; `initialize` alone looks at none.
        for route in [Route::Message, Route::Stream, Route::EndSession] {
            let bodies = if route == Route::Message { messages(&named) } else { vec![String::new()] };
            for body in bodies.iter().filter(|body| !body.contains("\"initialize\"") && *body != "{") {
                let theirs = ask(route, Some(&session), body).await;
                assert_eq!(theirs.status, 404, "{route:?} {body}");
                assert_eq!(told(&theirs), told(&ask(route, Some(MISSING_SESSION), body).await), "{route:?} {body}");
            }
        }
        let mine = stranger.task("optional", json!({})).await;
        world.script.next().await.answer("not the owner's");
        assert_eq!(stranger.list().await, [mine["taskId"].clone()]);
    }
    assert!(!owner.work.stop.is_cancelled() && !under_way.stop.is_cancelled());
    under_way.answer("done");
    assert_eq!(call.await.unwrap().result()["content"][0]["text"], "done");
    assert_eq!(owner.client.list().await, listed);
    for task in [&owner.working, &owner.completed] {
        assert_eq!(owner.client.get(&task["taskId"]).await.result(), *task);
    }
    let text = owner.client.result(&owner.completed["taskId"]).await.result()["content"][0]["text"].clone();
    assert_eq!(text, "the owner's secret");
    owner.work.answer("done");
    owner.client.until_status(&owner.working["taskId"], "completed").await;
}
