//! Following one upstream's list of tools, over a link of its own that is nobody's.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::config::{Settings, UpstreamConfig};
use super::link::{Link, NoReply, Outbound, Reply};
use super::offer::task_support;
use super::stdio::Control;
use super::validate;
use crate::domain::ids::random_bytes;
use crate::domain::json::RawJson;
use crate::domain::lease::backoff;
use crate::domain::text::storable;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, quoted};

const PAGE_LIMIT: Duration = Duration::from_secs(30);
const MOST_PAGES: usize = 100;
const MOST_TOOLS: usize = 10_000;
/// Longer names are no names: MCP allows 128 characters.
const MOST_NAME_BYTES: usize = 512;
/// How long an upstream that had tools may answer with none after its start before that is believed.
const WARMING: u32 = 15;
const WARMING_PAUSE: Duration = Duration::from_secs(2);
/// Between two readings of a list that keeps changing.
const CHANGE_PAUSE: Duration = Duration::from_millis(100);

/// How an upstream stands, for `taskhold check` and logs.
#[derive(Debug, Clone, Default)]
pub struct Status {
    pub connected: bool,
    /// How many tools its last list had that can be offered.
    pub tools: usize,
    /// Tools that are not offered, and why.
    pub left_out: Vec<(String, String)>,
    /// Why it is not connected, or its list cannot be read.
    pub problem: Option<String>,
    /// The last lines of its standard error.
    pub stderr: Vec<String>,
}

/// What was found of an upstream.
pub(super) enum Report {
    Listed(Vec<Listed>),
    Failed,
}

/// One tool of a list.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) definition: RawJson,
    /// Why its input schema cannot be used, so that its calls will be refused.
    unusable: Option<String>,
}

