//! Questions on streams: on one at a time, and what becomes of them when it breaks.

use std::time::Duration;

use futures_util::future::join_all;
use taskhold::domain::ids::{DeliveryId, NodeId, SessionId, StreamId};
use taskhold::domain::json::RawJson;
use taskhold::domain::outcome::Outcome;
use taskhold::domain::session::SessionStream;
use taskhold::store::{Delivered, Held, Hold, Purpose, Renamed, Watch};

use super::questions::{Running, question};
use super::sessions::new_session;
use super::{at, contract_everywhere, end};
use crate::support::database::TestDatabase;

contract_everywhere! {
    a_question_is_on_one_stream_at_a_time,
    a_resumed_stream_takes_back_what_it_had,
    a_resumed_stream_takes_what_its_old_node_still_holds,
    an_id_goes_on_only_while_it_is_the_last,
    a_refused_answer_sends_the_question_again,
    what_a_stream_lets_go_another_may_have,
    the_dead_hold_nothing,
    what_a_client_made_a_task_of_is_not_sent_again,
    the_clients_own_task_is_asked_under_ids_of_its_own,
}

// req: INPUT-02, INPUT-04
async fn a_question_is_on_one_stream_at_a_time(db: TestDatabase) {
    let work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    assert_eq!(work.scoped.open_inputs(work.task).await.unwrap()[0].held, None);
    let other = db.another().await.system();
    let holds: Vec<Hold> = (0..20).map(|n| Hold { node: NodeId::new(), sequence: n, ..work.hold(input) }).collect();
    let won = join_all(holds.iter().enumerate().map(|(n, hold)| {
        let system = if n % 2 == 0 { &work.system } else { &other };
        async { system.hold_input(hold.clone()).await.unwrap() }
    }))
    .await;
    let mut winners = holds.iter().zip(won).filter_map(|(hold, won)| won.then_some(hold));
    let winner = winners.next().expect("one stream has it");
    assert!(winners.next().is_none(), "only one has it");
    let held = Held { delivery: winner.delivery, node: winner.node, holder: work.session };
    assert_eq!(work.scoped.open_inputs(work.task).await.unwrap()[0].held, Some(held));
    assert_eq!(
        work.scoped.delivered(winner.delivery).await.unwrap(),
        Some(Delivered {
            delivery: winner.delivery,
            input,
            task: work.task,
            session: work.session,
            stream: winner.stream,
            sequence: winner.sequence,
            purpose: Purpose::Question,
            question: question("x"),
            is_open: true,
            is_last: true,
            refused: 0,
            client_task: None,
        })
    );
    for hold in holds.iter().filter(|hold| *hold != winner) {
        assert_eq!(work.scoped.delivered(hold.delivery).await.unwrap(), None, "what was not sent has no id");
    }
    assert_eq!(db.number("SELECT COUNT(*) FROM input_deliveries").await, 1);
}

// req: INPUT-14
async fn a_resumed_stream_takes_back_what_it_had(db: TestDatabase) {
    let work = Running::new(&db).await;
    let stream = StreamId::new();
    let mut sent = Vec::new();
    for (n, text) in ["kept", "taken", "answered", "moved"].into_iter().enumerate() {
        let input = work.ask(text, at(n as u64)).await;
        let hold = Hold { stream, sequence: 10 - n as i64, ..work.hold(input) };
        assert!(work.system.hold_input(hold.clone()).await.unwrap());
        sent.push(hold);
    }
    let node = NodeId::new();
    assert!(work.scoped.rehold_stream(stream, work.node).await.unwrap().is_empty(), "this node has them for it");
    let ids: Vec<DeliveryId> = sent.iter().map(|hold| hold.delivery).collect();
    work.system.let_go(work.node, &ids).await.unwrap();
    // One question goes to another stream, one is answered, one was another stream's in between and is let go by it.
    let elsewhere = work.send(sent[1].input).await;
    work.answer(sent[2].delivery, "x", at(9)).await.unwrap();
    let passing = work.send(sent[3].input).await;
    work.system.let_go(work.node, &[passing]).await.unwrap();

    let back = work.scoped.rehold_stream(stream, node).await.unwrap();
    let [back] = back.as_slice() else { panic!("{back:?}") };
    assert_eq!((back.delivery, back.input, back.sequence), (sent[0].delivery, sent[0].input, 10));
    let held: Vec<_> = work.scoped.open_inputs(work.task).await.unwrap().into_iter().map(|open| open.held).collect();
    let hold = |delivery, node| Some(Held { delivery, node, holder: work.session });
    assert_eq!(held, [hold(sent[0].delivery, node), hold(elsewhere, work.node), None]);
    assert!(work.scoped.rehold_stream(stream, node).await.unwrap().is_empty());
    assert!(work.scoped.rehold_stream(StreamId::new(), node).await.unwrap().is_empty());
}

