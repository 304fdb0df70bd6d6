//! Following one upstream's lists, over a link of its own that is nobody's.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::config::{Settings, Target, UpstreamConfig};
use super::control::Control;
use super::era::Eras;
use super::inbox::Owner;
use super::kinds::Kind;
use super::link::Link;
use super::links::Links;
use super::lists::{Listed, Lists, read_all};
use super::modern;
use crate::domain::ids::random_bytes;
use crate::domain::lease::backoff;

/// How long an upstream that had tools may answer with none after its start before that is believed.
const WARMING: u32 = 15;
const WARMING_PAUSE: Duration = Duration::from_secs(2);
/// Between two readings of a list that keeps changing.
const CHANGE_PAUSE: Duration = Duration::from_millis(100);

/// How an upstream stands, for `taskhold check` and logs.
#[derive(Debug, Clone, Default)]
pub struct Status {
    pub connected: bool,
    /// The protocol revision that it speaks; empty until it was reached.
    pub revision: String,
    /// How many tools its last list had that can be offered.
    pub tools: usize,
    pub prompts: usize,
    pub resources: usize,
    pub templates: usize,
    /// What is not offered, and why.
    pub left_out: Vec<LeftOut>,
    /// Tools that the configuration names and the upstream does not list.
    pub unlisted: Vec<String>,
    /// Why it is not connected, or its list cannot be read.
    pub problem: Option<String>,
    /// The last lines of its standard error.
    pub stderr: Vec<String>,
}

/// Something of an upstream that is not offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// `tool`, `prompt`, `resource`, `template`, or `list` for a whole list.
    pub kind: &'static str,
    pub name: String,
    pub why: String,
}

/// What was found of an upstream.
pub(super) enum Report {
    Listed(Lists),
    Failed,
}

/// One upstream as it is followed.
pub(super) struct Follower {
    pub(super) index: usize,
    pub(super) config: Arc<UpstreamConfig>,
    pub(super) settings: Settings,
    pub(super) target: Target,
    pub(super) eras: Arc<Eras>,
    pub(super) status: Arc<StatusCell>,
    pub(super) reports: mpsc::Sender<(usize, Report)>,
    pub(super) stop: CancellationToken,
    pub(super) owner: Owner,
    pub(super) links: Arc<Links>,
    /// Whether a good list is known from before.
    pub(super) had_tools: bool,
    /// What the log has said of the tools of the last list; a list that is read again is not told again.
    pub(super) told: HashSet<String>,
}

/// Where a follower keeps its upstream's status.
#[derive(Default)]
pub(super) struct StatusCell {
    status: Mutex<Status>,
    control: Mutex<Option<Control>>,
}

impl StatusCell {
    pub(super) fn read(&self) -> Status {
        let mut status = lock(&self.status).clone();
        if let Some(control) = &*lock(&self.control) {
            status.stderr = control.stderr();
        }
        status
    }

    /// Waits until its process is gone, if there is one.
    pub(super) async fn ended(&self) {
        let control = lock(&self.control).clone();
        if let Some(control) = control {
            control.exited().await;
        }
    }

    fn failed(&self, why: &str, stderr: Option<Vec<String>>) {
        let mut status = lock(&self.status);
        status.connected = false;
        status.problem = Some(why.to_owned());
        if let Some(stderr) = stderr {
            *lock(&self.control) = None;
            status.stderr = stderr;
        }
    }
}

