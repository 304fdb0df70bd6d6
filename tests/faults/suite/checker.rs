//! Judges a history: what clients were told must hold.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;

use super::history::{Era, Event, Pages, What, is_terminal};
use super::work::{Kind, Work};

/// What was found; each fault says what it is.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Tasks whose ids were told.
    pub acknowledged: usize,
    /// Creations of which nobody was told whether they happened.
    pub unanswered: usize,
    /// Requests that were refused for now, or whose connection broke.
    pub hiccups: usize,
    /// Requests that stopping nodes sent on.
    pub sent_away: usize,
    /// Ends that say that nobody knows how the call ended.
    pub unknown: usize,
    /// Told, and not there.
    pub lost: Vec<String>,
    /// An end that did not stay as it was.
    pub changed: Vec<String>,
    /// Ran more often than it may.
    pub twice: Vec<String>,
    /// Without an end.
    pub stuck: Vec<String>,
    /// A step that no task may take.
    pub forbidden: Vec<String>,
    /// Seen by somebody whose it is not.
    pub foreign: Vec<String>,
    /// An end that is not the call's and says no reason; answers that nobody should get.
    pub dishonest: Vec<String>,
}

/// What a scenario's fault may do to clients, besides delays.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allowed {
    /// Requests may be refused for now, and connections may break.
    pub hiccups: bool,
    /// Calls that must not be repeated may end as unknown; calls may not be made for want of their upstream.
    pub lost_runs: bool,
}

/// Judges what clients saw, and how often each call ran where that was counted.
pub fn judge(pages: &Pages, runs: &HashMap<usize, usize>, allowed: Allowed) -> Verdict {
    let mut verdict = Verdict::default();
    let mut tasks: HashMap<&str, Story<'_>> = HashMap::new();
    let mut unanswered = HashSet::new();
    for event in &pages.events {
        match &event.what {
            What::Made { work, task, status } => {
                verdict.acknowledged += 1;
                if status != "working" {
                    verdict.forbidden.push(format!("{task} began as {status}"));
                }
                let story = tasks.entry(task).or_default();
                if story.made.replace((*work, event)).is_some() {
                    verdict.foreign.push(format!("{task} is the id of two tasks"));
                }
            }
            What::Unanswered { work } => {
                unanswered.insert(*work);
            }
            What::Seen { task, .. } | What::Outcome { task, .. } => tasks.entry(task).or_default().seen.push(event),
            What::Cancels { task } => tasks.entry(task).or_default().cancel_asked = true,
            What::Cancelled { task } => tasks.entry(task).or_default().cancel_told = true,
            What::Missing { task } => verdict.lost.push(format!("{task} was not found after {:?}", event.asked)),
            What::Trespassed { task, text } => verdict.foreign.push(format!("a stranger saw {task}: {text}")),
            What::Plain { work, text } => plain(&mut verdict, &pages.works[*work], text, allowed),
            What::Hiccup { text } => {
                verdict.hiccups += 1;
                if !allowed.hiccups {
                    verdict.dishonest.push(format!("a request failed after {:?}: {text}", event.answered));
                }
            }
            What::Strange { text } => verdict.dishonest.push(format!("after {:?}: {text}", event.answered)),
            What::SentAway => verdict.sent_away += 1,
            What::Listed { .. } => {}
        }
    }
    verdict.unanswered = unanswered.len();
    for (task, story) in &tasks {
        verdict.one_task(task, story, pages, runs, allowed);
    }
    for (&work, &times) in runs {
        if times > 1 && !pages.works[work].may_be_repeated() {
            verdict.twice.push(format!("{:?} ran {times} times", pages.works[work]));
        }
    }
    lists(&mut verdict, pages, &tasks, &unanswered);
    verdict
}

/// All that is known of one task.
#[derive(Default)]
struct Story<'a> {
    made: Option<(usize, &'a Event)>,
    seen: Vec<&'a Event>,
    cancel_asked: bool,
    cancel_told: bool,
}