// req: INPUT-14, HTTP-09
async fn a_resumed_stream_takes_what_its_old_node_still_holds(db: TestDatabase) {
    let work = Running::new(&db).await;
    let (input, other) = (work.ask("its own", at(1)).await, work.ask("another's", at(2)).await);
    let first = work.hold(input);
    assert!(work.system.hold_input(first.clone()).await.unwrap());
    let elsewhere = work.send(other).await;
    let (_, stranger) = super::caller(&db.store, "stranger").await;
    assert!(stranger.rehold_stream(first.stream, NodeId::new()).await.unwrap().is_empty(), "it is not the stranger's");
    // The node that had it has not noticed, or was killed a moment ago.
    let node = NodeId::new();
    let back = work.scoped.rehold_stream(first.stream, node).await.unwrap();
    let ids: Vec<_> = back.iter().map(|sent| (sent.delivery, sent.sequence)).collect();
    assert_eq!(ids, [(first.delivery, first.sequence)]);
    let held = async || work.scoped.open_inputs(work.task).await.unwrap().into_iter().map(|open| open.held);
    let hold = |delivery, node| Some(Held { delivery, node, holder: work.session });
    assert!(held().await.eq([hold(first.delivery, node), hold(elsewhere, work.node)]));
    work.system.let_go(work.node, &[first.delivery]).await.unwrap();
    assert!(
        held().await.eq([hold(first.delivery, node), hold(elsewhere, work.node)]),
        "what it lets go later is not its"
    );
    // A node that goes on under another id is told all that its stream has.
    let renamed = NodeId::new();
    let keep = async |old| {
        let node = Renamed { old, new: renamed };
        work.system.keep_stream(work.context, first.stream, node).await.unwrap().len()
    };
    assert_eq!(keep(work.node).await, 0, "another node than the one that it was has it");
    assert!(held().await.eq([hold(first.delivery, node), hold(elsewhere, work.node)]));
    assert_eq!(keep(node).await, 1);
    assert!(held().await.eq([hold(first.delivery, renamed), hold(elsewhere, work.node)]));
    assert_eq!(keep(node).await, 1, "also what it holds already");
    work.system.let_go(renamed, &[first.delivery]).await.unwrap();
    assert_eq!(keep(node).await, 1, "and what nobody has");
}

// req: INPUT-14
async fn an_id_goes_on_only_while_it_is_the_last(db: TestDatabase) {
    let work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    let first = work.hold(input);
    let hold = async |hold: &Hold| work.system.hold_input(hold.clone()).await.unwrap();
    let sequence = async || work.scoped.delivered(first.delivery).await.unwrap().unwrap().sequence;
    assert!(hold(&first).await);
    let later = Hold { sequence: first.sequence + 7, ..first.clone() };
    let there = Hold { node: NodeId::new(), ..later.clone() };
    assert!(!hold(&there).await, "another node has it");
    assert_eq!(sequence().await, first.sequence);
    assert!(hold(&later).await, "sent again where it is, with another number");
    assert_eq!(sequence().await, later.sequence);
    work.system.let_go(work.node, &[first.delivery]).await.unwrap();
    assert!(hold(&there).await, "and where it is free");
    work.system.let_go(there.node, &[first.delivery]).await.unwrap();
    let second = work.send(input).await;
    work.system.let_go(work.node, &[second]).await.unwrap();
    assert!(!hold(&later).await, "it was sent under another id since");
    let stream = work.scoped.delivered(second).await.unwrap().unwrap().stream;
    let elsewhere = Hold { delivery: second, ..work.hold(input) };
    assert!(!hold(&elsewhere).await, "its client knows it from another stream");
    let again = Hold { stream, ..elsewhere };
    assert!(hold(&again).await);
    work.scoped.refuse_answer(second).await.unwrap();
    assert!(!hold(&again).await, "its client has answered badly, and is asked anew");
    assert!(hold(&work.hold(input)).await);
    assert_eq!(db.number("SELECT COUNT(*) FROM input_deliveries").await, 3);
}

