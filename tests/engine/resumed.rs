//! Streams that go on at another node, or at this one: whose the question is that they held, and which progress was said.

use futures_util::FutureExt as _;
use taskhold::domain::ids::{DeliveryId, StreamId, TaskId};
use taskhold::domain::input::Answer;
use taskhold::domain::json::RawJson;
use taskhold::engine::{Asked, BeatOutcome, Caller, Delivery, Item, Resume, Stream, ToolCall};
use taskhold::executor::Event;
use taskhold::store::Held;

use std::time::Duration;

use super::harness::{Node, World, call};
use super::places::{ask, ends, one, open, question_on, session, stream_of};
use crate::http::harness::until;
use crate::support::contract;
use crate::support::database::{Backend, TestDatabase, hold};
use crate::support::script::ScriptedCall;

contract! {
    a_question_that_was_seen_stays_with_its_stream_at_another_node,
    a_result_takes_along_the_question_that_it_held,
    of_streams_that_go_on_in_the_same_moment_one_stays,
    of_streams_that_go_on_in_the_same_moment_the_one_with_the_question_stays,
    a_stream_that_takes_back_what_it_had_is_not_let_go_meanwhile,
    a_question_that_was_not_seen_is_shown_again_with_a_number_of_its_own,
    a_question_that_was_put_on_the_old_line_goes_on_under_its_id,
    a_node_that_comes_back_from_the_dead_takes_nothing_from_who_has_it,
    a_node_lets_go_by_its_look_alone_what_has_moved,
    what_is_let_go_by_mistake_is_held_again_in_silence,
    a_question_whose_stream_moves_is_not_left_on_the_old_line,
    a_stream_that_is_leaving_is_waited_for,
    a_question_that_is_being_put_when_its_stream_ends_is_not_lost,
    progress_is_not_repeated_when_a_stream_goes_on_at_another_node,
    progress_is_not_repeated_when_an_older_stream_has_its_turn_again,
    progress_is_not_repeated_when_who_waits_is_told_again,
    who_has_seen_nothing_is_shown_the_newest_progress,
}

/// A session with an open stream at a node, its task, whose work asks, and what its client is asked.
struct Asking {
    world: World,
    caller: Caller,
    here: Node,
    there: Node,
    task: TaskId,
    _work: ScriptedCall,
    answered: tokio::task::JoinHandle<Answer>,
}

/// A question on a stream.
struct Seen {
    stream: Stream,
    id: String,
    /// The number of its event.
    count: i64,
}

impl Asking {
    async fn new(database: TestDatabase) -> Self {
        Self::worked_at(database, false).await
    }

    /// The work is at this node, or at the other one.
    async fn worked_at(database: TestDatabase, the_other: bool) -> Self {
        let world = World::new(database).await;
        let (here, there, caller) = (world.node().await, world.node_apart().await, session(&world).await);
        let worker = if the_other { &there } else { &here };
        let task = worker.create(&caller, "once").await.id;
        let work = worker.script.next().await;
        let answered = ask(&work);
        let asking = Self { world, caller, here, there, task, _work: work, answered };
        until("the question is open", async || asking.is_open().await).await;
        asking
    }

    async fn is_open(&self) -> bool {
        !self.world.database.store.scoped(&self.caller.auth).open_inputs(self.task).await.unwrap().is_empty()
    }

    async fn held(&self) -> Option<Held> {
        let open = self.world.database.store.scoped(&self.caller.auth).open_inputs(self.task).await.unwrap();
        open[0].held
    }

    /// Who has the question: under which id, at which node.
    async fn is_held(&self, id: &str, node: &Node) -> bool {
        let held = self.held().await;
        held.is_some_and(|held| held.delivery == id.parse::<DeliveryId>().unwrap() && held.node == node.engine.node())
    }

    async fn get_stream(&self, node: &Node, resume: Option<Resume>) -> Stream {
        node.engine.open_session_stream(&self.caller, self.caller.session.unwrap(), resume).await.unwrap()
    }

    async fn result_stream(&self, node: &Node, resume: Option<Resume>) -> Stream {
        let asked = Asked::in_session("1".to_owned(), true, false);
        node.engine.open_result_stream(&self.caller, self.task, asked, resume).await.unwrap()
    }