impl Verdict {
    fn one_task(
        &mut self,
        task: &str,
        story: &Story<'_>,
        pages: &Pages,
        runs: &HashMap<usize, usize>,
        allowed: Allowed,
    ) {
        let Some((work, made)) = story.made else {
            self.foreign.push(format!("{task} was never made"));
            return;
        };
        for event in &story.seen {
            if event.context != made.context {
                self.foreign.push(format!("{task} of context {} was seen by {}", made.context, event.context));
            }
        }
        self.steps(task, story);
        let outcomes = self.same_ends(task, story);
        if !story.seen.iter().any(|event| is_end(&event.what)) {
            self.stuck.push(format!("{task} ({:?}), made after {:?}", pages.works[work], made.answered));
            return;
        }
        let status = |era| {
            story.seen.iter().rev().find_map(|event| match &event.what {
                What::Seen { era: of, status, .. } if *of == era && is_terminal(status) => Some(status.as_str()),
                _ => None,
            })
        };
        let ran = runs.get(&work).copied();
        for (era, text) in outcomes {
            let fault = self.end(&pages.works[work], ran, era, status(era), text, story, allowed);
            if let Some(fault) = fault {
                self.dishonest.push(format!("{task}: {fault}: {text}"));
            }
        }
    }

    /// Once it has ended it stays ended, its times never go back, and it is not answered as open afterwards.
    fn steps(&mut self, task: &str, story: &Story<'_>) {
        let mut seen = story.seen.clone();
        seen.sort_by_key(|event| event.asked);
        // The latest end, and the latest `updated`, among what was answered before each look began.
        let mut answered: Vec<&Event> = seen.clone();
        answered.sort_by_key(|event| event.answered);
        let (mut before, mut ended, mut latest) = (answered.into_iter().peekable(), None, "");
        let mut created: Option<&str> = None;
        for event in seen {
            while let Some(earlier) = before.next_if(|earlier| earlier.answered < event.asked) {
                if is_end(&earlier.what) {
                    ended = Some(earlier);
                }
                if let What::Seen { updated, .. } = &earlier.what {
                    latest = latest.max(updated.as_str());
                }
            }
            let What::Seen { status, created: at, updated, .. } = &event.what else { continue };
            if *created.get_or_insert(at) != at {
                self.forbidden.push(format!("{task} was created twice: {created:?} and {at}"));
            }
            if updated.as_str() < latest {
                self.forbidden.push(format!("{task} went back from {latest} to {updated}"));
            }
            if !is_terminal(status) && !matches!(status.as_str(), "working" | "input_required") {
                self.forbidden.push(format!("{task} has the status {status}"));
            }
            if let Some(end) = ended
                && !is_terminal(status)
            {
                self.changed.push(format!("{task} was {status} after {:?}", end.what));
            }
        }
    }

