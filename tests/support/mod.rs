//! What several topics of tests use.

pub mod client;
pub mod cluster;
pub mod database;
pub mod events;
pub mod fixtures;
pub mod host;
pub mod issuer;
pub mod modern;
pub mod nginx;
pub mod pgbouncer;
pub mod pgproxy;
pub mod processes;
pub mod raw;
pub mod remote;
pub mod rng;
pub mod schema;
pub mod script;
pub mod server;
pub mod tasks;
pub mod waiting;

/// How often a case is repeated: so many times as a rule, as often as `TASKHOLD_TEST_ROUNDS` says in a long run.
pub fn rounds(usual: usize) -> usize {
    #[expect(clippy::disallowed_methods, reason = "a setting of the tests")]
    let said = std::env::var("TASKHOLD_TEST_ROUNDS");
    said.map_or(usual, |said| said.parse().expect("TASKHOLD_TEST_ROUNDS is a number"))
}

/// Runs each case on each database.
macro_rules! contract {
    ($($case:ident),* $(,)?) => {
        mod on_sqlite {
            use crate::support::database::{Backend, TestDatabase};
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(TestDatabase::new(Backend::Sqlite).await).await;
                }
            )*
        }

        mod on_postgres {
            use crate::support::database::{Backend, TestDatabase};
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(TestDatabase::new(Backend::Postgres).await).await;
                }
            )*
        }
    };
}
pub(crate) use contract;

/// Runs each case on each database, and on PostgreSQL behind a pooler.
macro_rules! contract_everywhere {
    ($($case:ident),* $(,)?) => {
        crate::support::contract! { $($case),* }

        mod behind_a_pooler {
            use crate::support::pgbouncer::database_behind_a_pooler;
            $(
                // req: KEEP-15
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(database_behind_a_pooler().await).await;
                }
            )*
        }
    };
}
pub(crate) use contract_everywhere;
