//! Reading an upstream's lists: all pages, bounded, each definition as it arrived.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::discovery::LeftOut;
use super::kinds::Kind;
use super::link::Link;
use super::requests::{NoReply, Outbound, Reply};
use super::validate;
use crate::domain::json::RawJson;
use crate::domain::text::storable;
use crate::protocol::modern::param_headers::{declared, without_annotations};
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, quoted};

const PAGE_LIMIT: Duration = Duration::from_secs(30);
const MOST_PAGES: usize = 100;
/// Of one list.
const MOST_ITEMS: usize = 10_000;
/// Longer names are no names: MCP allows 128 characters.
const MOST_NAME_BYTES: usize = 512;
/// What both databases can have in an index with room to spare.
const MOST_URI_BYTES: usize = 2000;
/// What a server says that it has no such method.
const METHOD_NOT_FOUND: &str = "-32601";

/// All that an upstream lists.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    /// Those that could be read. A list that could not is as it was.
    pub(super) found: Vec<(Kind, Vec<Listed>)>,
    pub(super) left_out: Vec<LeftOut>,
}

/// One item of a list.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) definition: RawJson,
    /// Why a tool's input schema cannot be used, so that its calls will be refused.
    pub(super) unusable: Option<String>,
    /// Why a tool lost the annotations that name headers for its arguments.
    pub(super) bare: Option<String>,
}

impl Lists {
    pub(super) fn of(&self, kind: Kind) -> &[Listed] {
        self.found.iter().find(|(found, _)| *found == kind).map_or(&[], |(_, listed)| listed)
    }
}

/// Reads every list that the upstream declares, and its capabilities.
///
/// # Errors
/// If its tools cannot be read; another list that cannot is told in `left_out`.
pub(super) async fn read_all(link: &Link, stop: &CancellationToken) -> Result<Lists, String> {
    let own = Listed {
        name: Kind::Capabilities.as_str().to_owned(),
        definition: link.capabilities.clone(),
        unusable: None,
        bare: None,
    };
    let mut lists = Lists { found: vec![(Kind::Capabilities, vec![own])], left_out: Vec::new() };
    for kind in Kind::LISTS {
        match read_one(link, kind, stop).await {
            Ok((listed, left_out)) => {
                lists.found.push((kind, listed));
                lists.left_out.extend(left_out);
            }
            Err(why) if kind == Kind::Tool => return Err(why),
            Err(why) => lists.left_out.push(LeftOut { kind: "list", name: kind.list().0.to_owned(), why }),
        }
    }
    Ok(lists)
}

/// The definition of one tool as the upstream lists it now; `None` if it does not, or not so that it could be offered.
///
/// # Errors
/// If its tools cannot be read.
pub(super) async fn tool_now(link: &Link, name: &str, stop: &CancellationToken) -> Result<Option<RawJson>, String> {
    let (listed, _) = read_one(link, Kind::Tool, stop).await?;
    Ok(listed.into_iter().find(|tool| tool.name == name).map(|tool| tool.definition))
}

