//! What comes before the first operation, and after the last: `initialize` and the session's end in the legacy era, in the
//! modern one `server/discover` and a look for the tool's headers.

use bytes::Bytes;
use hyper::Method;
use hyper::header::{HeaderMap, HeaderName};

use super::failure::Failure;
use super::link::{Answered, Link};
use super::template::{Template, set};
use super::{BenchError, Era, Mode};
use crate::domain::json::RawJson;
use crate::protocol::jsonrpc::{Message, ResponseBody, write_notification};
use crate::protocol::legacy::Revision;
use crate::protocol::legacy::initialize::initialize_params;
use crate::protocol::modern::client::{Discovered, argument_headers, with_tasks};
use crate::protocol::modern::headers::VERSION_HEADER;
use crate::protocol::modern::param_headers::declared;
use crate::protocol::modern::{TASKS_EXTENSION, VERSION};
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, quoted};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// Capabilities of a client that serves nothing: nobody is there to answer questions.
const NONE: &str = "{}";
/// A server that has more pages of tools than these is not asked for the next.
const MOST_PAGES: usize = 100;

/// An open session, or what stands for one in the modern era.
pub(super) struct Session {
    pub(super) era: Era,
    /// Of every request.
    pub(super) headers: HeaderMap,
    /// What each request of the modern era says of its client.
    pub(super) capabilities: String,
    /// Those that repeat arguments of the call, in the modern era.
    pub(super) argument_headers: Vec<(String, String)>,
}

impl Session {
    /// Opens it, and checks that the server offers what the mode needs.
    pub(super) async fn open(link: &mut Link, era: Era, mode: Mode, call: &RawJson) -> Result<Self, BenchError> {
        let session = match era {
            Era::Legacy => initialize(link, mode).await,
            Era::Modern => discover(link, mode, call).await,
        };
        session.map_err(|why| BenchError::Failed(format!("{} cannot be measured: {why}", link.target().url())))
    }

    /// Ends it, so that it does not count among its caller's. A server that has none refuses that, and is right.
    pub(super) async fn close(&self, link: &mut Link) {
        if self.headers.contains_key(SESSION_ID) {
            let _refused = link.send(Method::DELETE, self.headers.clone(), Bytes::new()).await;
        }
    }
}

async fn initialize(link: &mut Link, mode: Mode) -> Result<Session, String> {
    const METHOD: &str = "initialize";
    let mut headers = link.target().headers().clone();
    let params = initialize_params(Revision::LATEST.as_str(), NONE);
    let template = Template::new(Era::Legacy, &headers, METHOD, &params, NONE);
    let answered = link.request(&template, None).await.map_err(|failure| refused(METHOD, &failure))?;
    let result = result(METHOD, &answered)?;
    let version = member(result.as_str(), "protocolVersion").and_then(string_value).unwrap_or_default();
    let capability = |path: &[&str]| {
        let capabilities = member(result.as_str(), "capabilities");
        capabilities.and_then(|all| path.iter().try_fold(all, |object, name| member(object, name))).is_some()
    };
    if mode.needs_tasks() {
        if version != Revision::LATEST.as_str() {
            return Err(format!("it speaks revision {version}, which has no tasks; --mode call needs none"));
        }
        if !capability(&["tasks", "requests", "tools", "call"]) {
            return Err("it offers no tasks to this caller in the legacy era; --mode call needs none".to_owned());
        }
        if mode == Mode::List && !capability(&["tasks", "list"]) {
            return Err(
                "it does not list tasks to this caller, as a server does that cannot tell callers apart".to_owned()
            );
        }
    }
    if let Some(id) = answered.headers.get(SESSION_ID) {
        headers.insert(SESSION_ID, id.clone());
    }
    set(&mut headers, VERSION_HEADER, &version);
    let initialized = Bytes::from(write_notification("notifications/initialized", None));
    let sent = link.send(Method::POST, headers.clone(), initialized).await;
    sent.map_err(|failure| refused("notifications/initialized", &failure))?;
    Ok(Session { era: Era::Legacy, headers, capabilities: NONE.to_owned(), argument_headers: Vec::new() })
}

