use std::sync::Mutex as StdMutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::domain::input::{Answer, InputKind, Question};
use crate::domain::work::UpstreamTask;
use crate::executor::Unasked;
use crate::protocol::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Request};

/// Questions of one call that may be open at once.
const OPEN: usize = 40;
/// What a call's host says of a caller that cannot be asked.
const UNASKED: &str = r#"{"code":-32601,"message":"nobody answers"}"#;

/// Hands questions to the test, and keeps events.
struct Listener {
    events: StdMutex<Vec<Event>>,
    questions: mpsc::UnboundedSender<(Question, oneshot::Sender<Answer>)>,
}

#[async_trait]
impl Host for Listener {
    fn tell(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    async fn ask(&self, question: Question) -> Result<Answer, Unasked> {
        let (answer, answered) = oneshot::channel();
        self.questions.send((question, answer)).unwrap();
        // The test drops what nobody answers.
        answered.await.map_err(|_| Unasked(Answer::Error(RawJson::trusted(UNASKED))))
    }

    async fn handed_over(&self, _to: UpstreamTask) -> bool {
        true
    }
}

struct Desk {
    inbox: Arc<Inbox>,
    notices: broadcast::Receiver<Notice>,
    written: mpsc::UnboundedReceiver<String>,
    out: mpsc::UnboundedSender<String>,
}

type Questions = mpsc::UnboundedReceiver<(Question, oneshot::Sender<Answer>)>;

impl Desk {
    fn new(context: Option<ContextId>) -> Self {
        Self::with(context, OPEN)
    }

    fn with(context: Option<ContextId>, open_questions: usize) -> Self {
        let (out, written) = mpsc::unbounded_channel();
        let (sender, notices) = broadcast::channel(8);
        let upstream = "u".to_owned();
        let lists_changed = Arc::default();
        let inbox = Inbox::new(Owner { upstream, context, notices: sender, open_questions, lists_changed });
        inbox.speaks("2025-11-25");
        Self { inbox, notices, written, out }
    }

    fn open(&self, number: u64, context: ContextId) -> (OpenCall, Arc<Listener>, Questions) {
        let (questions, asked) = mpsc::unbounded_channel();
        let listener = Arc::new(Listener { events: StdMutex::default(), questions });
        let host: Arc<dyn Host> = Arc::<Listener>::clone(&listener);
        (self.inbox.open(number, context, host), listener, asked)
    }

    /// What is answered at once.
    fn ask(&self, id: &str, method: &str, params: &str, origin: Option<u64>) -> Option<String> {
        let params = Some(RawJson::trusted(params));
        let request = Request { id: Id::from_raw(id).unwrap(), method: method.to_owned(), params };
        let out = self.out.clone();
        self.inbox.take_request(&request, origin, |text| async move { out.send(text).unwrap() })
    }

    /// Until so many questions wait for their answers.
    async fn waiting(&self, questions: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.inbox.lock().questions.len() != questions {
            assert!(Instant::now() < deadline, "never {questions} open questions");
            tokio::task::yield_now().await;
        }
    }