impl Follower {
    /// Connects, reads the list, reads it again when it changes, connects again when the link ends; until stopped.
    pub(super) async fn follow(mut self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow_on() => {}
        }
    }

    async fn follow_on(&mut self) {
        let hint = self.config.stray_argument().map(|position| {
            format!(
                "argument {position} of its command names a file where the service runs, but the server works in an \
                 empty directory of its own: give the full path, or set cwd"
            )
        });
        if let Some(hint) = &hint {
            tracing::warn!(upstream.name = self.config.name, "an upstream may not find a file: {hint}");
        }
        let hinted = |why: String| hint.as_ref().map_or_else(|| why.clone(), |hint| format!("{why}; {hint}"));
        let mut failures = 0;
        loop {
            let name = &self.config.name;
            tracing::debug!(upstream.name = name, upstream.target = self.config.shown(), "an upstream is started");
            match Link::start(&self.settings, &self.target, self.owner.clone(), &self.eras).await {
                Ok(link) => {
                    self.links.learn(&link.capabilities);
                    self.tell_revision(&link.revision);
                    if self.follow_link(&link).await {
                        failures = 0;
                    }
                    let why = if link.is_closed() { link.why_closed() } else { "its list cannot be read".to_owned() };
                    tracing::warn!(
                        upstream.name = self.config.name,
                        "the link to an upstream's catalogue ended: {why}"
                    );
                    let problem = lock(&self.status.status).problem.clone();
                    self.status.failed(&hinted(problem.unwrap_or(why)), Some(link.control().stderr()));
                }
                Err((error, stderr)) => {
                    tracing::warn!(
                        upstream.name = name, error = %error,
                        "an upstream cannot be reached; taskhold check shows what it last wrote"
                    );
                    for line in &stderr {
                        tracing::debug!(upstream.name = name, upstream.stderr = line, "its standard error");
                    }
                    self.status.failed(&hinted(error.to_string()), Some(stderr));
                }
            }
            self.report(Report::Failed).await;
            failures += 1;
            sleep(backoff(failures, u32::from_le_bytes(random_bytes()))).await;
        }
    }

    /// Reads lists until the link ends or one cannot be read; whether any could.
    async fn follow_link(&mut self, link: &Link) -> bool {
        *lock(&self.status.control) = Some(link.control());
        if link.is_modern() {
            modern::follow_lists(link.table(), &link.capabilities).await;
        }
        let mut read_one = false;
        let mut empty = 0;
        loop {
            match read_all(link, &self.stop).await {
                Err(why) => {
                    lock(&self.status.status).problem = Some(why);
                    return read_one;
                }
                Ok(lists) if lists.of(Kind::Tool).is_empty() && self.had_tools && !read_one && empty < WARMING => {
                    empty += 1;
                    tokio::select! {
                        () = sleep(WARMING_PAUSE) => continue,
                        () = link.lists_changed() => continue,
                        () = link.closed() => return false,
                    }
                }
                Ok(lists) => {
                    self.accept(lists).await;
                    read_one = true;
                }
            }
            tokio::select! {
                () = link.lists_changed() => sleep(CHANGE_PAUSE).await,
                () = link.closed() => return read_one,
            }
        }
    }

    /// Once, and again when it speaks another one after a restart.
    fn tell_revision(&self, revision: &str) {
        let mut status = lock(&self.status.status);
        if status.revision != revision {
            tracing::info!(upstream.name = self.config.name, "an upstream speaks protocol revision {revision}");
            revision.clone_into(&mut status.revision);
        }
    }

    async fn accept(&mut self, lists: Lists) {
        let unlisted = unlisted(&self.config, &lists);
        for (item, message) in news(&mut self.told, lists.of(Kind::Tool), &lists.left_out, &unlisted) {
            tracing::warn!(upstream.name = self.config.name, item.name = item, "{message}");
        }
        let count = |kind| lists.of(kind).len();
        self.had_tools |= count(Kind::Tool) > 0;
        {
            let mut status = lock(&self.status.status);
            *status = Status {
                connected: true,
                revision: std::mem::take(&mut status.revision),
                tools: count(Kind::Tool),
                prompts: count(Kind::Prompt),
                resources: count(Kind::Resource),
                templates: count(Kind::Template),
                left_out: lists.left_out.clone(),
                unlisted,
                problem: None,
                stderr: Vec::new(),
            };
        }
        self.report(Report::Listed(lists)).await;
    }

    async fn report(&self, report: Report) {
        // Fails only when the catalogue is gone, at the end.
        let _ = self.reports.send((self.index, report)).await;
    }
}

/// Tools that the configuration names and the upstream does not list. One that cannot be offered is listed.
fn unlisted(config: &UpstreamConfig, lists: &Lists) -> Vec<String> {
    let is_listed = |name: &str| {
        lists.of(Kind::Tool).iter().any(|tool| tool.name == name)
            || lists.left_out.iter().any(|item| item.kind == Kind::Tool.as_str() && item.name == name)
    };
    config.tools.iter().map(|(name, _)| name).filter(|name| !is_listed(name)).cloned().collect()
}

