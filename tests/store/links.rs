//! A database that is away, silent, busy, broken or read-only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use taskhold::domain::ids::NodeId;
use taskhold::domain::outcome::Outcome;
use taskhold::lifecycle;
use taskhold::store::{Ended, StoreError, open};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{at, caller, contract, end, new_task};
use crate::support::database::{Backend, TestDatabase, options, run};

contract! {
    many_writers_in_two_processes_never_see_a_lock,
}

// req: KEEP-14
async fn many_writers_in_two_processes_never_see_a_lock(db: TestDatabase) {
    let other = db.another().await;
    let mut callers = Vec::new();
    for n in 0..64 {
        let store = if n % 2 == 0 { &db.store } else { &other };
        callers.push(caller(store, &format!("caller {n}")).await.1);
    }
    let work = callers.iter().map(|scoped| async move {
        for second in 0..5 {
            let new = new_task(at(second));
            scoped.create(new.clone()).await.unwrap();
            assert_eq!(scoped.list(None, 1, at(9)).await.unwrap()[0].id, new.id);
            assert!(scoped.get(new.id).await.unwrap().is_some());
            let ended = scoped.cancel(new.id, end(Outcome::Cancelled, at(9))).await.unwrap();
            assert!(matches!(ended, Ended::Done(_)));
        }
    });
    join_all(work).await;
    assert_eq!(db.number("SELECT COUNT(*) FROM task_outcomes").await, 64 * 5);
}

