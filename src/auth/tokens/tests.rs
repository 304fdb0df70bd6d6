use secrecy::{ExposeSecret, SecretString};

use super::*;
use crate::domain::clock::ManualClock;
use crate::domain::ids::random_bytes;
use crate::store::StoreError;

/// Rows in memory, a database that can be away, and a count of queries.
#[derive(Default)]
struct Rows {
    rows: Mutex<HashMap<TokenId, TokenRecord>>,
    away: AtomicBool,
    queries: AtomicU64,
}

#[async_trait]
impl Records for Arc<Rows> {
    async fn read(&self, ids: &[TokenId]) -> store::Result<Vec<TokenRecord>> {
        self.queries.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("away".into()));
        }
        let rows = self.rows.lock().unwrap();
        Ok(ids.iter().filter_map(|id| rows.get(id).cloned()).collect())
    }
}

struct Given {
    rows: Arc<Rows>,
    clock: Arc<ManualClock>,
    authenticator: Arc<TokenAuthenticator>,
}

impl Given {
    fn new() -> Self {
        let rows = Arc::new(Rows::default());
        let clock = ManualClock::at(Timestamp::from_micros(1_000_000_000_000));
        let authenticator = node(&rows, &clock);
        Self { rows, clock, authenticator }
    }

    /// A token and its row.
    fn token(&self, expires: Option<Timestamp>) -> (SecretString, TokenId) {
        let (id, secret) = (TokenId::new(), random_bytes());
        let record = TokenRecord {
            id,
            context: ContextId::new(),
            tenant: "acme".to_owned(),
            name: "a".to_owned(),
            hash: hash::hash(&secret),
            created: self.clock.now(),
            expires,
            revoked: None,
        };
        self.rows.rows.lock().unwrap().insert(id, record);
        (key().write(id, &secret), id)
    }

    fn revoke(&self, id: TokenId) {
        let now = self.clock.now();
        self.rows.rows.lock().unwrap().get_mut(&id).unwrap().revoked = Some(now);
    }

    async fn show(&self, token: &SecretString) -> Result<AuthContext, AuthRefusal> {
        show(&self.authenticator, token.expose_secret()).await
    }