    /// The question as it comes on the stream, which is offered it by its node's rounds.
    async fn question(&self, node: &Node, mut stream: Stream) -> Seen {
        let asked = async {
            loop {
                node.engine.watch_once().await.unwrap();
                while let Some(item) = stream.next().now_or_never() {
                    match item {
                        Item::Message { count, delivery: Delivery::Ask { id, .. } } => return (id, count),
                        Item::Message { .. } => {}
                        other => panic!("the stream ended: {other:?}"),
                    }
                }
                tokio::task::yield_now().await;
            }
        };
        let (id, count) = tokio::time::timeout(Duration::from_secs(10), asked).await.expect("a question comes");
        Seen { stream, id, count }
    }

    /// Rounds of both nodes, in which each hears of the other and has its questions offered.
    async fn rounds(&self) {
        let signals = "SELECT COUNT(*) FROM signals WHERE payload IS NOT NULL";
        until("the hint is there", async || self.world.database.number(signals).await > 0).await;
        self.rounds_of([&self.here, &self.there]).await;
    }

    async fn rounds_of(&self, nodes: [&Node; 2]) {
        for _ in 0..3 {
            for node in nodes {
                node.engine.watch_once().await.unwrap();
                node.engine.recover_once().await.unwrap();
            }
        }
    }

    async fn deliveries(&self) -> i64 {
        self.world.database.number("SELECT COUNT(*) FROM input_deliveries").await
    }

    /// The client answers under this id, at the other node, and the work has that.
    async fn answered_at_the_other(self, id: &str) {
        self.there.engine.answer(&self.caller, id, one()).await.unwrap();
        self.here.engine.watch_once().await.unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(10), self.answered).await.expect("it is answered");
        assert_eq!(answered.unwrap(), one());
    }
}

/// The questions that can be read now.
fn questions(stream: &mut Stream) -> Vec<String> {
    let mut questions = Vec::new();
    while let Some(Item::Message { delivery, .. }) = stream.next().now_or_never() {
        if let Delivery::Ask { id, .. } = delivery {
            questions.push(id);
        }
    }
    questions
}

const fn after(stream: StreamId, after: i64) -> Option<Resume> {
    Some(Resume { stream, after })
}

// req: HTTP-09
async fn of_streams_that_go_on_in_the_same_moment_one_stays(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let stream = asking.result_stream(&asking.here, None).await;
    let Seen { stream, count, .. } = asking.question(&asking.here, stream).await;
    let resume = after(stream.id(), count);
    let one = asking.result_stream(&asking.there, resume).await;
    let other = asking.result_stream(&asking.here, resume).await;
    both_hints_are_there(&asking).await;
    asking.rounds().await;
    // The one that is let go has asked the database first.
    let (mut one, mut other) = (one, other);
    until("one of them is let go", async || !(is_open(&mut one) && is_open(&mut other))).await;
    asking.rounds().await;
    assert!(is_open(&mut one) != is_open(&mut other));
}

/// Both nodes by their ids: where streams were opened in the same moment, that of the first would give way to that of the other.
fn by_id(asking: &Asking) -> [&Node; 2] {
    let mut nodes = [&asking.here, &asking.there];
    nodes.sort_by_key(|node| node.engine.node());
    nodes
}

// req: HTTP-09, INPUT-04
async fn of_streams_that_go_on_in_the_same_moment_the_one_with_the_question_stays(database: TestDatabase) {
    for (holder_would_give_way, holder_looks_first) in [(true, false), (true, true), (false, false), (false, true)] {
        let asking = Asking::new(TestDatabase::new(database.backend).await).await;
        let stream = asking.result_stream(&asking.here, None).await;
        let Seen { stream, id, count } = asking.question(&asking.here, stream).await;
        let resume = after(stream.id(), count);
        let [first, last] = by_id(&asking);
        let (holder, other) = if holder_would_give_way { (first, last) } else { (last, first) };
        let mut passed = asking.result_stream(other, resume).await;
        let mut kept = asking.result_stream(holder, resume).await;
        let order = if holder_looks_first { [holder, other] } else { [other, holder] };
        both_hints_are_there(&asking).await;
        asking.rounds_of(order).await;
        ends(&mut passed).await;
        drop(passed);
        asking.rounds_of(order).await;
        assert!(is_open(&mut kept), "{holder_would_give_way} {holder_looks_first}");
        assert!(asking.is_held(&id, holder).await);
        assert_eq!(asking.deliveries().await, 1, "its client is not asked anew");
        drop(stream);
    }
}

