//! The stateless era: revision 2026-07-28.
//!
//! Each request stands alone: `_meta` says the version and what the client can do, headers repeat what a proxy may route by.
//! Only what differs from the handshake era is here; parameters that are the same are read by `legacy`. Nothing here decides
//! anything: the engine does.

pub mod client;
pub mod discover;
pub mod errors;
pub mod headers;
pub mod listen;
pub mod meta;
pub mod page;
pub mod param_headers;
pub mod results;
pub mod rounds;
pub mod tasks;

use std::cmp::Reverse;

use crate::domain::json::RawJson;
use crate::protocol::legacy::Revision;
use crate::protocol::splice::member;

/// The revision of this era that is served.
pub const VERSION: &str = "2026-07-28";
/// The extension in which this era has tasks.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A request of this era. What is not in [`Self::ALL`] does not exist (MOD-05, MOD-08).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    Discover,
    ToolsList,
    ToolsCall,
    PromptsList,
    PromptsGet,
    ResourcesList,
    ResourceTemplatesList,
    ResourcesRead,
    Complete,
    Listen,
    TasksGet,
    TasksUpdate,
    TasksCancel,
}

/// What `Mcp-Name` repeats of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameHeader {
    /// Nothing: the header says nothing and is not looked at.
    None,
    /// This parameter (MOD-03).
    Required(&'static str),
    /// This parameter, where the header is there (EXT-10).
    IfPresent(&'static str),
}

impl Method {
    pub const ALL: [Self; 13] = [
        Self::Discover,
        Self::ToolsList,
        Self::ToolsCall,
        Self::PromptsList,
        Self::PromptsGet,
        Self::ResourcesList,
        Self::ResourceTemplatesList,
        Self::ResourcesRead,
        Self::Complete,
        Self::Listen,
        Self::TasksGet,
        Self::TasksUpdate,
        Self::TasksCancel,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Discover => DISCOVER,
            Self::ToolsList => "tools/list",
            Self::ToolsCall => "tools/call",
            Self::PromptsList => "prompts/list",
            Self::PromptsGet => "prompts/get",
            Self::ResourcesList => "resources/list",
            Self::ResourceTemplatesList => "resources/templates/list",
            Self::ResourcesRead => "resources/read",
            Self::Complete => "completion/complete",
            Self::Listen => "subscriptions/listen",
            Self::TasksGet => "tasks/get",
            Self::TasksUpdate => "tasks/update",
            Self::TasksCancel => "tasks/cancel",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }

    #[must_use]
    pub const fn name_header(self) -> NameHeader {
        match self {
            Self::ToolsCall | Self::PromptsGet => NameHeader::Required("name"),
            Self::ResourcesRead => NameHeader::Required("uri"),
            Self::TasksGet | Self::TasksUpdate | Self::TasksCancel => NameHeader::IfPresent("taskId"),
            Self::Discover
            | Self::ToolsList
            | Self::PromptsList
            | Self::ResourcesList
            | Self::ResourceTemplatesList
            | Self::Complete
            | Self::Listen => NameHeader::None,
        }
    }
}

const DISCOVER: &str = "server/discover";

/// Whether a message is of this era (MOD-09). `method` is `None` for a response; `versions` are the values of
/// `MCP-Protocol-Version`.
#[must_use]
pub fn is_spoken(method: Option<&str>, params: Option<&RawJson>, versions: &[&[u8]]) -> bool {
    let says_version = || {
        let meta = params.and_then(|params| member(params.as_str(), "_meta"));
        meta.is_some_and(|meta| member(meta, meta::VERSION_KEY).is_some())
    };
    method == Some(DISCOVER) || says_version() || (method != Some("initialize") && names_newer(versions))
}

/// Whether a version header names a revision that is newer than the handshake era.
#[must_use]
pub fn names_newer(versions: &[&[u8]]) -> bool {
    versions.iter().any(|version| is_date(version) && *version > Revision::LATEST.as_str().as_bytes())
}

fn is_date(text: &[u8]) -> bool {
    let fits = |(at, byte): (usize, &u8)| if at == 4 || at == 7 { *byte == b'-' } else { byte.is_ascii_digit() };
    text.len() == 10 && text.iter().enumerate().all(fits)
}

/// The versions that are served, this era's first (MOD-01); without those of the handshake era for who has asked for one of
/// them in this era's way, and would ask so again (MOD-04).
pub fn supported_versions(requested: Option<&str>) -> impl Iterator<Item = &'static str> {
    let is_older = requested.is_some_and(|requested| Revision::from_name(requested).is_some());
    let mut older = Revision::ALL;
    older.sort_by_key(|revision| Reverse(*revision));
    std::iter::once(VERSION).chain(older.map(Revision::as_str).into_iter().filter(move |_| !is_older))
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: MOD-09
    #[test]
    fn the_era_is_chosen_by_the_message() {
        let spoken = |method: &str, params: &str, versions: &[&str]| {
            let versions: Vec<_> = versions.iter().map(|version| version.as_bytes()).collect();
            is_spoken(Some(method), Some(&RawJson::trusted(params)), &versions)
        };
        for value in [r#""2026-07-28""#, r#""2025-11-25""#, "null", "7"] {
            let params = format!(r#"{{"_meta":{{"io.modelcontextprotocol/protocolVersion":{value}}}}}"#);
            assert!(spoken("tools/list", &params, &[]) && spoken("initialize", &params, &["2025-11-25"]), "{value}");
        }
        assert!(spoken("server/discover", "{}", &[]) && spoken("server/discover", "{}", &["2025-06-18"]));
        for newer in ["2026-07-28", "2025-11-26", "2099-01-01"] {
            assert!(spoken("tools/list", "{}", &[newer]) && spoken("ping", "{}", &["2025-11-25", newer]), "{newer}");
            assert!(!spoken("initialize", "{}", &[newer]), "{newer}");
        }
        for older in ["2025-11-25", "2025-06-18", "2024-11-05", "", "x", "v999.0.0", "2026-07-281", "2026/07/28"] {
            assert!(!spoken("tools/list", "{}", &[older]), "{older}");
        }
        assert!(!spoken("tools/list", r#"{"_meta":{"x":1},"io.modelcontextprotocol/protocolVersion":1}"#, &[]));
        assert!(!is_spoken(None, None, &[]) && is_spoken(None, None, &[b"2026-07-28"]));
    }

    // req: MOD-04
    #[test]
    fn who_asks_for_an_older_revision_in_this_way_is_told_of_this_era_alone() {
        let told = |requested: &str| supported_versions(Some(requested)).collect::<Vec<_>>();
        assert_eq!(told("2025-11-25"), [VERSION]);
        assert_eq!(told("v999.0.0"), [VERSION, "2025-11-25", "2025-06-18"]);
        assert_eq!(supported_versions(None).count(), 3);
    }
}
