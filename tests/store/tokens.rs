//! Contexts, access tokens and the installation's keys.

use futures_util::future::join_all;
use taskhold::domain::context::ContextKey;
use taskhold::domain::ids::{ContextId, TokenId};
use taskhold::store::TokenRecord;

use super::{at, contract};
use crate::support::database::TestDatabase;

contract! {
    a_context_is_found_by_all_of_its_key,
    tokens_are_kept_revoked_and_expired,
    all_nodes_see_one_key,
}

async fn a_context_is_found_by_all_of_its_key(db: TestDatabase) {
    let system = db.store.system();
    let key = |tenant: &str, subject: &str| ContextKey {
        tenant: tenant.to_owned(),
        subject: subject.to_owned(),
        ..ContextKey::default()
    };
    // Spelling, case and accents tell contexts apart: they are compared byte by byte.
    let keys =
        [key("t", "a"), key("t", "A"), key("T", "a"), key("", "ta"), key("ta", ""), key("t", "ä"), key("t", "a ")];
    let mut ids = Vec::new();
    for key in &keys {
        ids.push(system.ensure_context(key.clone(), at(0)).await.unwrap());
    }
    for (key, id) in keys.iter().zip(&ids) {
        assert_eq!(system.ensure_context(key.clone(), at(9)).await.unwrap(), *id);
        assert_eq!(system.context(*id).await.unwrap().as_ref(), Some(key));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), keys.len());
    assert_eq!(system.context(ContextId::new()).await.unwrap(), None);

    let other = db.another().await;
    let racing = key("race", "r");
    let made = join_all((0..10).map(|n| {
        let system = if n % 2 == 0 { db.store.system() } else { other.system() };
        let racing = racing.clone();
        async move { system.ensure_context(racing, at(0)).await.unwrap() }
    }))
    .await;
    assert!(made.iter().all(|id| *id == made[0]));
}

async fn tokens_are_kept_revoked_and_expired(db: TestDatabase) {
    let system = db.store.system();
    let key = ContextKey { tenant: "acme".to_owned(), ..ContextKey::default() };
    let context = system.ensure_context(key, at(0)).await.unwrap();
    let token = |seconds, expires| TokenRecord {
        id: TokenId::new(),
        context,
        tenant: "acme".to_owned(),
        name: format!("token {seconds}"),
        hash: "$argon2id$v=19$m=4096,t=1,p=1$c2FsdA$aGFzaA".to_owned(),
        created: at(seconds),
        expires,
        revoked: None,
    };
    let (first, second) = (token(1, None), token(2, Some(at(50))));
    system.add_token(first.clone()).await.unwrap();
    system.add_token(second.clone()).await.unwrap();
    assert_eq!(system.all_tokens().await.unwrap(), [first.clone(), second.clone()]);
    assert_eq!(system.tokens(&[second.id, TokenId::new()]).await.unwrap(), std::slice::from_ref(&second));
    assert!(system.tokens(&[]).await.unwrap().is_empty());

    assert!(system.revoke_token(first.id, at(10)).await.unwrap());
    assert!(system.revoke_token(first.id, at(20)).await.unwrap());
    assert!(!system.revoke_token(TokenId::new(), at(20)).await.unwrap());
    assert_eq!(system.tokens(&[first.id]).await.unwrap()[0].revoked, Some(at(10)), "the first time counts");

    for (asked, then) in [(at(60), at(50)), (at(40), at(40)), (at(45), at(40))] {
        assert!(system.expire_token(second.id, asked).await.unwrap());
        assert_eq!(system.tokens(&[second.id]).await.unwrap()[0].expires, Some(then));
    }
    assert!(system.expire_token(first.id, at(70)).await.unwrap());
    assert_eq!(system.tokens(&[first.id]).await.unwrap()[0].expires, Some(at(70)));
    assert!(!system.expire_token(TokenId::new(), at(1)).await.unwrap());
}

async fn all_nodes_see_one_key(db: TestDatabase) {
    let other = db.another().await;
    let keys = join_all((0..10).map(|n| {
        let system = if n % 2 == 0 { db.store.system() } else { other.system() };
        async move { system.server_key("cursor").await.unwrap() }
    }))
    .await;
    assert!(keys.iter().all(|key| *key == keys[0]));
    assert_ne!(keys[0], db.store.system().server_key("token").await.unwrap());
    assert_ne!(keys[0], [0; 32]);
}