// req: HTTP-09, INPUT-04
async fn a_stream_that_takes_back_what_it_had_is_not_let_go_meanwhile(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let stream = asking.result_stream(&asking.here, None).await;
    let Seen { stream, id, count } = asking.question(&asking.here, stream).await;
    let resume = after(stream.id(), count);
    let [holder, other] = by_id(&asking);
    let mut passed = asking.result_stream(other, resume).await;
    let signals = "SELECT COUNT(*) FROM signals WHERE payload IS NOT NULL";
    until("its hint is there", async || asking.world.database.number(signals).await == 1).await;
    let stalled = stall(&asking).await;
    let mut opening = Box::pin(asking.result_stream(holder, resume));
    let mut kept = match stalled {
        None => opening.await,
        Some(stalled) => {
            tokio::select! {
                _ = &mut opening => panic!("it has taken back what nobody may write"),
                () = is_stalled(&asking) => {}
            }
            // It hears of the other one, which has the question for the moment.
            holder.engine.watch_once().await.unwrap();
            drop(stalled);
            opening.await
        }
    };
    both_hints_are_there(&asking).await;
    asking.rounds_of([other, holder]).await;
    ends(&mut passed).await;
    drop(passed);
    asking.rounds_of([other, holder]).await;
    assert!(is_open(&mut kept));
    assert!(asking.is_held(&id, holder).await);
    drop(stream);
}

async fn both_hints_are_there(asking: &Asking) {
    let signals = "SELECT COUNT(*) FROM signals WHERE payload IS NOT NULL";
    until("both hints are there", async || asking.world.database.number(signals).await == 2).await;
}

/// Whether it goes on, whatever was said on it.
fn is_open(stream: &mut Stream) -> bool {
    loop {
        match stream.next().now_or_never() {
            Some(Item::Message { .. }) => {}
            ended => return ended.is_none(),
        }
    }
}

// req: HTTP-09, INPUT-14
// field case: F-HTTP-07
async fn a_question_that_was_seen_stays_with_its_stream_at_another_node(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let stream = asking.get_stream(&asking.here, None).await;
    let Seen { mut stream, id, count } = asking.question(&asking.here, stream).await;
    // Its connection is gone, or the node was killed: whatever it is, the row still names it.
    asking.world.clock.advance(Duration::from_millis(300));
    let mut resumed = asking.get_stream(&asking.there, after(stream.id(), count)).await;
    assert!(asking.is_held(&id, &asking.there).await);
    // The old node hears of it, and lets go what is not its own any more.
    asking.rounds().await;
    ends(&mut stream).await;
    drop(stream);
    asking.rounds().await;
    assert_eq!(questions(&mut resumed), Vec::<String>::new(), "its client has seen it");
    assert!(asking.is_held(&id, &asking.there).await);
    assert_eq!(asking.deliveries().await, 1);
    asking.answered_at_the_other(&id).await;
}

// req: HTTP-09, INPUT-14
async fn a_result_takes_along_the_question_that_it_held(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let stream = asking.result_stream(&asking.here, None).await;
    let Seen { stream, id, count } = asking.question(&asking.here, stream).await;
    // Another stream that could have it, at the node that is about to hear that the first one moved.
    let mut other = asking.result_stream(&asking.here, None).await;
    asking.world.clock.advance(Duration::from_millis(300));
    let mut resumed = asking.result_stream(&asking.there, after(stream.id(), count)).await;
    assert!(asking.is_held(&id, &asking.there).await);
    asking.rounds().await;
    drop(stream);
    asking.rounds().await;
    assert_eq!((questions(&mut resumed), questions(&mut other)), (Vec::new(), Vec::new()), "nobody is asked again");
    // Back at the first node, without what its client saw last.
    asking.world.clock.advance(Duration::from_millis(300));
    let again = asking.result_stream(&asking.here, after(resumed.id(), count - 1)).await;
    assert!(asking.is_held(&id, &asking.here).await);
    let shown = asking.question(&asking.here, again).await;
    assert_eq!(shown.id, id);
    assert!(asking.is_held(&id, &asking.here).await);
    assert_eq!((questions(&mut other), asking.deliveries().await), (Vec::new(), 1));
    drop(shown.stream);
}