    /// Each era shows one end, to the byte. Answers the outcomes.
    fn same_ends<'a>(&mut self, task: &str, story: &Story<'a>) -> Vec<(Era, &'a str)> {
        let (mut ends, mut outcomes): (HashMap<Era, &str>, HashMap<Era, &str>) = Default::default();
        for event in &story.seen {
            let (known, text) = match &event.what {
                What::Seen { era, status, text, .. } if is_terminal(status) => (ends.entry(*era), text),
                What::Outcome { era, text, .. } => (outcomes.entry(*era), text),
                _ => continue,
            };
            let known = *known.or_insert(text);
            if known != text {
                self.changed.push(format!("{task} changed from {known} to {text}"));
            }
        }
        outcomes.into_iter().collect()
    }

    /// What is wrong with an outcome, if anything.
    #[expect(clippy::too_many_arguments, reason = "all that an end is judged by")]
    fn end(
        &mut self,
        work: &Work,
        runs: Option<usize>,
        era: Era,
        status: Option<&str>,
        text: &str,
        story: &Story<'_>,
        allowed: Allowed,
    ) -> Option<String> {
        let Ok(outcome) = serde_json::from_str::<Value>(text) else { return Some("no JSON".to_owned()) };
        let reason = outcome["error"]["data"]["reason"].as_str().unwrap_or_default();
        let cancelled = status == Some("cancelled") || outcome["error"]["code"] == -32800;
        if cancelled {
            return (!story.cancel_asked).then(|| "cancelled by nobody".to_owned());
        }
        if story.cancel_told {
            return Some("it was cancelled".to_owned());
        }
        match reason {
            "outcome_unknown" => {
                self.unknown += usize::from(era == Era::Legacy);
                return (!allowed.lost_runs).then(|| "nothing broke that could lose it".to_owned());
            }
            "upstream_unavailable" => {
                let ran = runs.is_some_and(|runs| runs > 0);
                return (!allowed.lost_runs || ran).then(|| "the call could be made".to_owned());
            }
            _ => {}
        }
        let right = match (era, work.kind) {
            (_, Kind::FailRpc(_)) | (Era::Legacy, Kind::FailTool) => "failed",
            _ => "completed",
        };
        if !work.gives(&outcome) || status.is_some_and(|status| status != right) {
            return Some(format!("not what {work:?} gives, {status:?}"));
        }
        (runs == Some(0)).then(|| format!("{work:?} never ran"))
    }

    /// Every kind of fault with its name.
    pub fn faults(&self) -> [(&'static str, &[String]); 7] {
        [
            ("lost", &self.lost),
            ("changed", &self.changed),
            ("run twice", &self.twice),
            ("stuck", &self.stuck),
            ("forbidden", &self.forbidden),
            ("foreign", &self.foreign),
            ("dishonest", &self.dishonest),
        ]
    }

    /// The first faults of each kind; empty if all is well.
    pub fn complaint(&self) -> String {
        let mut lines = Vec::new();
        for (kind, faults) in self.faults() {
            if !faults.is_empty() {
                lines.push(format!("{} {kind}:", faults.len()));
                lines.extend(faults.iter().take(5).map(|fault| format!("  {}", shortened(fault))));
            }
        }
        lines.join("\n")
    }
}

fn plain(verdict: &mut Verdict, work: &Work, text: &str, allowed: Allowed) {
    let outcome: Value = serde_json::from_str(text).unwrap_or_default();
    let reason = outcome["error"]["data"]["reason"].as_str().unwrap_or_default();
    let excused = allowed.lost_runs && matches!(reason, "outcome_unknown" | "upstream_unavailable");
    if !work.gives(&outcome) && !excused {
        verdict.dishonest.push(format!("a plain call of {work:?} gave {text}"));
    }
}

/// A context's list has its own tasks, each once, and beside them only what was not answered.
fn lists(verdict: &mut Verdict, pages: &Pages, tasks: &HashMap<&str, Story<'_>>, unanswered: &HashSet<usize>) {
    for event in &pages.events {
        let What::Listed { tasks: listed } = &event.what else { continue };
        let mut once = HashSet::new();
        let mut unknown = 0;
        for task in listed {
            if !once.insert(task.as_str()) {
                verdict.foreign.push(format!("{task} is listed twice"));
            }
            match tasks.get(task.as_str()).and_then(|story| story.made) {
                Some((_, made)) if made.context != event.context => {
                    verdict.foreign.push(format!("{task} of context {} is in {}'s list", made.context, event.context));
                }
                Some(_) => {}
                None => unknown += 1,
            }
        }
        let open = unanswered.iter().filter(|&&work| pages.works[work].context == event.context).count();
        if unknown > open {
            verdict.foreign.push(format!("{unknown} tasks are listed of {open} creations without an answer"));
        }
        for (task, story) in tasks {
            let is_ours = |(_, made): &(usize, &Event)| made.context == event.context && made.answered < event.asked;
            if story.made.as_ref().is_some_and(is_ours) && !once.contains(task) {
                verdict.lost.push(format!("{task} is not listed"));
            }
        }
    }
}

fn is_end(what: &What) -> bool {
    match what {
        What::Seen { status, .. } => is_terminal(status),
        What::Outcome { .. } => true,
        _ => false,
    }
}

fn shortened(text: &str) -> String {
    let short: String = text.chars().take(600).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}

/// When the last of the tasks ended that were told by then.
pub fn last_end(pages: &Pages, made_before: Duration) -> Option<Duration> {
    let ends = pages.ends();
    let old = pages.events.iter().filter_map(|event| match &event.what {
        What::Made { task, .. } if event.answered <= made_before => Some(task.as_str()),
        _ => None,
    });
    old.filter_map(|task| ends.get(task).copied()).max()
}