    fn note(&self, method: &str, params: &str, origin: Option<u64>) {
        let notification = Notification { method: method.to_owned(), params: Some(RawJson::trusted(params)) };
        self.inbox.take_notification(&notification, origin);
    }
}

const FORM: &str = r#"{"message":"?","requestedSchema":{"type":"object","properties":{}}}"#;

fn code(answer: Option<String>) -> i64 {
    let answer: serde_json::Value = serde_json::from_str(&answer.expect("answered at once")).unwrap();
    answer["error"]["code"].as_i64().unwrap()
}

/// The code of an error of ours, and the word that says why.
fn reason(answer: Option<String>) -> (i64, String) {
    let text = answer.expect("an error");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let reason = answer["error"]["data"]["reason"].as_str().unwrap_or_else(|| panic!("no reason: {text}"));
    (code(Some(text.clone())), reason.to_owned())
}

// req: EXEC-20 (legacy half)
#[tokio::test]
async fn a_question_goes_to_its_call_without_what_was_ours_and_its_answer_back_as_it_is() {
    let mut desk = Desk::new(None);
    let (_call, _, mut asked) = desk.open(7, ContextId::new());
    let params = r#"{"message":"\ud800","x":1e400,"task":{"ttl":1},"_meta":{"progressToken":9,"vendor":1.0}}"#;
    assert_eq!(desk.ask("\"q\\u0031\"", "elicitation/create", params, None), None);
    let (question, answer) = asked.recv().await.unwrap();
    assert_eq!(question.kind, InputKind::Elicitation);
    assert_eq!(question.params.unwrap().as_str(), r#"{"message":"\ud800","x":1e400,"_meta":{"vendor":1.0}}"#);
    answer.send(Answer::Result(RawJson::trusted(r#"{"action":"accept","content":{"n":1.0}}"#))).unwrap();
    assert_eq!(
        desk.written.recv().await.unwrap(),
        r#"{"jsonrpc":"2.0","id":"q\u0031","result":{"action":"accept","content":{"n":1.0}}}"#
    );
    assert_eq!(desk.ask("2", "roots/list", r#"{"_meta":{"progressToken":1}}"#, None), None);
    let (question, answer) = asked.recv().await.unwrap();
    assert_eq!((question.kind, question.params.unwrap().as_str()), (InputKind::Roots, "{}"));
    answer.send(Answer::Error(RawJson::trusted(r#"{"code":-1,"message":"m","data":1.0}"#))).unwrap();
    let refused = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"m","data":1.0}}"#;
    assert_eq!(desk.written.recv().await.unwrap(), refused);
}

// req: EXEC-12, EXEC-16
#[tokio::test]
async fn whose_a_question_is_comes_from_its_stream_its_task_or_there_being_no_other() {
    let mut desk = Desk::new(None);
    let (ours, theirs) = (ContextId::new(), ContextId::new());
    let early = desk.ask("1", "elicitation/create", FORM, None);
    assert_eq!(reason(early), (METHOD_NOT_FOUND, "nobody_there".to_owned()), "no call");
    let (first, _, mut first_asked) = desk.open(1, ours);
    let (second, _, mut second_asked) = desk.open(2, ours);
    assert_eq!(desk.ask("1", "elicitation/create", FORM, None), None);
    let _last = second_asked.recv().await.expect("the last one that began");
    assert_eq!(desk.ask("2", "elicitation/create", FORM, Some(1)), None);
    let _named = first_asked.recv().await.expect("on its stream");
    desk.inbox.runs_as(2, &RawJson::trusted("\"task-\\u0031\""));
    assert_eq!(desk.ask("3", "elicitation/create", FORM, None), None);
    let _plain = first_asked.recv().await.expect("a task would name itself");
    let (third, _, mut third_asked) = desk.open(3, theirs);
    let unclear = desk.ask("4", "elicitation/create", FORM, None).unwrap();
    assert!(unclear.contains("several callers"), "{unclear}");
    assert_eq!(reason(Some(unclear)), (INTERNAL_ERROR, "call_unknown".to_owned()));
    let named = r#"{"message":"?","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"task-1"}}}"#;
    assert_eq!(desk.ask("5", "elicitation/create", named, None), None);
    let (question, answer) = second_asked.recv().await.expect("by its task");
    assert_eq!(question.params.unwrap().as_str(), r#"{"message":"?"}"#);
    answer.send(Answer::Result(RawJson::trusted(r#"{"action":"decline"}"#))).unwrap();
    let written = desk.written.recv().await.unwrap();
    let related = r#"{"action":"decline","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"task-\u0031"}}}"#;
    assert!(written.contains(related), "{written}");
    let unknown = named.replace("task-1", "task-2");
    assert_eq!(reason(desk.ask("6", "elicitation/create", &unknown, None)), (INTERNAL_ERROR, "withdrawn".to_owned()));
    drop(third);
    let late = desk.ask("7", "elicitation/create", FORM, Some(3));
    assert_eq!(reason(late), (INTERNAL_ERROR, "withdrawn".to_owned()), "its call has ended");
    assert!(third_asked.try_recv().is_err());
    drop((first, second));
    let late = desk.ask("8", "elicitation/create", FORM, None);
    assert_eq!(reason(late), (INTERNAL_ERROR, "withdrawn".to_owned()), "each call has ended");
}

// req: EXEC-12
#[tokio::test]
async fn a_question_goes_to_the_last_call_whose_caller_can_be_asked_and_on_to_another_when_that_one_ends() {
    let mut desk = Desk::new(None);
    let ours = ContextId::new();
    let (first, first_heard, mut first_asked) = desk.open(1, ours);
    let (second, _, mut second_asked) = desk.open(2, ours);
    let (_third, _, mut third_asked) = desk.open(3, ours);
    let url = r#"{"mode":"url","url":"https://example.com","elicitationId":"e","message":"?"}"#;
    assert_eq!(desk.ask("1", "elicitation/create", url, None), None);
    drop(third_asked.recv().await.unwrap().1);
    let (_, mut answer) = second_asked.recv().await.expect("the caller of the last one cannot be asked");
    // Those that come later did not ask.
    let (_late, _, mut late_asked) = desk.open(4, ours);
    let (_theirs, _, mut their_asked) = desk.open(5, ContextId::new());
    drop(second);
    answer.closed().await;
    let (question, answer) = first_asked.recv().await.expect("it goes on to the other one");
    assert_eq!(question.params.unwrap().as_str(), url);
    desk.note("notifications/elicitation/complete", r#"{"elicitationId":"e"}"#, None);
    let complete = Event::ElicitationComplete { params: RawJson::trusted(r#"{"elicitationId":"e"}"#) };
    assert_eq!(*first_heard.events.lock().unwrap(), [complete]);
    answer.send(Answer::Result(RawJson::trusted(r#"{"action":"accept"}"#))).unwrap();
    assert!(desk.written.recv().await.unwrap().contains(r#""id":1,"result":{"action":"accept"}"#));
    for asked in [&mut third_asked, &mut late_asked, &mut their_asked] {
        assert!(asked.try_recv().is_err());
    }
    drop(first);
}

// req: EXEC-12
#[tokio::test]
async fn a_question_that_nobody_else_can_have_asked_ends_with_its_call() {
    let mut desk = Desk::new(None);
    let ours = ContextId::new();
    let (first, _, mut first_asked) = desk.open(1, ours);
    let (second, _, mut second_asked) = desk.open(2, ours);
    // It says whose it is.
    assert_eq!(desk.ask("1", "elicitation/create", FORM, Some(2)), None);
    let _answer = second_asked.recv().await.unwrap();
    drop(second);
    assert_eq!(reason(desk.written.recv().await), (INTERNAL_ERROR, "withdrawn".to_owned()));
    assert!(first_asked.try_recv().is_err());
    // Nobody who may have asked can be asked: the work hears what the likeliest one says.
    let (_third, _, mut third_asked) = desk.open(3, ours);
    assert_eq!(desk.ask("2", "elicitation/create", FORM, None), None);
    drop(third_asked.recv().await.unwrap().1);
    drop(first_asked.recv().await.unwrap().1);
    assert!(desk.written.recv().await.unwrap().contains(UNASKED));
    drop(first);
}

// req: EXEC-12
#[tokio::test]
async fn the_end_of_a_later_call_hides_not_why_the_likeliest_could_not_be_asked() {
    let mut desk = Desk::new(None);
    let ours = ContextId::new();
    let (first, _, mut first_asked) = desk.open(1, ours);
    let (_second, _, mut second_asked) = desk.open(2, ours);
    assert_eq!(desk.ask("1", "roots/list", "{}", None), None);
    drop(second_asked.recv().await.unwrap().1);
    let _answer = first_asked.recv().await.unwrap();
    drop(first);
    let written = desk.written.recv().await.unwrap();
    assert!(written.contains(UNASKED), "{written}");
}

// req: EXEC-12
#[tokio::test]
async fn a_task_that_goes_on_without_its_call_gets_no_answer_when_no_other_call_is_open() {
    let mut desk = Desk::new(None);
    let ours = ContextId::new();
    let (first, _, _first_asked) = desk.open(1, ours);
    let (second, _, mut second_asked) = desk.open(2, ours);
    desk.inbox.runs_as(1, &RawJson::trusted("\"a\""));
    desk.inbox.runs_as(2, &RawJson::trusted("\"b\""));
    assert_eq!(desk.ask("1", "roots/list", "{}", None), None);
    let _answer = second_asked.recv().await.unwrap();
    drop((first, second));
    desk.waiting(0).await;
    assert!(desk.written.try_recv().is_err(), "whoever follows the task next is asked");
}

#[tokio::test]
async fn the_questions_of_a_whole_link_are_bounded() {
    for (of_a_call, in_all) in [(1, 256_usize), (40, 320)] {
        let desk = Desk::with(None, of_a_call);
        let ours = ContextId::new();
        let calls: Vec<_> = (0..=320 / of_a_call as u64).map(|number| desk.open(number, ours)).collect();
        for id in 0..in_all {
            assert_eq!(desk.ask(&id.to_string(), "roots/list", "{}", None), None, "{id} of {in_all}");
        }
        let more = desk.ask("\"more\"", "roots/list", "{}", None).unwrap();
        assert!(more.contains(&format!("{in_all} requests of this server")), "{more}");
        assert_eq!(reason(Some(more)), (INTERNAL_ERROR, "limit_reached".to_owned()));
        drop(calls);
        desk.waiting(0).await;
    }
}

// req: EXEC-12
#[tokio::test]
async fn a_call_that_has_as_many_questions_as_may_be_is_passed_over() {
    let mut desk = Desk::new(None);
    let ours = ContextId::new();
    let (first, _, mut first_asked) = desk.open(1, ours);
    let (second, _, mut second_asked) = desk.open(2, ours);
    for id in 0..2 * OPEN {
        assert_eq!(desk.ask(&id.to_string(), "roots/list", "{}", None), None);
    }
    let more = desk.ask("\"more\"", "roots/list", "{}", None);
    assert_eq!(reason(more), (INTERNAL_ERROR, "limit_reached".to_owned()));
    let mut open = Vec::new();
    for _ in 0..OPEN {
        open.extend([second_asked.recv().await.unwrap(), first_asked.recv().await.unwrap()]);
    }
    drop(first);
    for _ in 0..OPEN {
        let written = desk.written.recv().await.unwrap();
        assert!(written.contains("withdrawn"), "there is no room for it elsewhere: {written}");
    }
    drop(second);
}

// req: EXEC-17
#[tokio::test]
async fn only_what_its_revision_knows_is_served() {
    let desk = Desk::new(None);
    let (_call, _, _asked) = desk.open(1, ContextId::new());
    let url = r#"{"mode":"url","url":"https://example.com","elicitationId":"e","message":"?"}"#;
    let tools = r#"{"messages":[],"maxTokens":1,"tools":[]}"#;
    for (number, revision, method, params, expected) in [
        (1, "2024-11-05", "elicitation/create", FORM, Some(METHOD_NOT_FOUND)),
        (2, "2025-03-26", "elicitation/create", FORM, Some(METHOD_NOT_FOUND)),
        (3, "2025-06-18", "elicitation/create", FORM, None),
        (4, "2025-06-18", "elicitation/create", url, Some(INVALID_PARAMS)),
        (5, "2025-06-18", "sampling/createMessage", tools, Some(INVALID_PARAMS)),
        (6, "2025-11-25", "elicitation/create", url, None),
        (7, "2025-11-25", "sampling/createMessage", tools, None),
        (8, "2024-11-05", "roots/list", "{}", None),
        (9, "2025-11-25", "tasks/get", "{}", Some(METHOD_NOT_FOUND)),
    ] {
        desk.inbox.speaks(revision);
        let answer = desk.ask(&number.to_string(), method, params, None);
        assert_eq!(answer.map(|answer| code(Some(answer))), expected, "{number}");
    }
    assert_eq!(desk.ask("\"p\"", "ping", "{}", None).unwrap(), r#"{"jsonrpc":"2.0","id":"p","result":{}}"#);
}

#[tokio::test]
async fn a_question_is_taken_back_by_its_asker_or_by_the_end_of_its_call() {
    let mut desk = Desk::new(None);
    let (call, listener, mut asked) = desk.open(1, ContextId::new());
    assert_eq!(desk.ask("1", "elicitation/create", FORM, None), None);
    let (_, mut answer) = asked.recv().await.unwrap();
    assert_eq!(code(desk.ask("1", "roots/list", "{}", None)), INVALID_REQUEST, "its id is in use");
    desk.note("notifications/cancelled", r#"{"requestId":1}"#, None);
    answer.closed().await;
    assert_eq!(desk.ask("1", "elicitation/create", FORM, None), None, "the id is free");
    let (_, mut answer) = asked.recv().await.unwrap();
    drop(call);
    answer.closed().await;
    let written = desk.written.recv().await.unwrap();
    assert!(written.contains(r#""id":1,"#) && written.contains("has ended"), "{written}");
    assert_eq!(reason(Some(written)), (INTERNAL_ERROR, "withdrawn".to_owned()));
    assert!(desk.written.try_recv().is_err(), "nothing answers what was taken back");
    assert_eq!(Arc::strong_count(&listener), 1, "an ended call's host is let go");
}

#[tokio::test]
async fn so_many_questions_may_be_open_and_no_more() {
    let desk = Desk::new(None);
    let (_call, _, mut asked) = desk.open(1, ContextId::new());
    for id in 0..OPEN {
        assert_eq!(desk.ask(&id.to_string(), "roots/list", "{}", None), None);
    }
    let more = desk.ask("\"more\"", "roots/list", "{}", None);
    assert_eq!(reason(more), (INTERNAL_ERROR, "limit_reached".to_owned()));
    let (_, answer) = asked.recv().await.unwrap();
    answer.send(Answer::Result(RawJson::trusted(r#"{"roots":[]}"#))).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while desk.ask("\"more\"", "roots/list", "{}", None).is_some() {
        assert!(Instant::now() < deadline, "an answer makes room");
        tokio::task::yield_now().await;
    }
}

// req: EXEC-20 (legacy half)
#[tokio::test]
async fn logs_and_completions_go_to_their_call_or_out() {
    let ours = ContextId::new();
    let mut desk = Desk::new(Some(ours));
    let log = r#"{"level":"info","data":{"n":1.0},"_meta":{"x":1}}"#;
    desk.note("notifications/message", log, None);
    let notice = desk.notices.try_recv().unwrap();
    let said = Said::Log(RawJson::trusted(log));
    assert_eq!(notice, Notice { upstream: "u".to_owned(), context: Some(ours), said });
    let (call, listener, mut asked) = desk.open(1, ours);
    desk.note("notifications/message", log, None);
    let url = r#"{"mode":"url","url":"https://example.com","elicitationId":"e-1","message":"?"}"#;
    assert_eq!(desk.ask("1", "elicitation/create", url, None), None);
    assert_eq!(desk.ask("2", "elicitation/create", &url.replace("e-1", "e-2"), None), None);
    asked.recv().await.unwrap();
    let complete = |id: &str| format!(r#"{{"elicitationId":"{id}"}}"#);
    desk.note("notifications/elicitation/complete", &complete("e-1"), None);
    desk.note("notifications/elicitation/complete", &complete("e-1"), None);
    desk.note("notifications/elicitation/complete", &complete("unknown"), None);
    let expected = [
        Event::Log { params: RawJson::trusted(log) },
        Event::ElicitationComplete { params: RawJson::trusted(complete("e-1")) },
    ];
    assert_eq!(*listener.events.lock().unwrap(), expected);
    drop(call);
    desk.note("notifications/elicitation/complete", &complete("e-2"), None);
    assert!(desk.notices.try_recv().is_err(), "its call has ended");
    desk.note("notifications/resources/updated", r#"{"uri":"a:b"}"#, None);
    let said = Said::ResourceUpdated(RawJson::trusted(r#"{"uri":"a:b"}"#));
    assert_eq!(desk.notices.try_recv().unwrap().said, said);
    assert!(desk.notices.try_recv().is_err());
}

#[tokio::test]
async fn a_completion_reaches_whom_the_id_was_used_for_last_and_nobody_of_another_context() {
    let desk = Desk::new(None);
    let (ours, theirs) = (ContextId::new(), ContextId::new());
    let url = r#"{"mode":"url","url":"https://example.com","elicitationId":"e","message":"?"}"#;
    let (done, complete) = ("notifications/elicitation/complete", r#"{"elicitationId":"e"}"#);
    let related = r#"{"elicitationId":"e","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#;
    let told = |listener: &Listener| listener.events.lock().unwrap().len();
    // A call that has ended is in nobody's way.
    let (first, _, _first_asked) = desk.open(1, ours);
    assert_eq!(desk.ask("1", "elicitation/create", url, Some(1)), None);
    drop(first);
    let (_second, second_heard, _second_asked) = desk.open(2, ours);
    for (id, seen) in [("2", 1), ("3", 2)] {
        // Again, after it was complete.
        assert_eq!(desk.ask(id, "elicitation/create", url, Some(2)), None);
        desk.note(done, complete, None);
        desk.note(done, complete, None);
        assert_eq!(told(&second_heard), seen);
    }
    // It is complete for each of one context that waits for it.
    let (_third, third_heard, _third_asked) = desk.open(3, ours);
    for call in [2, 3] {
        assert_eq!(desk.ask(&format!("\"{call}\""), "elicitation/create", url, Some(call)), None);
    }
    desk.note(done, complete, None);
    assert_eq!((told(&second_heard), told(&third_heard)), (3, 1));
    // Between contexts nothing is guessed; what names its call is for that one.
    let (_fourth, fourth_heard, _fourth_asked) = desk.open(4, theirs);
    desk.inbox.runs_as(4, &RawJson::trusted("\"t\""));
    for call in [3, 4] {
        assert_eq!(desk.ask(&format!("\"{call}b\""), "elicitation/create", url, Some(call)), None);
    }
    desk.note(done, complete, None);
    assert_eq!((told(&third_heard), told(&fourth_heard)), (1, 0));
    desk.note(done, related, None);
    assert_eq!((told(&third_heard), told(&fourth_heard)), (1, 1));
    desk.note(done, complete, None);
    assert_eq!((told(&third_heard), told(&fourth_heard)), (2, 1));
}

#[tokio::test]
async fn who_could_not_be_asked_hears_of_no_completion() {
    let mut desk = Desk::new(None);
    let (_call, listener, mut asked) = desk.open(1, ContextId::new());
    let url = r#"{"mode":"url","url":"https://example.com","elicitationId":"e","message":"?"}"#;
    assert_eq!(desk.ask("1", "elicitation/create", url, None), None);
    drop(asked.recv().await.unwrap().1);
    assert!(desk.written.recv().await.unwrap().contains(UNASKED));
    desk.note("notifications/elicitation/complete", r#"{"elicitationId":"e"}"#, None);
    assert!(listener.events.lock().unwrap().is_empty());
}

// req: EXEC-12
#[tokio::test]
async fn on_a_shared_link_a_log_of_unknown_work_is_for_nobody() {
    let mut desk = Desk::new(None);
    let (ours, our_listener, _) = desk.open(1, ContextId::new());
    let (theirs, their_listener, _) = desk.open(2, ContextId::new());
    let log = r#"{"level":"info","data":"secret"}"#;
    desk.note("notifications/message", log, None);
    drop(ours);
    desk.note("notifications/message", log, Some(1));
    assert!(our_listener.events.lock().unwrap().is_empty() && their_listener.events.lock().unwrap().is_empty());
    assert!(desk.notices.try_recv().is_err());
    drop(theirs);
    desk.note("notifications/message", log, None);
    assert_eq!(desk.notices.try_recv().unwrap().context, None);
}

// req: EXEC-12
#[tokio::test]
async fn what_a_given_up_call_of_a_shared_link_says_is_for_nobody_else() {
    let mut desk = Desk::new(None);
    let log = r#"{"level":"info","data":"secret"}"#;
    let (theirs, _, _) = desk.open(1, ContextId::new());
    desk.inbox.asked(1, 1);
    drop(theirs);
    let ours = ContextId::new();
    let (_call, listener, mut asked) = desk.open(2, ours);
    desk.inbox.asked(2, 2);
    desk.note("notifications/message", log, None);
    let unclear = desk.ask("1", "elicitation/create", FORM, None).unwrap();
    assert!(unclear.contains("several callers"), "{unclear}");
    assert!(listener.events.lock().unwrap().is_empty() && asked.try_recv().is_err());
    assert!(desk.notices.try_recv().is_err());
    // Its response comes.
    desk.inbox.answered(1);
    desk.note("notifications/message", log, None);
    assert_eq!(listener.events.lock().unwrap().len(), 1);
    // One that was given up before it had a name is anybody's.
    desk.inbox.asked(3, 99);
    desk.note("notifications/message", log, None);
    assert_eq!(listener.events.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn progress_rises_and_a_task_is_known_by_its_name_too() {
    let desk = Desk::new(None);
    let (_call, listener, _) = desk.open(5, ContextId::new());
    desk.inbox.runs_as(5, &RawJson::trusted("\"t\""));
    desk.note("notifications/progress", r#"{"progressToken":5,"progress":1}"#, None);
    desk.note("notifications/progress", r#"{"progressToken":5,"progress":1}"#, None);
    let related =
        r#"{"progressToken":77,"progress":2,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#;
    desk.note("notifications/progress", related, None);
    desk.note("notifications/progress", &related.replace("\"t\"", "\"other\"").replace("77", "5"), None);
    desk.note("notifications/progress", r#"{"progressToken":6,"progress":3}"#, None);
    let events = listener.events.lock().unwrap();
    let heard: Vec<_> = events
        .iter()
        .map(|event| match event {
            Event::Progress { progress, params, .. } => (*progress, params.as_str().to_owned()),
            other => panic!("{other:?}"),
        })
        .collect();
    let first = r#"{"progressToken":5,"progress":1}"#.to_owned();
    assert_eq!(heard, [(1.0, first), (2.0, r#"{"progressToken":77,"progress":2}"#.to_owned())]);
}

#[test]
fn a_log_without_data_or_with_an_unknown_level_goes_nowhere() {
    let mut desk = Desk::new(Some(ContextId::new()));
    for bad in [
        "{}",
        r#"{"data":"d"}"#,
        r#"{"level":"info"}"#,
        r#"{"level":"warn","data":"d"}"#,
        r#"{"level":"INFO","data":"d"}"#,
        r#"{"level":3,"data":"d"}"#,
        r#"{"level":null,"data":"d"}"#,
    ] {
        desk.note("notifications/message", bad, None);
        assert!(desk.notices.try_recv().is_err(), "{bad}");
    }
    for level in LogLevel::ALL {
        let good = format!(r#"{{"level":"{}","data":null}}"#, level.as_str());
        desk.note("notifications/message", &good, None);
        assert_eq!(desk.notices.try_recv().unwrap().said, Said::Log(RawJson::trusted(good)));
    }
}

#[test]
fn progress_goes_on_without_a_total_or_a_message_of_a_wrong_type() {
    let desk = Desk::new(None);
    let (_call, listener, _) = desk.open(5, ContextId::new());
    for (progress, more, expected) in [
        (1, r#","total":"10","message":"m""#, r#","message":"m""#),
        (2, r#","total":10,"message":{"m":1}"#, r#","total":10"#),
        (3, r#","total":null,"message":null"#, ""),
        (4, r#","total":1e400,"message":"\ud800""#, r#","total":1e400,"message":"\ud800""#),
    ] {
        let note = |more: &str| format!(r#"{{"progressToken":5,"progress":{progress}{more}}}"#);
        desk.note("notifications/progress", &note(more), None);
        let Some(Event::Progress { params, .. }) = listener.events.lock().unwrap().pop() else { panic!("{more}") };
        assert_eq!(params.as_str(), note(expected));
    }
}