/// All pages of one list, and what of it cannot be offered.
async fn read_one(link: &Link, kind: Kind, stop: &CancellationToken) -> Result<(Vec<Listed>, Vec<LeftOut>), String> {
    let (mut listed, mut left_out) = (Vec::new(), Vec::new());
    let Some(_) = member(link.capabilities.as_str(), kind.capability()) else { return Ok((listed, left_out)) };
    let (method, list) = kind.list();
    let mut names = HashSet::new();
    let mut cursors = HashSet::new();
    let mut params = None;
    for _ in 0..MOST_PAGES {
        let page = match read_page(link, method, params.as_ref(), stop).await? {
            Some(page) => page,
            // Many servers have resources and no templates, and do not serve the list either.
            None if kind == Kind::Template => return Ok((listed, left_out)),
            None => return Err(format!("it declares {} and does not know {method}", kind.capability())),
        };
        let definitions = member(page.as_str(), list).filter(|raw| raw.starts_with('['));
        for definition in items(definitions.ok_or_else(|| format!("its {method} has no list of {list}"))?) {
            match listable(kind, definition, link.is_process()) {
                Ok(item) if names.insert(item.name.clone()) => listed.push(item),
                Ok(item) => left_out.push(LeftOut {
                    kind: kind.as_str(),
                    name: item.name,
                    why: format!("its server lists another {} of that name", kind.as_str()),
                }),
                Err((name, why)) => left_out.push(LeftOut { kind: kind.as_str(), name, why }),
            }
        }
        if listed.len() + left_out.len() > MOST_ITEMS {
            return Err(format!("it lists more than {MOST_ITEMS} items by {method}"));
        }
        // Null is what some libraries write for none.
        let Some(cursor) = member(page.as_str(), "nextCursor").filter(|cursor| *cursor != "null") else {
            return Ok((listed, left_out));
        };
        if !cursor.starts_with('"') {
            return Err(format!("its {method} gives a nextCursor that is no string"));
        }
        if !cursors.insert(cursor.to_owned()) {
            return Err(format!("its {method} gives one cursor twice"));
        }
        params = Some(RawJson::trusted(format!(r#"{{"cursor":{cursor}}}"#)));
    }
    Err(format!("its {method} has more than {MOST_PAGES} pages"))
}

/// `None` if it does not know the method.
async fn read_page(
    link: &Link,
    method: &'static str,
    params: Option<&RawJson>,
    stop: &CancellationToken,
) -> Result<Option<RawJson>, String> {
    let request = Outbound::new(link.next_number(), method, params);
    match timeout(PAGE_LIMIT, link.request(request, stop)).await {
        Err(_) => Err(format!("it did not answer {method} within {} s", PAGE_LIMIT.as_secs())),
        Ok(Ok(Reply::Result(page))) => Ok(Some(page)),
        Ok(Ok(Reply::Error(error))) if member(error.as_str(), "code") == Some(METHOD_NOT_FOUND) => Ok(None),
        Ok(Ok(Reply::Error(error))) => {
            let message = member(error.as_str(), "message").and_then(string_value).unwrap_or_default();
            Err(format!("it answers {method} with an error: {message}"))
        }
        Ok(Ok(Reply::TooLarge { bytes, limit, .. })) => {
            Err(format!("its {method} has {bytes} bytes, more than the limit of {limit} bytes"))
        }
        Ok(Ok(Reply::Broken(how)) | Err(NoReply::NotSent(how) | NoReply::Lost(how))) => Err(how),
        Ok(Err(NoReply::Stopped)) => Err("it was stopped".to_owned()),
    }
}

/// A definition as an item that can be offered; else its name and why not. An annotation that no client can follow is taken out
/// where it means nothing to the server, a process of ours, and else makes its tool one that nobody can call (EXEC-22).
fn listable(kind: Kind, definition: &str, is_process: bool) -> Result<Listed, (String, String)> {
    let key = kind.key();
    let Some(name) = member(definition, key).and_then(string_value).filter(|name| !name.is_empty()) else {
        return Err((format!("(without a {key})"), format!("its definition has no {key}")));
    };
    let name = name.into_owned();
    if member(definition, key) != Some(quoted(&name).as_str()) && name.contains(char::REPLACEMENT_CHARACTER) {
        return Err((name, format!("its {key} cannot be read")));
    }
    let most = if kind.is_named() { MOST_NAME_BYTES } else { MOST_URI_BYTES };
    if name.contains('\0') || name.len() > most {
        return Err((storable(&name, MOST_NAME_BYTES), format!("its {key} is too long or has a NUL")));
    }
    let definition = RawJson::trusted(definition);
    if kind != Kind::Tool {
        return Ok(Listed { name, definition, unusable: None, bare: None });
    }
    if !member(definition.as_str(), "inputSchema").is_some_and(|schema| schema.starts_with('{')) {
        return Err((name, "its definition has no input schema".to_owned()));
    }
    let unusable = validate::problem(&definition);
    match declared(&definition) {
        Ok(_) => Ok(Listed { name, definition, unusable, bare: None }),
        Err(bad) if is_process => {
            Ok(Listed { name, definition: without_annotations(&definition), unusable, bare: Some(bad.to_string()) })
        }
        Err(bad) => Err((name, bad.to_string())),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::executor::upstream) fn tool(definition: &str) -> Listed {
        listable(Kind::Tool, definition, true).unwrap()
    }

    #[test]
    fn what_cannot_be_offered_is_left_out_with_a_reason() {
        let why = |definition: &str| listable(Kind::Tool, definition, true).unwrap_err().1;
        assert!(why("7").contains("no name"));
        assert!(why(r#"{"name":"","inputSchema":{}}"#).contains("no name"));
        assert!(why(r#"{"name":"a"}"#).contains("no input schema"));
        assert!(why(r#"{"name":"\ud800","inputSchema":{}}"#).contains("cannot be read"));
        assert!(why(r#"{"name":"a\u0000","inputSchema":{}}"#).contains("NUL"));
    }

    // req: EXEC-22
    #[test]
    fn a_tool_with_a_header_that_no_client_can_send_is_left_out_or_loses_it() {
        let schema = |annotation: &str| {
            format!(r#"{{"name":"t","inputSchema":{{"properties":{{"a":{{"type":"string"{annotation}}}}}}}}}"#)
        };
        let listed = |annotation: &str, is_process| listable(Kind::Tool, &schema(annotation), is_process);
        let fine = r#","x-mcp-header":"A""#;
        for is_process in [true, false] {
            let tool = listed(fine, is_process).unwrap();
            assert_eq!((tool.definition.as_str(), tool.bare), (schema(fine).as_str(), None));
        }
        for bad in [r#","x-mcp-header":"""#, r#","x-mcp-header":"a b""#, r#","items":{"x-mcp-header":"A"}"#] {
            let (name, why) = listed(bad, false).unwrap_err();
            assert!(name == "t" && why.contains("x-mcp-header"), "{why}");
            let bare = listed(bad, true).unwrap();
            assert!(!bare.definition.as_str().contains("x-mcp-header") && bare.bare.unwrap().contains("x-mcp-header"));
        }
    }

    #[test]
    fn prompts_and_resources_need_no_more_than_what_names_them() {
        let long = "u".repeat(MOST_URI_BYTES);
        for (kind, definition) in [
            (Kind::Prompt, r#"{"name":"p"}"#.to_owned()),
            (Kind::Resource, format!(r#"{{"uri":"{long}"}}"#)),
            (Kind::Template, r#"{"uriTemplate":"x://{a}"}"#.to_owned()),
        ] {
            assert_eq!(listable(kind, &definition, true).unwrap().definition.as_str(), definition);
        }
        let too_long = format!(r#"{{"uri":"{long}u"}}"#);
        assert!(listable(Kind::Resource, &too_long, true).unwrap_err().1.contains("too long"));
        assert!(listable(Kind::Resource, r#"{"name":"a"}"#, true).unwrap_err().1.contains("no uri"));
    }
}