/// A server that answers, but not for this database: it is away, which is no refusal of what was asked.
// req: KEEP-11
#[tokio::test]
async fn a_database_that_is_closed_to_connections_is_away() {
    let db = TestDatabase::new(Backend::Postgres).await;
    let (_, scoped) = caller(&db.store, "owner").await;
    let task = new_task(at(0));
    scoped.create(task.clone()).await.unwrap();
    let (server, name) = db.url.rsplit_once('/').unwrap();
    let admin = format!("{server}/postgres");
    run(&admin, &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await;
    let kill = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    run(&admin, &kill).await;
    for _ in 0..3 {
        let (read, written) = (scoped.get(task.id).await, scoped.create(new_task(at(1))).await);
        assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
        assert!(matches!(written, Err(StoreError::Unavailable(_))), "{written:?}");
        let listed = scoped.list(None, 1, at(1)).await;
        assert!(matches!(listed, Err(StoreError::Unavailable(_))), "{listed:?}");
    }
    run(&admin, &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true")).await;
    let deadline = Instant::now() + Duration::from_secs(10);
    while scoped.get(task.id).await.is_err() {
        assert!(Instant::now() < deadline, "it comes back without a restart");
        tokio::task::yield_now().await;
    }
}

/// What stands between a store and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    /// Everything passes.
    Clear,
    /// Connections stay open, new ones are accepted, nothing passes.
    Silent,
    /// Connections are closed, new ones too.
    Closed,
}

struct Proxy {
    url: String,
    weather: watch::Sender<Weather>,
}

impl Proxy {
    async fn before(url: &str) -> Self {
        let (credentials, rest) = url.rsplit_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{credentials}@{}/{database}", listener.local_addr().unwrap());
        let (weather, now) = watch::channel(Weather::Clear);
        let server: Arc<str> = server.into();
        lifecycle::spawn("test.proxy", async move {
            while let Ok((client, _)) = listener.accept().await {
                lifecycle::spawn("test.proxy", pass(client, Arc::clone(&server), now.clone()));
            }
        });
        Self { url, weather }
    }
}

async fn pass(mut client: TcpStream, server: Arc<str>, mut now: watch::Receiver<Weather>) {
    let mut upstream = TcpStream::connect(&*server).await.unwrap();
    loop {
        let weather = *now.borrow_and_update();
        match weather {
            Weather::Closed => return,
            Weather::Silent => now.changed().await.unwrap(),
            Weather::Clear => tokio::select! {
                _ = copy_bidirectional(&mut client, &mut upstream) => return,
                changed = now.changed() => changed.unwrap(),
            },
        }
    }
}

// req: KEEP-11, KEEP-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_link_is_noticed_and_left() {
    let db = TestDatabase::new(Backend::Postgres).await;
    let proxy = Proxy::before(&db.url).await;
    let store = open(&options(&proxy.url)).await.unwrap();
    let (_, scoped) = caller(&store, "a").await;
    let node = NodeId::new();
    store.system().register_node(node).await.unwrap();
    store.system().heartbeat(node).await.unwrap();
    let first = new_task(at(0));
    scoped.create(first.clone()).await.unwrap();

    proxy.weather.send(Weather::Silent).unwrap();
    let started = Instant::now();
    let system = store.system();
    let (created, got, listed, beat) = tokio::join!(
        scoped.create(new_task(at(1))),
        scoped.get(first.id),
        scoped.list(None, 10, at(2)),
        system.heartbeat(node),
    );
    for error in [created.err(), got.err(), listed.err(), beat.err()] {
        assert!(matches!(error, Some(StoreError::Unavailable(_))), "{error:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(11), "{:?}", started.elapsed());
    // Known to be away, it is not waited for again.
    let started = Instant::now();
    assert!(matches!(scoped.create(new_task(at(1))).await, Err(StoreError::Unavailable(_))));
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());

    proxy.weather.send(Weather::Clear).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while scoped.get(first.id).await.is_err() || scoped.list(None, 10, at(2)).await.is_err() {
        assert!(Instant::now() < deadline, "the store does not come back");
        tokio::task::yield_now().await;
    }
    while system.heartbeat(node).await.is_err() || scoped.create(new_task(at(3))).await.is_err() {
        assert!(Instant::now() < deadline, "the store does not come back");
        tokio::task::yield_now().await;
    }
}

// req: KEEP-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_refuses_quickly_and_comes_back() {
    let db = TestDatabase::new(Backend::Postgres).await;
    let proxy = Proxy::before(&db.url).await;
    let store = open(&options(&proxy.url)).await.unwrap();
    let (_, scoped) = caller(&store, "a").await;
    let first = new_task(at(0));
    scoped.create(first.clone()).await.unwrap();
    proxy.weather.send(Weather::Closed).unwrap();
    // The first to notice try for a while, the others are refused at once.
    let _ = tokio::join!(scoped.create(new_task(at(1))), scoped.create(new_task(at(1))));
    let started = Instant::now();
    for result in join_all((0..50).map(|n| scoped.create(new_task(at(n))))).await {
        assert!(matches!(result, Err(StoreError::Unavailable(_))), "{result:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    proxy.weather.send(Weather::Clear).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while scoped.get(first.id).await.is_err() || scoped.create(new_task(at(2))).await.is_err() {
        assert!(Instant::now() < deadline, "the store does not come back");
        tokio::task::yield_now().await;
    }
}

// req: KEEP-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_refuses_writes_and_answers_reads() {
    let db = TestDatabase::new(Backend::Postgres).await;
    let (_, scoped) = caller(&db.store, "a").await;
    let first = new_task(at(0));
    scoped.create(first.clone()).await.unwrap();
    let name = db.url.rsplit_once('/').unwrap().1;
    db.sql(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    let store = db.another().await;
    let (_, scoped) = caller(&store, "a").await;
    assert!(scoped.get(first.id).await.unwrap().is_some());
    let error = scoped.create(new_task(at(1))).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(text) if text.contains("read-only")), "{error}");
    let ended = scoped.cancel(first.id, end(Outcome::Cancelled, at(2))).await;
    assert!(matches!(ended, Err(StoreError::Refused(_))), "{ended:?}");
    assert_eq!(scoped.list(None, 10, at(3)).await.unwrap().len(), 1);
}

// req: KEEP-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_database_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "not a database, but long enough to be looked at. ".repeat(100)).unwrap();
    let url = format!("sqlite://{}", path.display());
    let error = taskhold::store::migrate(&options(&url)).await.unwrap_err();
    assert!(error.to_string().contains("no SQLite database"), "{error}");
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("not a database"), "it is left as it was");
}