// req: HTTP-09, INPUT-14
async fn a_question_that_was_not_seen_is_shown_again_with_a_number_of_its_own(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let stream = asking.get_stream(&asking.here, None).await;
    let Seen { stream, id, count } = asking.question(&asking.here, stream).await;
    let name = stream.id();
    let scoped = asking.world.database.store.scoped(&asking.caller.auth);
    let stored = async || scoped.delivered(id.parse().unwrap()).await.unwrap().unwrap().sequence;
    let (mut seen, mut last) = (count - 1, vec![stream]);
    for node in [&asking.there, &asking.here, &asking.here] {
        asking.world.clock.advance(Duration::from_millis(300));
        let resumed = asking.get_stream(node, after(name, seen)).await;
        let again = asking.question(node, resumed).await;
        assert_eq!(again.id, id);
        assert_eq!(stored().await, again.count, "by this it is known whether its client has seen it");
        assert!(asking.is_held(&id, node).await);
        seen = again.count - 1;
        last.push(again.stream);
    }
    // Now its client has seen it.
    asking.world.clock.advance(Duration::from_millis(300));
    let mut resumed = asking.get_stream(&asking.there, after(name, seen + 1)).await;
    asking.rounds().await;
    assert_eq!(questions(&mut resumed), Vec::<String>::new());
    assert!(asking.is_held(&id, &asking.there).await);
}

// req: HTTP-09, INPUT-14
async fn a_question_that_was_put_on_the_old_line_goes_on_under_its_id(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node_apart().await, session(&world).await);
    let task = here.create(&caller, "once").await.id;
    let work = here.script.next().await;
    let mut broken = open(&here, &caller).await;
    let seen = broken.stamp();
    world.clock.advance(Duration::from_millis(300));
    let resume = after(broken.id(), seen);
    let resumed = there.engine.open_session_stream(&caller, caller.session.unwrap(), resume).await.unwrap();
    // The node that had the stream has not heard, and puts what its work asks on the line that is broken.
    let answered = ask(&work);
    let id = question_on(&mut broken).await;
    let asking = Asking { world, caller, here, there, task, _work: work, answered };
    assert!(asking.is_held(&id, &asking.here).await);
    asking.rounds().await;
    let again = asking.question(&asking.there, resumed).await;
    assert_eq!(again.id, id, "it was sent on this stream before");
    assert!(asking.is_held(&id, &asking.there).await);
    assert_eq!(asking.deliveries().await, 1);
    drop(again.stream);
}

/// A stream that was resumed at the other node while this one stood still; no hint of that is left.
async fn moved_unheard(asking: &Asking) -> (Seen, Stream) {
    let stream = asking.get_stream(&asking.here, None).await;
    let seen = asking.question(&asking.here, stream).await;
    asking.world.clock.advance(Duration::from_millis(300));
    let resumed = asking.get_stream(&asking.there, after(seen.stream.id(), seen.count)).await;
    let signals = "SELECT COUNT(*) FROM signals WHERE payload IS NOT NULL";
    until("the hint is there", async || asking.world.database.number(signals).await > 0).await;
    asking.world.database.sql("DELETE FROM signals").await;
    (seen, resumed)
}