// req: INPUT-13 (legacy half)
async fn a_refused_answer_sends_the_question_again(db: TestDatabase) {
    let work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    let before = work.task().await;
    let first = work.hold(input);
    assert!(work.system.hold_input(first.clone()).await.unwrap());
    for _ in 0..3 {
        work.scoped.refuse_answer(first.delivery).await.unwrap();
    }
    let delivered = work.scoped.delivered(first.delivery).await.unwrap().unwrap();
    assert_eq!((delivered.refused, delivered.is_open), (1, true), "a repeated bad answer is counted once");
    assert_eq!(work.task().await, before);
    assert!(
        work.scoped.rehold_stream(first.stream, work.node).await.unwrap().is_empty(),
        "it is sent under a new id, not taken back under the old one"
    );
    assert!(!delivered.is_last, "it is under none until it is sent again");
    let second = work.send(input).await;
    let is_last = async |id| work.scoped.delivered(id).await.unwrap().unwrap().is_last;
    assert!(is_last(second).await && !is_last(first.delivery).await);
    work.scoped.refuse_answer(first.delivery).await.unwrap();
    assert_eq!(work.scoped.delivered(second).await.unwrap().unwrap().refused, 1, "the older id's does not count");
    work.scoped.refuse_answer(second).await.unwrap();
    assert_eq!(work.scoped.delivered(second).await.unwrap().unwrap().refused, 2);
    // Any of its ids answers, as long as it is open.
    assert!(work.answer(first.delivery, "good", at(2)).await.is_some());
}

// req: INPUT-14
async fn what_a_stream_lets_go_another_may_have(db: TestDatabase) {
    let work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    let first = work.send(input).await;
    work.system.let_go(NodeId::new(), &[first]).await.unwrap();
    assert!(!work.system.hold_input(work.hold(input)).await.unwrap(), "a node lets go what it holds, no more");
    work.system.let_go(work.node, &[first, DeliveryId::new()]).await.unwrap();
    let second = Hold { session: SessionId::new(), ..work.hold(input) };
    assert!(work.system.hold_input(second.clone()).await.unwrap());
    assert!(work.system.hold_input(second.clone()).await.unwrap(), "a repeated write finds itself");
    assert_eq!(db.number("SELECT COUNT(*) FROM input_deliveries").await, 2);
    work.system.let_go(work.node, &[first]).await.unwrap();
    let held = work.scoped.open_inputs(work.task).await.unwrap()[0].held;
    assert_eq!(held, Some(Held { delivery: second.delivery, node: work.node, holder: second.session }));
    work.system.let_go(work.node, &[]).await.unwrap();
}

// req: INPUT-03
async fn the_dead_hold_nothing(db: TestDatabase) {
    let work = Running::new(&db).await;
    let (of_dead, of_unknown, of_living) =
        (work.ask("dead", at(1)).await, work.ask("unknown", at(2)).await, work.ask("living", at(3)).await);
    let [dead, living] = [NodeId::new(), NodeId::new()];
    work.system.register_node(dead).await.unwrap();
    work.system.register_node(living).await.unwrap();
    for (input, node) in [(of_dead, dead), (of_unknown, NodeId::new()), (of_living, living)] {
        assert!(work.system.hold_input(Hold { node, ..work.hold(input) }).await.unwrap());
    }
    let sessions = [new_session(work.context, 1), new_session(work.context, 2)];
    for (session, node) in sessions.iter().zip([dead, living]) {
        work.scoped.add_session(session.clone(), 10).await.unwrap();
        let stream = SessionStream { id: StreamId::new(), node };
        work.scoped.open_session_stream(session.id, stream).await.unwrap();
    }
    let streams = async || {
        let (one, two) = (work.scoped.session(sessions[0].id).await, work.scoped.session(sessions[1].id).await);
        (one.unwrap().unwrap().stream.map(|at| at.node), two.unwrap().unwrap().stream.map(|at| at.node))
    };
    assert_eq!(streams().await, (Some(dead), Some(living)));
    assert_eq!(work.system.let_go_dead_nodes().await.unwrap(), 1, "the unknown node's");
    db.silence_nodes(Duration::from_secs(60)).await;
    work.system.heartbeat(living).await.unwrap();
    assert_eq!(work.system.declare_dead(living, Duration::from_secs(20)).await.unwrap().len(), 2);
    assert_eq!(work.system.let_go_dead_nodes().await.unwrap(), 1);
    assert_eq!(work.system.let_go_dead_nodes().await.unwrap(), 0);
    assert_eq!(streams().await, (None, Some(living)));
    let open = work.scoped.open_inputs(work.task).await.unwrap();
    let held: Vec<_> = open.iter().map(|open| open.held.map(|held| held.node)).collect();
    assert_eq!(held, [None, None, Some(living)]);
}