async fn discover(link: &mut Link, mode: Mode, call: &RawJson) -> Result<Session, String> {
    const METHOD: &str = "server/discover";
    let headers = link.target().headers().clone();
    let capabilities = if mode.needs_tasks() { with_tasks(NONE) } else { NONE.to_owned() };
    let template = Template::new(Era::Modern, &headers, METHOD, &RawJson::trusted("{}"), &capabilities);
    let answered = link.request(&template, None).await.map_err(|failure| refused(METHOD, &failure))?;
    let discovered = Discovered::read(&result(METHOD, &answered)?)
        .ok_or("its answer to server/discover is none: it may speak the legacy era only (--era legacy)")?;
    if !discovered.versions.iter().any(|version| version == VERSION) {
        let versions = discovered.versions.join(", ");
        return Err(format!("it speaks revisions {versions}, not {VERSION}; try --era legacy"));
    }
    let extensions = member(discovered.capabilities.as_str(), "extensions");
    if mode.needs_tasks() && extensions.and_then(|all| member(all, TASKS_EXTENSION)).is_none() {
        return Err(format!("it does not offer {TASKS_EXTENSION} to this caller; --mode call needs no tasks"));
    }
    let mut session = Session { era: Era::Modern, headers, capabilities, argument_headers: Vec::new() };
    if let Some(tool) = session.tool(link, call).await? {
        session.argument_headers =
            declared(&tool).map(|declared| argument_headers(&declared, call)).unwrap_or_default();
    }
    Ok(session)
}

impl Session {
    /// The definition of the tool that is called. One that is not listed is called all the same: the server says what is wrong.
    async fn tool(&self, link: &mut Link, call: &RawJson) -> Result<Option<RawJson>, String> {
        const METHOD: &str = "tools/list";
        let name = member(call.as_str(), "name").and_then(string_value).unwrap_or_default();
        let mut cursor: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let params =
                cursor.as_deref().map_or_else(|| "{}".to_owned(), |at| format!(r#"{{"cursor":{}}}"#, quoted(at)));
            let params = RawJson::trusted(params);
            let template = Template::new(self.era, &self.headers, METHOD, &params, &self.capabilities);
            let answered = link.request(&template, None).await.map_err(|failure| refused(METHOD, &failure))?;
            let page = result(METHOD, &answered)?;
            let mut tools = items(member(page.as_str(), "tools").unwrap_or("[]"));
            if let Some(tool) =
                tools.find(|tool| member(tool, "name").and_then(string_value).is_some_and(|it| it == name))
            {
                return Ok(Some(RawJson::trusted(tool)));
            }
            let next = member(page.as_str(), "nextCursor").and_then(string_value).map(|next| next.into_owned());
            if next.is_none() || next == cursor {
                break;
            }
            cursor = next;
        }
        Ok(None)
    }
}

/// A result that was checked whole: these come once, and are kept.
fn result(method: &str, answered: &Answered) -> Result<RawJson, String> {
    match Message::parse(answered.text()) {
        Ok(Message::Response(response)) => match response.body {
            ResponseBody::Result(result) if result.as_str().starts_with('{') => Ok(result),
            ResponseBody::Result(_) => Err(format!("its answer to {method} is no object")),
            ResponseBody::Error(_) => {
                Err(answered.result().err().map_or_else(String::new, |failure| refused(method, &failure)))
            }
        },
        Ok(_) => Err(format!("its answer to {method} is no response")),
        Err(malformed) => Err(format!("its answer to {method} cannot be read: {malformed}")),
    }
}

fn refused(method: &str, failure: &Failure) -> String {
    use super::failure::Kind;
    match failure.kind {
        Kind::Connection => format!("it cannot be reached: {}", failure.detail),
        Kind::Http(401, _) => {
            format!("it refused {method}: {failure}; give a token that it knows by --token or --token-file")
        }
        _ => format!("it refused {method}: {failure}"),
    }
}