/// The stream here ends without a word of the question, which stays the other node's.
async fn is_left_in_silence(asking: &Asking, Seen { mut stream, id, .. }: Seen, mut resumed: Stream) {
    let end = async {
        loop {
            match stream.next().await {
                Item::Message { delivery: Delivery::Withdrawn { .. }, .. } => panic!("it is asked on there"),
                Item::Message { .. } => {}
                _ => return,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), end).await.expect("the stream ends");
    drop(stream);
    for node in [&asking.here, &asking.there, &asking.here] {
        node.engine.watch_once().await.unwrap();
        assert!(asking.is_held(&id, &asking.there).await);
    }
    assert_eq!((questions(&mut resumed), asking.deliveries().await), (Vec::new(), 1));
}

// req: INPUT-14, KEEP-06
async fn a_node_that_comes_back_from_the_dead_takes_nothing_from_who_has_it(database: TestDatabase) {
    let asking = Asking::worked_at(database, true).await;
    let (seen, resumed) = moved_unheard(&asking).await;
    asking.there.beat_until_it_may_judge().await;
    asking.world.database.silence_nodes(Duration::from_secs(30)).await;
    asking.there.engine.beat_once().await.unwrap();
    asking.there.engine.recover_once().await.unwrap();
    assert_eq!(asking.here.engine.beat_once().await.unwrap(), BeatOutcome::Reborn);
    assert!(asking.is_held(&seen.id, &asking.there).await);
    is_left_in_silence(&asking, seen, resumed).await;
}

// req: INPUT-14
async fn a_node_lets_go_by_its_look_alone_what_has_moved(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let (seen, resumed) = moved_unheard(&asking).await;
    assert!(asking.is_held(&seen.id, &asking.there).await);
    asking.here.engine.watch_once().await.unwrap();
    is_left_in_silence(&asking, seen, resumed).await;
}

// req: INPUT-14
async fn what_is_let_go_by_mistake_is_held_again_in_silence(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let stream = asking.get_stream(&asking.here, None).await;
    let Seen { mut stream, id, .. } = asking.question(&asking.here, stream).await;
    let (system, node) = (asking.world.database.store.system(), asking.here.engine.node());
    system.let_go(node, &[id.parse().unwrap()]).await.unwrap();
    until("it is held again", async || {
        asking.here.engine.watch_once().await.unwrap();
        asking.is_held(&id, &asking.here).await
    })
    .await;
    assert_eq!(questions(&mut stream), Vec::<String>::new(), "its client has it");
    assert_eq!(asking.deliveries().await, 1);
}

// req: INPUT-04
async fn a_question_whose_stream_moves_is_not_left_on_the_old_line(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let mut stream = asking.get_stream(&asking.here, None).await;
    until("it is put", async || {
        asking.here.engine.watch_once().await.unwrap();
        asking.held().await.is_some()
    })
    .await;
    // A client that opened a second connection reads on both.
    asking.world.clock.advance(Duration::from_millis(300));
    let resumed = asking.get_stream(&asking.there, after(stream.id(), 0)).await;
    asking.rounds().await;
    assert_eq!(questions(&mut stream), Vec::<String>::new(), "each message is on one stream");
    let shown = asking.question(&asking.there, resumed).await;
    assert!(asking.is_held(&shown.id, &asking.there).await);
    drop(shown.stream);
}

/// On PostgreSQL nobody else writes what belongs to this task while it is held. SQLite has one writer, whose work is done in turn.
async fn stall(asking: &Asking) -> Option<sqlx::PgConnection> {
    let database = &asking.world.database;
    let lock = format!("SELECT * FROM task_live WHERE task = {} FOR UPDATE", database.id(asking.task.as_uuid()));
    match database.backend {
        Backend::Postgres => Some(hold(&database.url, &lock).await),
        Backend::Sqlite => None,
    }
}

/// Somebody waits for what is held.
async fn is_stalled(asking: &Asking) {
    if asking.world.database.backend == Backend::Postgres {
        let waiting = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted";
        until("it is waited for", async || asking.world.database.number(waiting).await > 0).await;
    }
}

// req: INPUT-14
async fn a_stream_that_is_leaving_is_waited_for(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let stream = asking.get_stream(&asking.here, None).await;
    let Seen { stream, id, count } = asking.question(&asking.here, stream).await;
    let stalled = stall(&asking).await;
    let resume = after(stream.id(), count - 1);
    // What it held is on its way back to the store when its client is here again.
    drop(stream);
    is_stalled(&asking).await;
    let mut opening = Box::pin(asking.get_stream(&asking.here, resume));
    let mut resumed = match stalled {
        None => opening.await,
        Some(stalled) => {
            let early = tokio::time::timeout(Duration::from_millis(500), &mut opening).await;
            assert!(early.is_err(), "it has begun before what it held was given back");
            drop(stalled);
            opening.await
        }
    };
    assert_eq!(questions(&mut resumed), std::slice::from_ref(&id), "it begins with what it held");
    asking.here.engine.watch_once().await.unwrap();
    assert!(asking.is_held(&id, &asking.here).await, "nothing lets it go afterwards");
    assert_eq!(questions(&mut resumed), Vec::<String>::new());
    assert_eq!(asking.deliveries().await, 1);
}

// req: INPUT-14
async fn a_question_that_is_being_put_when_its_stream_ends_is_not_lost(database: TestDatabase) {
    let asking = Asking::new(database).await;
    let stalled = stall(&asking).await;
    let stream = asking.get_stream(&asking.here, None).await;
    let name = stream.id();
    // Its moment has come.
    asking.world.clock.advance(Duration::from_millis(300));
    let node = asking.here.engine.clone();
    let round = tokio::spawn(async move { node.watch_once().await.unwrap() });
    is_stalled(&asking).await;
    drop(stream);
    let resumed = asking.get_stream(&asking.here, after(name, 0));
    drop(stalled);
    let resumed = resumed.await;
    round.await.unwrap();
    let Seen { mut stream, id, .. } = asking.question(&asking.here, resumed).await;
    until("it is held", async || asking.is_held(&id, &asking.here).await).await;
    asking.here.engine.watch_once().await.unwrap();
    assert_eq!(questions(&mut stream), Vec::<String>::new(), "once");
    // Seldom there are two: what was still on its way when the stream came back may be put under another id. Only the one above is
    // seen after it.
    assert!(matches!(asking.deliveries().await, 1 | 2));
}

fn progress(value: f64) -> Event {
    let params = RawJson::trusted(format!(r#"{{"progress":{value}}}"#));
    Event::Progress { progress: value, total: None, message: None, params }
}

/// A task whose caller has given a token.
async fn with_token(node: &Node, caller: &Caller) -> (TaskId, ScriptedCall) {
    let call = ToolCall { progress_token: Some(RawJson::trusted("7")), ..call("once") };
    let task = node.engine.create_task(caller, call, None).await.unwrap().task;
    (task.id, node.script.next().await)
}

/// Told and written.
async fn told(node: &Node, caller: &Caller, (task, work): (TaskId, &ScriptedCall), value: f64) {
    work.host.tell(progress(value));
    let written = format!(r#"{{"progress":{value}}}"#);
    until("it is written", async || {
        let task = node.engine.get(caller, task).await.unwrap();
        task.progress.is_some_and(|progress| progress.as_str() == written)
    })
    .await;
}

/// The progress that can be read now, after a round of the stream's node.
async fn said(node: &Node, stream: &mut Stream) -> Vec<String> {
    node.engine.watch_once().await.unwrap();
    let mut said = Vec::new();
    while let Some(Item::Message { delivery, .. }) = stream.next().now_or_never() {
        if let Delivery::Progress { params, .. } = delivery {
            said.push(params.as_str().to_owned());
        }
    }
    said
}

fn values(values: &[f64]) -> Vec<String> {
    values.iter().map(|value| format!(r#"{{"progress":{value}}}"#)).collect()
}

// req: NOTE-04, HTTP-09
async fn progress_is_not_repeated_when_a_stream_goes_on_at_another_node(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node_apart().await, session(&world).await);
    let mut first = open(&here, &caller).await;
    let (task, work) = with_token(&here, &caller).await;
    told(&here, &caller, (task, &work), 1.0).await;
    assert_eq!(said(&here, &mut first).await, values(&[1.0]));
    // The client has seen that, and something after it; it comes back at once, and again later, and opens a new one.
    let seen = first.stamp();
    for (turn, pause) in [0, 300, 3000].into_iter().enumerate() {
        world.clock.advance(Duration::from_millis(pause));
        let resume = after(first.id(), seen);
        let session = caller.session.unwrap();
        let mut resumed = there.engine.open_session_stream(&caller, session, resume).await.unwrap();
        assert_eq!(said(&there, &mut resumed).await, values(&[]), "{turn}");
        assert_eq!(said(&there, &mut resumed).await, values(&[]), "{turn}");
    }
    let mut fresh = open(&there, &caller).await;
    assert_eq!(said(&there, &mut fresh).await, values(&[]));
    world.clock.advance(Duration::from_millis(600));
    told(&here, &caller, (task, &work), 2.0).await;
    assert_eq!(said(&there, &mut fresh).await, values(&[2.0]));
}

// req: NOTE-04
async fn progress_is_not_repeated_when_an_older_stream_has_its_turn_again(database: TestDatabase) {
    let world = World::new(database).await;
    let (one, two, caller) = (world.node().await, world.node_apart().await, session(&world).await);
    let mut older = open(&one, &caller).await;
    let (task, work) = with_token(&two, &caller).await;
    let mut newer = open(&two, &caller).await;
    one.engine.recover_once().await.unwrap();
    told(&two, &caller, (task, &work), 1.0).await;
    assert_eq!(said(&two, &mut newer).await, values(&[1.0]));
    world.clock.advance(Duration::from_millis(600));
    drop(newer);
    until("no node has the turn", async || stream_of(&world, &caller).await.is_none()).await;
    one.engine.recover_once().await.unwrap();
    assert_eq!(said(&one, &mut older).await, values(&[]), "the other stream has said it");
    world.clock.advance(Duration::from_millis(600));
    told(&two, &caller, (task, &work), 2.0).await;
    assert_eq!(said(&one, &mut older).await, values(&[2.0]));
}

// req: NOTE-04, NOTE-03
async fn progress_is_not_repeated_when_who_waits_is_told_again(database: TestDatabase) {
    let world = World::new(database).await;
    let (one, two, caller) = (world.node().await, world.node_apart().await, session(&world).await);
    for node in [&one, &two] {
        let (task, work) = with_token(&one, &caller).await;
        let mut session = open(node, &caller).await;
        let asked = Asked::in_session("1".to_owned(), true, false);
        let mut waiting = one.engine.open_result_stream(&caller, task, asked, None).await.unwrap();
        // Whether the session has a stream is looked up after this one began.
        one.engine.recover_once().await.unwrap();
        told(&one, &caller, (task, &work), 1.0).await;
        assert_eq!(said(node, &mut session).await, values(&[1.0]));
        world.clock.advance(Duration::from_millis(600));
        drop(session);
        until("no node has the turn", async || stream_of(&world, &caller).await.is_none()).await;
        one.engine.recover_once().await.unwrap();
        assert_eq!(said(&one, &mut waiting).await, values(&[]), "the session's stream has said it");
        world.clock.advance(Duration::from_millis(600));
        told(&one, &caller, (task, &work), 2.0).await;
        assert_eq!(said(&one, &mut waiting).await, values(&[2.0]));
        work.answer("done");
        ends(&mut waiting).await;
    }
}

// req: HTTP-09, NOTE-03
async fn who_has_seen_nothing_is_shown_the_newest_progress(database: TestDatabase) {
    let world = World::new(database).await;
    let (here, there, caller) = (world.node().await, world.node_apart().await, session(&world).await);
    let broken = open(&here, &caller).await;
    let seen = broken.stamp();
    world.clock.advance(Duration::from_secs(2));
    let (task, work) = with_token(&there, &caller).await;
    told(&there, &caller, (task, &work), 3.0).await;
    let (session, resume) = (caller.session.unwrap(), after(broken.id(), seen));
    let mut resumed = there.engine.open_session_stream(&caller, session, resume).await.unwrap();
    assert_eq!(said(&there, &mut resumed).await, values(&[3.0]));
    world.clock.advance(Duration::from_millis(600));
    assert_eq!(said(&there, &mut resumed).await, values(&[]));
}
