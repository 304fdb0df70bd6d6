//! What differs between databases.
//!
//! A member is a whole constant statement with a comment that says why it differs, or a way to run statements. To add a
//! database: a file with its [`Dialect`], a folder of migrations, one line in `open`, one line that runs the contract
//! suite.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::sql::{Arg, Args, Cells, Fault};

/// A connection of a dialect's database.
pub type Connection<D> = <<D as Dialect>::Database as sqlx::Database>::Connection;
/// A row of a dialect's database.
pub type Row<D> = <<D as Dialect>::Database as sqlx::Database>::Row;
/// How to connect to a dialect's database.
pub type ConnectOptions<D> = <Connection<D> as sqlx::Connection>::Options;

/// A statement for many rows. On PostgreSQL it is one statement over `unnest` of arrays, one array a column. On SQLite
/// it is a list of steps, run for each row with the same arguments, or for all rows at once where it reads them from JSON: the
/// first one's rows are the answer, and if it answers nothing the others are left out, so that the first, conditional write
/// decides.
pub type Many = &'static [&'static str];

macro_rules! dialect {
    (
        single { $($(#[$single_doc:meta])* $single:ident),* $(,)? }
        many { $($(#[$many_doc:meta])* $many:ident),* $(,)? }
        $($rest:tt)*
    ) => {
        /// One database engine.
        pub trait Dialect: Send + Sync + Sized + 'static {
            $($(#[$single_doc])* const $single: &'static str;)*
            $($(#[$many_doc])* const $many: Many;)*
            $($rest)*
        }

        /// Every statement of a dialect, for the test that prepares them.
        #[cfg(test)]
        pub fn statements<D: Dialect>() -> Vec<&'static str> {
            let mut all = vec![$(D::$single),*];
            $(all.extend(D::$many);)*
            all
        }
    };
}

dialect! {
    single {
        /// The database's clock in microseconds. Each has functions of its own.
        CLOCK,
        /// Adds a node (`$1`) heard of now by the database's clock.
        REGISTER_NODE,
        /// Moves a living node's (`$1`) heartbeat to now by the database's clock.
        HEARTBEAT,
        /// Declares dead all nodes but `$1` not heard of for `$2` microseconds by the database's clock.
        DECLARE_DEAD,
        /// What is new (see `watch.rs`) of tasks `$1`, sessions `$2`, asking tasks `$3`, deliveries `$4`, inputs `$5`, of
        /// live tasks since `$6` and of signals since `$7`, at most `$8` signals, and of tasks that were made since
        /// `$9` and are over, at most `$10`. Live tasks are those of the sessions, the asking ones and those listened to
        /// (`$15`). Lists of ids differ.
        NEWS,
        /// Whether there may be something to recover (`lost`): a node other than `$1` not heard of for `$2` microseconds by
        /// the database's clock, or what dead and unknown nodes have.
        LOST,
        /// Keeps the claims of others from counting slots until this transaction ends. SQLite's one writer is alone anyway.
        COUNT_ALONE,
    }
    many {
        /// Inserts tasks without keys, their requests and their live rows; answers the ids.
        CREATE,
        /// The same of tasks with keys, unless the key is another row's.
        CREATE_KEYED,
        /// Ends tasks: answers those which this write ended.
        END,
        /// The ended tasks (`id`) whose outcome a given writer (`token`) wrote.
        WRITTEN,
        /// Messages and progress of running tasks; answers those whose lease holds.
        NOTE,
        /// Leases given back; answers those that were held.
        RELEASE,
        /// Messages of waiting tasks.
        NOTE_WAITING,
        /// The oldest tasks due at `$3` of lanes (context and tool), at most `$4` of each, which is the same for all. From `$5` on,
        /// where the lane begins: what was taken before it is gone and yet in the index.
        WAITING_IN,
        /// The same, locked for the claim. SQLite has no row locks: its one writer holds the whole database.
        PICK_WAITING,
        /// How many slots contexts hold. Counted by an index over what runs, so that it costs what the slots of all nodes allow.
        SLOTS_OF_CONTEXTS,
        /// The same of tenants that are counted.
        SLOTS_OF_TENANTS,
        /// The same of tools that are counted.
        SLOTS_OF_TOOLS,
        /// Claims picked tasks; answers them as `CLAIMS` does, or their ids (`TAKE_ANSWERS_CLAIMS`).
        TAKE,
        /// Claims by task and token.
        CLAIMS,
        /// Tasks by context and id.
        FIND,
        /// The same with the outcome.
        FIND_OUTCOME,
        /// Tasks by id, whoever's they are.
        TASKS,
        /// Locks live rows in the order of their ids; answers those that are there. SQLite's one writer holds everything.
        LOCK_LIVE,
        /// Questions that an attempt need not ask anew: its own, asked before by a write whose end was lost, and open or
        /// answered ones of attempts before it. An answer that is only to the second asking of the same is for nobody who
        /// begins anew: only who follows a task of the upstream is at the same place.
        ASKED_BEFORE,
        /// Adds open questions by lease, to tasks that have asked fewer than they may; answers the ids of their tasks.
        ASK,
        /// Gives open and answered questions to the attempt that asks now.
        ADOPT,
        /// Answers open questions of live tasks; answers the ids of the tasks.
        ANSWER,
        /// The tasks of those answers that a given writer wrote.
        ANSWERED,
        /// The open question of each task that was asked last.
        NEWEST_OPEN,
        /// One open question less of each task, which goes back to work when none is left, and else says `$4`.
        ONE_LESS,
        /// Gives open questions that no stream holds to streams; answers the deliveries.
        HOLD,
        /// The deliveries among these that are their questions' last.
        LAST_DELIVERIES,
        /// The tasks of deliveries.
        TASKS_OF_DELIVERIES,
        /// Takes from a node's streams what they hold.
        LET_GO,
        /// Takes from dead and unknown nodes what they hold of a task.
        LET_GO_DEAD,
        /// Where the GET streams of sessions are.
        SESSION_STREAMS,
        /// Tokens by id.
        TOKENS,
        /// Deletes ended tasks that expired by `$1`, at most `$2`; one row of arguments. SQLite cannot write to several
        /// tables in one statement.
        REAP,
        /// Deletes sessions last used before `$1`, at most `$2`; one row of arguments.
        REAP_SESSIONS,
        /// Deletes signals given before `$1`, at most `$2`; one row of arguments.
        REAP_SIGNALS,
    }

    type Database: sqlx::Database<Row: Cells>;

    /// How a write transaction begins. SQLite must take its lock at once: a transaction that reads first and writes
    /// then fails when another one wrote in between, whatever the busy time-out.
    const BEGIN: &'static str;
    /// The same where nothing of a session lasts, with the settings that others have from their start.
    const BEGIN_POOLED: &'static str;
    /// Whether a [`Many`] of several rows needs a transaction around it to be all or nothing.
    const MANY_IS_SEVERAL_STATEMENTS: bool;
    /// Whether `TAKE` answers what `CLAIMS` would. On SQLite a write answers only the row that it wrote.
    const TAKE_ANSWERS_CLAIMS: bool;
    /// A statement that answers another number (`data_version`) when another connection has committed, if there is one
    /// that costs no query.
    const WATCH: Option<&'static str>;
    /// How often it is worth asking whether something changed.
    const WATCH_INTERVAL: Duration;
    /// Has a connection plan its statements anew, where it keeps plans.
    const FORGET_PLANS: Option<&'static str>;
    /// Says `$1` to all who listen, if there is such a thing.
    const NOTIFY: Option<&'static str>;
    /// How long a statement may take before its connection is given up.
    const DEADLINE: Duration;

    /// Whether a new connection leads to a server that takes writes.
    fn takes_writes(connection: &mut Connection<Self>) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// With `keep` the connection may keep the prepared statement for the next time, here and below.
    fn fetch<'c>(
        connection: &'c mut Connection<Self>,
        sql: &'static str,
        args: Args,
        keep: bool,
    ) -> impl Future<Output = Result<Vec<Row<Self>>, sqlx::Error>> + Send + 'c;

    /// Answers how many rows were written.
    fn execute<'c>(
        connection: &'c mut Connection<Self>,
        sql: &'static str,
        args: Args,
        keep: bool,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send + 'c;

    fn many<'c>(
        connection: &'c mut Connection<Self>,
        statement: Many,
        rows: Vec<Args>,
        keep: bool,
    ) -> impl Future<Output = Result<Vec<Row<Self>>, sqlx::Error>> + Send + 'c;
}

/// The columns of a row as sqlx reads them: one implementation for each engine's row type.
macro_rules! cells {
    ($row:ty) => {
        impl $crate::store::sql::Cells for $row {
            fn maybe_int(&self, column: &str) -> Result<Option<i64>, $crate::store::sql::Fault> {
                Ok(sqlx::Row::try_get(self, column)?)
            }

            fn maybe_str(&self, column: &str) -> Result<Option<&str>, $crate::store::sql::Fault> {
                Ok(sqlx::Row::try_get(self, column)?)
            }

            fn maybe_uuid(&self, column: &str) -> Result<Option<uuid::Uuid>, $crate::store::sql::Fault> {
                Ok(sqlx::Row::try_get(self, column)?)
            }

            fn maybe_bytes(&self, column: &str) -> Result<Option<Vec<u8>>, $crate::store::sql::Fault> {
                Ok(sqlx::Row::try_get(self, column)?)
            }
        }
    };
}
pub(super) use cells;

/// Arguments one by one; `add_list` adds a list in the form of its database.
pub(super) fn bind<'q, A>(
    args: Args,
    add_list: impl Fn(&mut A, Vec<uuid::Uuid>) -> Result<(), sqlx::error::BoxDynError>,
) -> Result<A, sqlx::Error>
where
    A: sqlx::Arguments,
    Option<i64>: sqlx::Encode<'q, A::Database> + sqlx::Type<A::Database>,
    Option<Arc<str>>: sqlx::Encode<'q, A::Database> + sqlx::Type<A::Database>,
    Option<uuid::Uuid>: sqlx::Encode<'q, A::Database> + sqlx::Type<A::Database>,
    Option<Vec<u8>>: sqlx::Encode<'q, A::Database> + sqlx::Type<A::Database>,
{
    let mut bound = A::default();
    for arg in args {
        match arg {
            Arg::Int(value) => bound.add(value),
            Arg::Text(value) => bound.add(value),
            Arg::Uuid(value) => bound.add(value),
            Arg::Bytes(value) => bound.add(value),
            Arg::Uuids(list) => add_list(&mut bound, list),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(bound)
}