/// One upstream as it is followed.
pub(super) struct Follower {
    pub(super) index: usize,
    pub(super) config: Arc<UpstreamConfig>,
    pub(super) settings: Settings,
    pub(super) status: Arc<StatusCell>,
    pub(super) reports: mpsc::Sender<(usize, Report)>,
    pub(super) stop: CancellationToken,
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
            tracing::debug!(upstream.name = name, upstream.program = self.config.program(), "an upstream is started");
            match Link::start(&self.settings, &self.config.to_program()).await {
                Ok(link) => {
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
        let mut read_one = false;
        let mut empty = 0;
        loop {
            match self.read_list(link).await {
                Err(why) => {
                    lock(&self.status.status).problem = Some(why);
                    return read_one;
                }
                Ok((listed, _)) if listed.is_empty() && self.had_tools && !read_one && empty < WARMING => {
                    empty += 1;
                    tokio::select! {
                        () = sleep(WARMING_PAUSE) => continue,
                        () = link.tools_changed() => continue,
                        () = link.closed() => return false,
                    }
                }
                Ok((listed, left_out)) => {
                    self.accept(listed, left_out).await;
                    read_one = true;
                }
            }
            tokio::select! {
                () = link.tools_changed() => sleep(CHANGE_PAUSE).await,
                () = link.closed() => return read_one,
            }
        }
    }

    async fn accept(&mut self, listed: Vec<Listed>, left_out: Vec<(String, String)>) {
        for (tool, message) in news(&mut self.told, &listed, &left_out) {
            tracing::warn!(upstream.name = self.config.name, tool.name = tool, "{message}");
        }
        self.had_tools |= !listed.is_empty();
        {
            let mut status = lock(&self.status.status);
            *status = Status { connected: true, tools: listed.len(), left_out, problem: None, stderr: Vec::new() };
        }
        self.report(Report::Listed(listed)).await;
    }

    async fn report(&self, report: Report) {
        // Fails only when the catalogue is gone, at the end.
        let _ = self.reports.send((self.index, report)).await;
    }

    /// All pages of `tools/list`, and what of it cannot be offered.
    async fn read_list(&self, link: &Link) -> Result<(Vec<Listed>, Vec<(String, String)>), String> {
        let (mut listed, mut left_out) = (Vec::new(), Vec::new());
        let Some(_) = member(link.capabilities.as_str(), "tools") else { return Ok((listed, left_out)) };
        let runs_tasks = runs_tool_tasks(&link.capabilities);
        let mut names = HashSet::new();
        let mut cursors = HashSet::new();
        let mut params = None;
        for _ in 0..MOST_PAGES {
            let page = self.read_page(link, params.as_ref()).await?;
            let tools = member(page.as_str(), "tools").filter(|raw| raw.starts_with('['));
            for definition in items(tools.ok_or("its tools/list has no list of tools")?) {
                match listable(definition, runs_tasks) {
                    Ok(tool) if names.insert(tool.name.clone()) => listed.push(tool),
                    Ok(tool) => left_out.push((tool.name, "its server lists another tool of that name".to_owned())),
                    Err(refusal) => left_out.push(refusal),
                }
            }
            if listed.len() + left_out.len() > MOST_TOOLS {
                return Err(format!("it lists more than {MOST_TOOLS} tools"));
            }
            let Some(cursor) = member(page.as_str(), "nextCursor").filter(|cursor| cursor.starts_with('"')) else {
                return Ok((listed, left_out));
            };
            if !cursors.insert(cursor.to_owned()) {
                return Err("its tools/list gives one cursor twice".to_owned());
            }
            params = Some(RawJson::trusted(format!(r#"{{"cursor":{cursor}}}"#)));
        }
        Err(format!("its tools/list has more than {MOST_PAGES} pages"))
    }

    async fn read_page(&self, link: &Link, params: Option<&RawJson>) -> Result<RawJson, String> {
        let request = Outbound { number: link.next_number(), method: "tools/list", params, events: None };
        match timeout(PAGE_LIMIT, link.request(request, &self.stop)).await {
            Err(_) => Err(format!("it did not answer tools/list within {} s", PAGE_LIMIT.as_secs())),
            Ok(Ok(Reply::Result(page))) => Ok(page),
            Ok(Ok(Reply::Error(error))) => {
                let message = member(error.as_str(), "message").and_then(string_value).unwrap_or_default();
                Err(format!("it answers tools/list with an error: {message}"))
            }
            Ok(Ok(Reply::TooLarge { bytes })) => Err(format!("its tools/list has {bytes} bytes, more than the limit")),
            Ok(Ok(Reply::Broken(how)) | Err(NoReply::NotSent(how) | NoReply::Lost(how))) => Err(how),
            Ok(Err(NoReply::Stopped)) => Err("it was stopped".to_owned()),
        }
    }
}

/// What users of these tools would miss, tool by tool, where `told` of the list before does not have it.
fn news(told: &mut HashSet<String>, listed: &[Listed], left_out: &[(String, String)]) -> Vec<(String, String)> {
    let unusable = listed.iter().filter_map(|tool| {
        let why = tool.unusable.as_ref()?;
        Some((tool.name.clone(), format!("calls of a tool will be refused, its input schema cannot be used: {why}")))
    });
    let left_out = left_out.iter().map(|(tool, why)| (tool.clone(), format!("a tool is not offered: {why}")));
    let all: Vec<_> = left_out.chain(unusable).collect();
    let line = |(tool, message): &(String, String)| format!("{tool}: {message}");
    let before = std::mem::replace(told, all.iter().map(line).collect());
    all.into_iter().filter(|one| !before.contains(&line(one))).collect()
}

/// A definition as a tool that can be offered; else its name and why not.
fn listable(definition: &str, runs_tasks: bool) -> Result<Listed, (String, String)> {
    let Some(name) = member(definition, "name").and_then(string_value).filter(|name| !name.is_empty()) else {
        return Err(("(without a name)".to_owned(), "its definition has no name".to_owned()));
    };
    let name = name.into_owned();
    if member(definition, "name") != Some(quoted(&name).as_str()) && name.contains(char::REPLACEMENT_CHARACTER) {
        return Err((name, "its name cannot be read".to_owned()));
    }
    if name.contains('\0') || name.len() > MOST_NAME_BYTES {
        return Err((storable(&name, MOST_NAME_BYTES), "its name is too long or has a NUL".to_owned()));
    }
    if !member(definition, "inputSchema").is_some_and(|schema| schema.starts_with('{')) {
        return Err((name, "its definition has no input schema".to_owned()));
    }
    let definition = RawJson::trusted(definition);
    if runs_tasks && task_support(&definition).as_deref() == Some("required") {
        return Err((name, "its server demands to run it as a task of its own, which is not supported yet".to_owned()));
    }
    let unusable = validate::problem(&definition);
    Ok(Listed { name, definition, unusable })
}

/// Whether the upstream runs tool calls as tasks of its own.
fn runs_tool_tasks(capabilities: &RawJson) -> bool {
    ["tasks", "requests", "tools", "call"]
        .iter()
        .try_fold(capabilities.as_str(), |value, name| member(value, name))
        .is_some()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_offered_is_left_out_with_a_reason() {
        let why = |definition: &str, runs_tasks| listable(definition, runs_tasks).unwrap_err().1;
        assert!(why("7", false).contains("no name"));
        assert!(why(r#"{"name":"","inputSchema":{}}"#, false).contains("no name"));
        assert!(why(r#"{"name":"a"}"#, false).contains("no input schema"));
        assert!(why(r#"{"name":"\ud800","inputSchema":{}}"#, false).contains("cannot be read"));
        assert!(why(r#"{"name":"a\u0000","inputSchema":{}}"#, false).contains("NUL"));
        let required = r#"{"name":"a","inputSchema":{},"execution":{"taskSupport":"required"}}"#;
        assert!(why(required, true).contains("task of its own"));
        assert_eq!(listable(required, false).unwrap().definition.as_str(), required);
        let capabilities = RawJson::trusted(r#"{"tasks":{"requests":{"tools":{"call":{}}}}}"#);
        assert!(runs_tool_tasks(&capabilities));
        assert!(!runs_tool_tasks(&RawJson::trusted(r#"{"tasks":{"list":{}},"tools":{"call":{}}}"#)));
    }
    #[test]
    fn a_list_that_is_read_again_is_no_news() {
        let broken = listable(r##"{"name":"a","inputSchema":{"$ref":"#/nowhere"}}"##, false).unwrap();
        let fine = listable(r#"{"name":"b","inputSchema":{}}"#, false).unwrap();
        let left_out = |name: &str| (name.to_owned(), "its definition has no name".to_owned());
        let mut told = HashSet::new();
        let mut names = |listed: &[Listed], left_out: &[(String, String)]| -> Vec<String> {
            news(&mut told, listed, left_out).into_iter().map(|(tool, _)| tool).collect()
        };
        let both = [broken, fine];
        assert_eq!(names(&both, &[left_out("c")]), ["c", "a"]);
        assert!(names(&both, &[left_out("c")]).is_empty());
        assert_eq!(names(&both, &[left_out("c"), left_out("d")]), ["d"]);
        assert!(names(&both[1..], &[]).is_empty());
        assert_eq!(names(&both, &[]), ["a"], "it was well in between");
    }
}