// req: INPUT-14, CAP-08
async fn what_a_client_made_a_task_of_is_not_sent_again(db: TestDatabase) {
    let work = Running::new(&db).await;
    let first = work.hold(work.ask("x", at(1)).await);
    assert!(work.system.hold_input(first.clone()).await.unwrap());
    assert!(work.scoped.set_client_task(first.delivery, RawJson::trusted(r#"{"taskId":"theirs"}"#)).await.unwrap());
    let again = Hold { sequence: first.sequence + 1, ..first.clone() };
    assert!(!work.system.hold_input(again).await.unwrap());
    assert!(work.system.hold_input(first.clone()).await.unwrap(), "a repeated write finds itself");
    assert_eq!(work.scoped.delivered(first.delivery).await.unwrap().unwrap().sequence, first.sequence);
}

async fn the_clients_own_task_is_asked_under_ids_of_its_own(db: TestDatabase) {
    let work = Running::new(&db).await;
    let input = work.ask("x", at(1)).await;
    let first = work.send(input).await;
    let get = |purpose| Hold { purpose, ..work.hold(input) };
    let hold = async |hold: &Hold| work.system.hold_input(hold.clone()).await.unwrap();
    assert!(!hold(&get(Purpose::TaskGet)).await, "there is no task of the client's");
    assert!(!work.scoped.set_client_task(DeliveryId::new(), RawJson::trusted("{}")).await.unwrap());
    let task = RawJson::trusted(r#"{"taskId":"their own","ttl":1e3}"#);
    assert!(work.scoped.set_client_task(first, task.clone()).await.unwrap());
    let poll = get(Purpose::TaskGet);
    assert!(hold(&poll).await && hold(&poll).await, "the stream that has the question goes on, and finds itself");
    assert!(!hold(&Hold { node: NodeId::new(), ..get(Purpose::TaskGet) }).await, "another node has it not");
    assert!(!hold(&Hold { session: SessionId::new(), ..get(Purpose::TaskGet) }).await, "nor another session");
    let delivered = work.scoped.delivered(poll.delivery).await.unwrap().unwrap();
    assert_eq!(
        (delivered.purpose, delivered.input, delivered.client_task),
        (Purpose::TaskGet, input, Some(task.clone()))
    );
    let open = work.scoped.open_inputs(work.task).await.unwrap();
    assert_eq!((open[0].held.unwrap().delivery, &open[0].client_task), (poll.delivery, &Some(task.clone())));
    // When its stream is gone, whoever has the next one goes on with the client's task.
    work.system.let_go(work.node, &[poll.delivery]).await.unwrap();
    let open = work.scoped.open_inputs(work.task).await.unwrap();
    let last = open[0].last.unwrap();
    assert_eq!((last.delivery, last.holder, last.at), (poll.delivery, poll.session, poll.now));
    assert_eq!(open[0].held, None);
    let watch = Watch { asking: vec![work.task], ..Watch::nothing(at(0)) };
    assert_eq!(work.system.watch(watch).await.unwrap().open, open);
    assert!(!hold(&get(Purpose::Question)).await, "nobody else is asked meanwhile");
    let fetch = Hold { node: NodeId::new(), ..get(Purpose::TaskResult) };
    assert!(hold(&fetch).await);
    assert!(!work.scoped.set_client_task(poll.delivery, task.clone()).await.unwrap(), "that is old news");
    // It is given up only while no stream has the question, and with it what is known of it.
    assert!(!work.system.forget_client_task(input, fetch.delivery).await.unwrap());
    work.system.let_go(fetch.node, &[fetch.delivery]).await.unwrap();
    assert!(!work.system.forget_client_task(input, poll.delivery).await.unwrap());
    assert!(work.system.forget_client_task(input, fetch.delivery).await.unwrap());
    let open = work.scoped.open_inputs(work.task).await.unwrap();
    assert_eq!((open[0].last, &open[0].client_task), (None, &None));
    assert!(!hold(&get(Purpose::TaskGet)).await);
    let anew = get(Purpose::Question);
    assert!(hold(&anew).await);
    // So does an answer that is refused.
    assert!(work.scoped.set_client_task(anew.delivery, task.clone()).await.unwrap());
    work.scoped.refuse_answer(anew.delivery).await.unwrap();
    let open = work.scoped.open_inputs(work.task).await.unwrap();
    assert_eq!((open[0].last, &open[0].client_task), (None, &None));
    work.scoped.cancel(work.task, end(Outcome::Cancelled, at(3))).await.unwrap();
    assert!(!hold(&get(Purpose::TaskGet)).await);
    assert!(!work.scoped.set_client_task(first, task).await.unwrap(), "it is not open any more");
    assert_eq!(db.number("SELECT COUNT(*) FROM input_deliveries").await, 4);
}
