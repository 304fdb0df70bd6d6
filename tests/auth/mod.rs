//! Access tokens on a real database: SQLite in a folder of its own, and one more handle on it as a second node.

mod oauth;

use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use taskhold::auth::issue::{IssueError, Issued, Issuer, NewToken};
use taskhold::auth::{Anonymous, AuthRefusal, Authenticator, TokenAuthenticator};
use taskhold::domain::clock::{Clock, ManualClock, Timestamp};
use taskhold::domain::context::{AuthContext, Credential};
use taskhold::domain::ids::ContextId;
use taskhold::store::{self, DatabaseOptions, Store};

struct Given {
    _folder: tempfile::TempDir,
    options: DatabaseOptions,
    clock: Arc<ManualClock>,
    store: Store,
    issuer: Issuer,
}

impl Given {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("auth.db").display());
        let options = DatabaseOptions { max_connections: 4, ..DatabaseOptions::new(url) };
        store::migrate(&options).await.unwrap();
        let store = store::open(&options).await.unwrap();
        let clock = ManualClock::at(Timestamp::from_micros(1_796_000_000_000_000));
        let issuer = Issuer::open(store.system(), clock.clone()).await.unwrap();
        Self { _folder: folder, options, clock, store, issuer }
    }

    /// A node of its own on the same database.
    async fn node(&self) -> TokenAuthenticator {
        let store = store::open(&self.options).await.unwrap();
        TokenAuthenticator::open(store.system(), self.clock.clone()).await.unwrap()
    }

    async fn mint(&self, new: NewToken) -> Issued {
        self.issuer.mint(new).await.unwrap()
    }
}

async fn show(node: &TokenAuthenticator, issued: &Issued) -> Result<AuthContext, AuthRefusal> {
    node.authenticate(&[format!("Bearer {}", issued.token.expose_secret()).as_bytes()]).await
}

// req: AUTH-05
#[tokio::test]
async fn each_token_is_a_context_of_its_own_unless_it_joins_one() {
    let given = Given::new().await;
    let node = given.node().await;
    let tenant = Some("acme".to_owned());
    let first = given.mint(NewToken { tenant: tenant.clone(), ..NewToken::default() }).await;
    let second = given.mint(NewToken { tenant, ..NewToken::default() }).await;
    let joined = given.mint(NewToken { context: Some(first.record.context), ..NewToken::default() }).await;
    let [first, second, joined] =
        [show(&node, &first).await.unwrap(), show(&node, &second).await.unwrap(), show(&node, &joined).await.unwrap()];
    assert_ne!(first.id(), second.id());
    assert_eq!(first.id(), joined.id());
    assert_eq!(joined.tenant(), Some("acme"));
    assert!(first.is_identified());
    let nowhere = given.issuer.mint(NewToken { context: Some(ContextId::new()), ..NewToken::default() }).await;
    assert!(matches!(nowhere, Err(IssueError::NoContext(_))));
}

// req: AUTH-05, AUTH-07
#[tokio::test]
async fn a_rotated_token_keeps_its_context_and_its_predecessor_ends_after_the_grace() {
    let given = Given::new().await;
    let nodes = [given.node().await, given.node().await];
    let day = Duration::from_secs(86_400);
    let old = given.mint(NewToken { name: "ci".to_owned(), lifetime: Some(day), ..NewToken::default() }).await;
    let before = show(&nodes[0], &old).await.unwrap();
    given.clock.advance(Duration::from_secs(3600));
    let new = given.issuer.rotate(old.record.id, Duration::from_secs(600)).await.unwrap();
    assert_eq!((new.record.name.as_str(), new.record.context), ("ci", old.record.context));
    assert_eq!(new.record.expires, Some(given.clock.now() + day));
    for node in &nodes {
        assert_eq!(show(node, &new).await.unwrap().id(), before.id());
        assert_eq!(show(node, &old).await.unwrap().id(), before.id());
    }
    given.clock.advance(Duration::from_secs(600));
    for node in &nodes {
        assert_eq!(show(node, &old).await, Err(AuthRefusal::Invalid));
        show(node, &new).await.unwrap();
    }
    assert!(matches!(given.issuer.rotate(old.record.id, Duration::ZERO).await, Err(IssueError::Ended(..))));
}

// req: AUTH-07
#[tokio::test]
async fn a_revocation_reaches_every_node_within_five_seconds() {
    let given = Given::new().await;
    let nodes = [given.node().await, given.node().await];
    let token = given.mint(NewToken::default()).await;
    for node in &nodes {
        show(node, &token).await.unwrap();
    }
    given.issuer.revoke(token.record.id).await.unwrap();
    given.clock.advance(Duration::from_secs(5));
    for node in &nodes {
        assert_eq!(show(node, &token).await, Err(AuthRefusal::Invalid));
        assert_eq!(node.verifications(), 1);
    }
}

// req: AUTH-08
#[tokio::test]
async fn every_node_knows_the_tokens_of_the_others_by_the_installations_key() {
    let given = Given::new().await;
    let elsewhere = Given::new().await;
    let node = given.node().await;
    let token = given.mint(NewToken::default()).await;
    let stranger = elsewhere.mint(NewToken::default()).await;
    assert_eq!(show(&node, &stranger).await, Err(AuthRefusal::Invalid));
    assert_eq!(node.verifications(), 0, "a token of another installation never reaches argon2");
    let context = show(&node, &token).await.unwrap();
    assert_eq!(context.credential(), Credential::Token(token.record.id));
    assert_eq!(node.verifications(), 1);
}

// req: AUTH-09
#[tokio::test]
async fn without_authentication_everybody_is_the_same_unidentified_caller() {
    let given = Given::new().await;
    let store = given.store.system();
    let first = Anonymous::open(&store, &*given.clock).await.unwrap();
    let second = Anonymous::open(&store, &*given.clock).await.unwrap();
    let caller = first.authenticate(&[]).await.unwrap();
    assert_eq!(caller, second.authenticate(&[b"Bearer whatever", b"twice"]).await.unwrap());
    assert!(!caller.is_identified());
    assert_eq!(caller.credential(), Credential::Anonymous);
}
