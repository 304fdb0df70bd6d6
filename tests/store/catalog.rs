//! The last known lists, and names that do not move.

use futures_util::future::join_all;
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::work::NewTask;
use taskhold::store::CatalogItem;

use super::{at, caller, contract_everywhere, end, new_task};
use crate::support::database::TestDatabase;

contract_everywhere! {
    an_exposed_name_does_not_move,
    nodes_agree_on_names,
    items_go_with_their_upstream_and_its_last_task,
}

fn item(upstream: &str, name: &str, exposed: &str) -> CatalogItem {
    CatalogItem {
        upstream: upstream.to_owned(),
        kind: "tool".to_owned(),
        name: name.to_owned(),
        exposed: exposed.to_owned(),
        definition: RawJson::trusted(r#"{"name":"x","n":1.0}"#),
        rank: 0,
        listed: true,
        seen: at(1),
    }
}

async fn an_exposed_name_does_not_move(db: TestDatabase) {
    let system = db.store.system();
    let first = item("one", "wait", "wait");
    assert_eq!(system.put_catalog(vec![first.clone()]).await.unwrap(), std::slice::from_ref(&first));
    // Its definition changes, its name stays, whatever is asked for.
    let changed = CatalogItem {
        exposed: "one__wait".to_owned(),
        definition: RawJson::trusted(r#"{"name":"y"}"#),
        listed: false,
        rank: 7,
        seen: at(2),
        ..first.clone()
    };
    let kept = CatalogItem { exposed: "wait".to_owned(), ..changed.clone() };
    assert_eq!(system.put_catalog(vec![changed]).await.unwrap(), std::slice::from_ref(&kept));
    // A later arrival does not get a name that is taken.
    let late = item("two", "wait", "wait");
    assert_eq!(system.put_catalog(vec![late.clone()]).await.unwrap(), std::slice::from_ref(&kept));
    let other = CatalogItem { exposed: "two__wait".to_owned(), ..late };
    assert_eq!(system.put_catalog(vec![other.clone()]).await.unwrap(), [kept.clone(), other.clone()]);
    // Names are told apart by kind and byte by byte.
    let prompt = CatalogItem { kind: "prompt".to_owned(), ..item("three", "wait", "wait") };
    let shouted = item("three", "Wait", "Wait");
    let all = system.put_catalog(vec![prompt.clone(), shouted.clone()]).await.unwrap();
    assert_eq!(all, [kept, prompt, shouted, other]);
    assert_eq!(system.catalog().await.unwrap(), all);
}

async fn nodes_agree_on_names(db: TestDatabase) {
    let other = db.another().await;
    let merges = (0..8).map(|n| {
        let system = if n % 2 == 0 { db.store.system() } else { other.system() };
        let upstream = if n % 2 == 0 { "one" } else { "two" };
        let mut items: Vec<_> = (0..20).map(|at| item(upstream, &format!("tool{at}"), &format!("tool{at}"))).collect();
        if n > 3 {
            items.reverse();
        }
        async move { system.put_catalog(items).await.unwrap() }
    });
    join_all(merges).await;
    let catalog = db.store.system().catalog().await.unwrap();
    let mut exposed: Vec<_> = catalog.iter().map(|item| item.exposed.clone()).collect();
    exposed.sort();
    exposed.dedup();
    assert_eq!((exposed.len(), catalog.len()), (20, 20));
}

async fn items_go_with_their_upstream_and_its_last_task(db: TestDatabase) {
    let (_, scoped) = caller(&db.store, "a").await;
    let system = db.store.system();
    let items = vec![item("kept", "wait", "a"), item("demo", "wait", "b"), item("demo", "other", "c")];
    system.put_catalog(items).await.unwrap();
    let new = NewTask { upstream: "demo".to_owned(), upstream_tool: "wait".to_owned(), ..new_task(at(0)) };
    scoped.create(new.clone()).await.unwrap();
    let keep = ["kept".to_owned()];
    assert_eq!(system.prune_catalog(&keep).await.unwrap(), 1);
    let left: Vec<_> = system.catalog().await.unwrap().into_iter().map(|item| item.exposed).collect();
    assert_eq!(left, ["b", "a"]);
    scoped.cancel(new.id, end(Outcome::Cancelled, at(1))).await.unwrap();
    system.reap(at(1_000_000), 10).await.unwrap();
    assert_eq!(system.prune_catalog(&keep).await.unwrap(), 1);
    assert_eq!(system.prune_catalog(&keep).await.unwrap(), 0);
}
