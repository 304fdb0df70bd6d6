//! Questions over links to PostgreSQL that break before a statement, or after its commit and before its answer.

use taskhold::domain::ids::LeaseToken;
use taskhold::domain::task::Status;
use taskhold::domain::work::UpstreamTask;
use taskhold::store::{self, Asked, Hold, Release, Taken};

use crate::store::at;
use crate::store::questions::{Running, answer, then};
use crate::support::database::{Backend, TestDatabase, options};
use crate::support::pgproxy::{Moment, PgProxy};

const MOMENTS: [Moment; 2] = [Moment::Before, Moment::AfterCommit];

/// Work whose own way to the database leads through a proxy.
struct Broken {
    proxy: PgProxy,
    work: Running,
    database: TestDatabase,
}

impl Broken {
    async fn new() -> Self {
        let database = TestDatabase::new(Backend::Postgres).await;
        let (proxy, url) = PgProxy::before_url(&database.url).await;
        let mut work = Running::new(&database).await;
        let store = store::open(&options(&url)).await.unwrap();
        work.system = store.system();
        work.scoped = crate::store::caller(&store, "asked").await.1;
        Self { proxy, work, database }
    }

    async fn inputs(&self) -> i64 {
        self.database.number("SELECT COUNT(*) FROM task_inputs").await
    }
}

// req: INPUT-01, KEEP-11
#[tokio::test]
async fn a_question_whose_answer_is_lost_is_asked_once() {
    for moment in MOMENTS {
        let broken = Broken::new().await;
        let cut = broken.proxy.cut("INSERT INTO task_inputs", moment);
        let input = broken.work.ask("x", at(1)).await;
        cut.await.unwrap();
        assert_eq!(broken.inputs().await, 1, "{moment:?}");
        let sent = broken.work.send(input).await;
        let task = broken.work.answer(sent, "x", at(2)).await.unwrap();
        assert_eq!(task.status, Status::Working, "it was counted once");
    }
}

// req: INPUT-03, KEEP-11
#[tokio::test]
async fn an_adoption_whose_answer_is_lost_happened_once() {
    for moment in MOMENTS {
        let mut broken = Broken::new().await;
        let twins = [broken.work.ask("x", at(1)).await, broken.work.ask("x", at(2)).await];
        let (task, token) = (broken.work.task, broken.work.token);
        let (not_before, message) = (at(3), "again".to_owned());
        let release = Release { task, token, not_before, counted: true, keep_inputs: true, message, now: at(3) };
        assert!(broken.work.system.release(release).await.unwrap());
        broken.work.token = LeaseToken::new();
        let tokens = vec![broken.work.token];
        assert_eq!(broken.work.system.claim(broken.work.node, tokens, at(4)).await.unwrap().len(), 1);
        let cut = broken.proxy.cut("SET token = w.lease", moment);
        let asked = broken.work.system.ask(broken.work.question("x", at(5))).await.unwrap();
        cut.await.unwrap();
        assert!(matches!(asked, Asked::Adopted { id, .. } if id == twins[0]), "{moment:?}: {asked:?}");
        assert_eq!(broken.inputs().await, 2);
        let asked = broken.work.system.ask(broken.work.question("x", at(5))).await.unwrap();
        assert!(matches!(asked, Asked::Adopted { id, .. } if id == twins[1]), "{moment:?}: {asked:?}");
    }
}

// req: INPUT-05, KEEP-11
#[tokio::test]
async fn an_answer_whose_end_is_lost_is_given_and_taken_once() {
    for moment in MOMENTS {
        let broken = Broken::new().await;
        let (first, second) = (broken.work.ask("one", at(1)).await, broken.work.ask("two", at(2)).await);
        let sent = broken.work.send(first).await;
        let cut = broken.proxy.cut("SET state = 1", moment);
        let task = broken.work.answer(sent, "one", at(3)).await.expect("it is this one that answered");
        cut.await.unwrap();
        assert_eq!((task.status, broken.work.open().await), (Status::InputRequired, vec![second]), "{moment:?}");
        assert_eq!(broken.work.answer(sent, "one", at(4)).await, None, "another answer, of the same text, is late");
        let cut = broken.proxy.cut("SET state = 2", moment);
        let taken = broken.work.system.take_answer(first, broken.work.token).await.unwrap();
        cut.await.unwrap();
        assert_eq!(taken, Taken::Answer(answer("one")), "{moment:?}");
        assert_eq!(broken.work.system.take_answer(first, broken.work.token).await.unwrap(), Taken::Gone);
    }
}

// req: INPUT-12, KEEP-11
#[tokio::test]
async fn a_withdrawal_whose_answer_is_lost_happened_once() {
    for moment in MOMENTS {
        let broken = Broken::new().await;
        let (first, second) = (broken.work.ask("one", at(1)).await, broken.work.ask("two", at(2)).await);
        let cut = broken.proxy.cut("SET state = 3", moment);
        let task =
            broken.work.system.withdraw_input(first, broken.work.token, &then("no"), at(3)).await.unwrap().unwrap();
        cut.await.unwrap();
        assert_eq!((task.status, broken.work.open().await), (Status::InputRequired, vec![second]), "{moment:?}");
    }
}

// req: INPUT-14, KEEP-11
#[tokio::test]
async fn a_hold_whose_answer_is_lost_is_held() {
    for moment in MOMENTS {
        let broken = Broken::new().await;
        let input = broken.work.ask("x", at(1)).await;
        let hold = broken.work.hold(input);
        let cut = broken.proxy.cut("INSERT INTO input_deliveries", moment);
        assert!(broken.work.system.hold_input(hold.clone()).await.unwrap(), "{moment:?}");
        cut.await.unwrap();
        assert!(!broken.work.system.hold_input(Hold { ..broken.work.hold(input) }).await.unwrap());
        broken.work.system.let_go(broken.work.node, &[hold.delivery]).await.unwrap();
        let cut = broken.proxy.cut("SET node = $2", moment);
        let back = broken.work.scoped.rehold_stream(hold.stream, broken.work.node).await.unwrap();
        cut.await.unwrap();
        assert_eq!(back.iter().map(|sent| sent.delivery).collect::<Vec<_>>(), [hold.delivery], "{moment:?}");
    }
}

// req: KEEP-07, KEEP-11
#[tokio::test]
async fn a_hand_over_whose_answer_is_lost_is_known() {
    for moment in MOMENTS {
        let broken = Broken::new().await;
        let to = UpstreamTask { id: "theirs".to_owned(), session: None, revision: "2025-11-25".to_owned() };
        let cut = broken.proxy.cut("INSERT INTO upstream_tasks", moment);
        assert!(broken.work.system.hand_over(broken.work.task, broken.work.token, to.clone(), at(1)).await.unwrap());
        cut.await.unwrap();
        let claim = broken.work.system.claim_of(broken.work.task, broken.work.token).await.unwrap().unwrap();
        assert_eq!(claim.handed_over, Some(to), "{moment:?}");
    }
}