    fn seconds(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    fn queries(&self) -> u64 {
        self.rows.queries.load(Ordering::SeqCst)
    }
}

/// Another process on the same rows.
fn node(rows: &Arc<Rows>, clock: &Arc<ManualClock>) -> Arc<TokenAuthenticator> {
    let verifier = Verifier::new(Box::new(Arc::clone(rows)), clock.clone(), key());
    Arc::new(TokenAuthenticator(Arc::new(verifier)))
}

fn key() -> TokenKey {
    TokenKey::new([3; 32])
}

async fn show(authenticator: &TokenAuthenticator, token: &str) -> Result<AuthContext, AuthRefusal> {
    authenticator.authenticate(&[format!("Bearer {token}").as_bytes()]).await
}

// req: AUTH-08
#[tokio::test]
async fn a_token_costs_one_argon2_however_often_and_however_concurrently_it_is_shown() {
    let given = Given::new();
    let (token, id) = given.token(None);
    let callers: Vec<_> = (0..32)
        .map(|_| {
            let (authenticator, token) = (Arc::clone(&given.authenticator), token.clone());
            lifecycle::spawn("caller", async move { show(&authenticator, token.expose_secret()).await })
        })
        .collect();
    for caller in callers {
        let context = caller.await.unwrap().unwrap();
        assert_eq!(context.credential(), Credential::Token(id));
        assert_eq!(context.tenant(), Some("acme"));
        assert_eq!(context.id(), given.rows.rows.lock().unwrap()[&id].context);
    }
    assert_eq!((given.authenticator.verifications(), given.queries()), (1, 1));
    for _ in 0..100 {
        given.seconds(1);
        given.show(&token).await.unwrap();
    }
    assert_eq!(given.authenticator.verifications(), 1);
}

// req: AUTH-08
#[tokio::test]
async fn forged_and_mistyped_tokens_reach_neither_the_database_nor_argon2() {
    let given = Given::new();
    let (token, id) = given.token(None);
    let mut mistyped = token.expose_secret().to_owned();
    mistyped.replace_range(40..41, if &mistyped[40..41] == "a" { "b" } else { "a" });
    let forger = TokenKey::new([4; 32]);
    for bad in [
        mistyped.as_str(),
        forger.write(id, &random_bytes()).expose_secret(),
        forger.write(TokenId::new(), &random_bytes()).expose_secret(),
        "th_a_b_c",
        "something-else",
    ] {
        assert_eq!(show(&given.authenticator, bad).await, Err(AuthRefusal::Invalid), "{bad}");
    }
    assert_eq!((given.authenticator.verifications(), given.queries()), (0, 0));
}

#[tokio::test]
async fn bad_results_are_remembered_too() {
    let given = Given::new();
    let (_, id) = given.token(None);
    // The check is right and the secret is not: nobody has such a token who has not the installation's key.
    let wrong = key().write(id, &random_bytes());
    let unknown = key().write(TokenId::new(), &random_bytes());
    for _ in 0..5 {
        assert_eq!(given.show(&wrong).await, Err(AuthRefusal::Invalid));
        assert_eq!(given.show(&unknown).await, Err(AuthRefusal::Invalid));
    }
    assert_eq!((given.authenticator.verifications(), given.queries()), (1, 2));
    given.seconds(5);
    assert_eq!(given.show(&unknown).await, Err(AuthRefusal::Invalid));
    assert_eq!((given.authenticator.verifications(), given.queries()), (1, 3), "a missing row is looked for again");
}

// req: AUTH-07
#[tokio::test]
async fn a_revoked_token_stops_on_every_node_within_five_seconds() {
    let given = Given::new();
    let (token, id) = given.token(None);
    let (other, _) = given.token(None);
    let nodes = [Arc::clone(&given.authenticator), node(&given.rows, &given.clock)];
    for node in &nodes {
        show(node, token.expose_secret()).await.unwrap();
        show(node, other.expose_secret()).await.unwrap();
    }
    given.revoke(id);
    given.seconds(5);
    for node in nodes.iter().chain([&node(&given.rows, &given.clock)]) {
        assert_eq!(show(node, token.expose_secret()).await, Err(AuthRefusal::Invalid));
        show(node, other.expose_secret()).await.unwrap();
    }
}

// req: AUTH-07
#[tokio::test]
async fn an_expired_token_stops_at_once_also_when_its_expiry_is_brought_forward() {
    let given = Given::new();
    let (token, id) = given.token(Some(given.clock.now() + Duration::from_secs(2)));
    let (rotated, rotated_id) = given.token(None);
    given.show(&token).await.unwrap();
    given.show(&rotated).await.unwrap();
    let soon = given.clock.now() + Duration::from_secs(3);
    given.rows.rows.lock().unwrap().get_mut(&rotated_id).unwrap().expires = Some(soon);
    given.seconds(2);
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Invalid));
    given.seconds(3);
    assert_eq!(given.show(&rotated).await, Err(AuthRefusal::Invalid));
    given.rows.rows.lock().unwrap().remove(&id);
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Invalid));
}

#[tokio::test]
async fn all_tokens_in_use_are_read_again_with_one_query() {
    let given = Given::new();
    let tokens: Vec<_> = (0..20).map(|_| given.token(None).0).collect();
    for token in &tokens {
        given.show(token).await.unwrap();
    }
    let before = given.queries();
    given.seconds(5);
    for token in &tokens {
        given.show(token).await.unwrap();
    }
    assert_eq!(given.queries(), before + 1);
    given.seconds(1);
    given.show(&tokens[0]).await.unwrap();
    assert_eq!(given.queries(), before + 1, "a second later nothing is read");
}

#[tokio::test]
async fn an_outage_of_the_database_is_never_an_invalid_token() {
    let given = Given::new();
    let (token, id) = given.token(None);
    let (stranger, _) = given.token(None);
    given.show(&token).await.unwrap();
    given.rows.away.store(true, Ordering::SeqCst);
    assert_eq!(given.show(&stranger).await, Err(AuthRefusal::Unavailable), "it was never seen before");
    for _ in 0..34 {
        given.seconds(1);
        given.show(&token).await.unwrap();
    }
    given.seconds(1);
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Unavailable));
    given.revoke(id);
    given.rows.away.store(false, Ordering::SeqCst);
    assert_eq!(given.show(&token).await, Err(AuthRefusal::Invalid), "the first answer of the database counts");
    given.show(&stranger).await.unwrap();
    assert_eq!(given.authenticator.verifications(), 2);
}