/// What users of these lists would miss, item by item, where `told` of the list before does not have it.
fn news(
    told: &mut HashSet<String>,
    listed: &[Listed],
    left_out: &[LeftOut],
    unlisted: &[String],
) -> Vec<(String, String)> {
    let unusable = listed.iter().filter_map(|tool| {
        let why = tool.unusable.as_ref()?;
        Some((tool.name.clone(), format!("calls of a tool will be refused, its input schema cannot be used: {why}")))
    });
    let bare = listed.iter().filter_map(|tool| {
        let why = tool.bare.as_ref()?;
        Some((tool.name.clone(), format!("a tool is offered without headers for its arguments: {why}")))
    });
    let left_out =
        left_out.iter().map(|LeftOut { kind, name, why }| (name.clone(), format!("a {kind} is not offered: {why}")));
    let unlisted = unlisted.iter().map(|name| {
        let message = "a tool is configured and its upstream does not list it: what is set for it has no effect";
        (name.clone(), message.to_owned())
    });
    let all: Vec<_> = left_out.chain(unusable).chain(bare).chain(unlisted).collect();
    let line = |(item, message): &(String, String)| format!("{item}: {message}");
    let before = std::mem::replace(told, all.iter().map(line).collect());
    all.into_iter().filter(|one| !before.contains(&line(one))).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::config::ToolConfig;
    use super::super::lists::tests::tool;
    use super::*;

    #[test]
    fn a_list_that_is_read_again_is_no_news() {
        let broken = tool(r##"{"name":"a","inputSchema":{"$ref":"#/nowhere"}}"##);
        let fine = tool(r#"{"name":"b","inputSchema":{}}"#);
        let left_out = |name: &str| {
            let why = "its definition has no input schema".to_owned();
            LeftOut { kind: "tool", name: name.to_owned(), why }
        };
        let mut told = HashSet::new();
        let mut names = |listed: &[Listed], left_out: &[LeftOut]| -> Vec<String> {
            news(&mut told, listed, left_out, &[]).into_iter().map(|(tool, _)| tool).collect()
        };
        let both = [broken, fine];
        assert_eq!(names(&both, &[left_out("c")]), ["c", "a"]);
        assert!(names(&both, &[left_out("c")]).is_empty());
        assert_eq!(names(&both, &[left_out("c"), left_out("d")]), ["d"]);
        assert!(names(&both[1..], &[]).is_empty());
        assert_eq!(names(&both, &[]), ["a"], "it was well in between");
    }

    #[test]
    fn a_tool_that_is_configured_and_not_listed_is_told_until_it_is_there() {
        let named = ["a", "b", "c"].map(|name| (name.to_owned(), ToolConfig::default()));
        let config = UpstreamConfig { tools: named.into(), ..UpstreamConfig::new("u", Vec::new()) };
        let of = |names: &[&str]| {
            let listed = names.iter().map(|name| tool(&format!(r#"{{"name":"{name}","inputSchema":{{}}}}"#)));
            let broken = LeftOut { kind: "tool", name: "c".to_owned(), why: "it has no input schema".to_owned() };
            Lists { found: vec![(Kind::Tool, listed.collect())], left_out: vec![broken] }
        };
        assert_eq!(unlisted(&config, &of(&["a", "x"])), ["b"], "one that cannot be offered is told of already");
        assert!(unlisted(&config, &of(&["a", "b"])).is_empty());
        let mut told = HashSet::new();
        let mut is_told = |names: &[&str]| {
            let lists = of(names);
            let all = news(&mut told, lists.of(Kind::Tool), &[], &unlisted(&config, &lists));
            all.iter().any(|(item, message)| item == "b" && message.contains("does not list it"))
        };
        assert_eq!(
            [is_told(&["a"]), is_told(&["a"]), is_told(&["a", "b"]), is_told(&["a"])],
            [true, false, false, true]
        );
    }
}
