//! Where hints are heard, while servers go and take each other's place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use secrecy::SecretString;
use taskhold::domain::clock::Timestamp;
use taskhold::domain::context::ContextKey;
use taskhold::domain::ids::{SessionId, TaskId};
use taskhold::domain::work::NewTask;
use taskhold::lifecycle::spawn;
use taskhold::store::{self, DatabaseOptions, Hint, Hints, Store, SystemStore};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::http::harness::until;
use crate::support::cluster::{Cluster, Stop};
use crate::support::database::{Backend, TestDatabase};
use crate::support::tasks::new_task;

const PATIENCE: Duration = Duration::from_secs(30);
/// How often is looked while hints are heard.
const ROUND: Duration = Duration::from_millis(900);

/// Says something to the other nodes, as often as it takes, until it is heard.
async fn say_until_heard(says: &SystemStore, hears: &mut Hints) {
    let at = Timestamp::from_micros(0);
    let said_and_heard = async {
        loop {
            let (id, session) = (TaskId::new(), Some(SessionId::new()));
            let context = says.ensure_context(ContextKey::default(), at).await;
            let new = NewTask { session, ..new_task(id, at, None) };
            match context {
                Ok(context) if says.create(context, new).await.is_ok() => {}
                _ => continue,
            }
            while let Ok(hints) = timeout(Duration::from_secs(1), hears.next()).await {
                if hints.contains(&Hint::Task(id, session)) {
                    return;
                }
            }
        }
    };
    timeout(PATIENCE, said_and_heard).await.expect("it is heard");
}

async fn until_it_hears(store: &Store) {
    until("other nodes are heard", async || store.system().watch_interval() == ROUND).await;
}

// req: KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_that_takes_writes_is_listened_to() {
    let primary = Cluster::new(&[]).await;
    let url = primary.create_database("tasks").await;
    let standby = primary.standby().await;
    let urls = [url.clone(), standby.url("tasks")].map(SecretString::from).to_vec();
    let options = DatabaseOptions { urls, ..DatabaseOptions::new("sqlite://not-used.db") };
    store::migrate(&options).await.unwrap();
    let [here, there] = [store::open(&options).await.unwrap(), store::open(&options).await.unwrap()];
    let mut hints = there.system().hints().unwrap();
    until_it_hears(&there).await;
    say_until_heard(&here.system(), &mut hints).await;
    primary.stop(Stop::Kill).await;
    until("it is noticed", async || there.system().watch_interval() != ROUND).await;
    standby.set("synchronous_standby_names", "''").await;
    standby.promote().await;
    until_it_hears(&there).await;
    say_until_heard(&here.system(), &mut hints).await;
    for store in [here, there] {
        store.system().close().await;
    }
}

/// A server that takes connections and says nothing; and how many it took.
async fn silent_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://postgres@{}/tasks", listener.local_addr().unwrap());
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    spawn("silent server", async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            kept.push(stream);
        }
    });
    (url, taken)
}

// req: KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_listens_at_a_server_that_the_store_has_passed_over() {
    let database = TestDatabase::new(Backend::Postgres).await;
    let (silent, taken) = silent_server().await;
    let urls = [silent, database.url.clone()].map(SecretString::from).to_vec();
    let options = DatabaseOptions { urls, ..DatabaseOptions::new("sqlite://not-used.db") };
    let store = store::open(&options).await.unwrap();
    let before = taken.load(Ordering::SeqCst);
    assert!(before > 0, "it was tried first");
    let _hints = store.system().hints().unwrap();
    until_it_hears(&store).await;
    assert_eq!(taken.load(Ordering::SeqCst), before);
    store.system().close().await;
}
