//! What several topics of tests use.

pub mod client;
pub mod cluster;
pub mod database;
pub mod events;
pub mod host;
pub mod modern;
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
