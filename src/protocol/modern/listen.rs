//! `subscriptions/listen`: what a client wants to hear, and what it is told (NOTE-05, NOTE-12).

use crate::domain::json::RawJson;
use crate::protocol::jsonrpc::{Id, write_notification};
use crate::protocol::legacy::InvalidParams;
use crate::protocol::legacy::notify::List;
use crate::protocol::legacy::tools::FOREIGN_META;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, quoted, set_meta};

use super::results::complete;

/// Names the request that opened a stream, in each message on it.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Tasks that one filter may name.
pub const MOST_TASKS: usize = 1000;

/// What a client asks to hear, or is told that it will.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    /// The URIs of resources of whose updates it is to hear; `None` if the filter does not say.
    pub updates: Option<Vec<String>>,
    /// The ids of tasks, as they are written there.
    pub tasks: Option<Vec<String>>,
}

impl Filter {
    /// Whether these parameters ask for news of tasks, however wrong they are otherwise.
    #[must_use]
    pub fn names_tasks(params: &RawJson) -> bool {
        member(params.as_str(), "notifications").is_some_and(|filter| member(filter, Self::TASKS).is_some())
    }

    /// # Errors
    /// If `notifications` is no object, or one of its members that are known has the wrong type or more entries than it may:
    /// `most_updates` resources, [`MOST_TASKS`] tasks.
    pub fn parse(params: &RawJson, most_updates: usize) -> Result<Self, InvalidParams> {
        let filter = member(params.as_str(), "notifications").filter(|raw| raw.starts_with('{'));
        let filter = filter.ok_or_else(|| InvalidParams("notifications must be an object".to_owned()))?;
        let flag = |name: &str| match member(filter, name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(InvalidParams(format!("notifications.{name} must be a boolean"))),
        };
        let list = |name: &str, most: usize| member(filter, name).map(|raw| strings(name, raw, most)).transpose();
        Ok(Self {
            tools: flag(Self::TOOLS)?,
            prompts: flag(Self::PROMPTS)?,
            resources: flag(Self::RESOURCES)?,
            updates: list(Self::UPDATES, most_updates)?,
            tasks: list(Self::TASKS, MOST_TASKS)?,
        })
    }

    const TOOLS: &str = "toolsListChanged";
    const PROMPTS: &str = "promptsListChanged";
    const RESOURCES: &str = "resourcesListChanged";
    const UPDATES: &str = "resourceSubscriptions";
    const TASKS: &str = "taskIds";

    fn write(&self) -> String {
        let flags = [(self.tools, Self::TOOLS), (self.prompts, Self::PROMPTS), (self.resources, Self::RESOURCES)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| format!(r#""{name}":true"#));
        let lists = [(&self.updates, Self::UPDATES), (&self.tasks, Self::TASKS)];
        let lists = lists.into_iter().filter_map(|(list, name)| {
            let texts: Vec<_> = list.as_ref()?.iter().map(|text| quoted(text)).collect();
            Some(format!(r#""{name}":[{}]"#, texts.join(",")))
        });
        format!("{{{}}}", flags.chain(lists).collect::<Vec<_>>().join(","))
    }
}

fn strings(name: &str, raw: &str, most: usize) -> Result<Vec<String>, InvalidParams> {
    let wrong = || InvalidParams(format!("notifications.{name} must be an array of strings"));
    if !raw.starts_with('[') {
        return Err(wrong());
    }
    let entries = items(raw).count();
    if entries > most {
        return Err(InvalidParams(format!(
            "notifications.{name} has {entries} entries, more than the limit of {most}"
        )));
    }
    items(raw).map(|item| Some(string_value(item)?.into_owned())).collect::<Option<_>>().ok_or_else(wrong)
}

/// The first message: the part of the filter that is honoured.
#[must_use]
pub fn acknowledged(id: &Id, honoured: &Filter) -> String {
    let params = format!(r#"{{"notifications":{}}}"#, honoured.write());
    write_notification("notifications/subscriptions/acknowledged", Some(&of(id, &RawJson::trusted(params))))
}

#[must_use]
pub fn list_changed(id: &Id, list: List) -> String {
    write_notification(list.changed(), Some(&of(id, &RawJson::trusted("{}"))))
}

/// An update of a resource, by the parameters that its upstream sent.
#[must_use]
pub fn resource_updated(id: &Id, params: &RawJson) -> String {
    let params = set_meta(params, &[(SUBSCRIPTION, id.as_raw())], &FOREIGN_META);
    write_notification("notifications/resources/updated", Some(&params))
}

/// A task as it stands now, with what `tasks/get` shows of it.
#[must_use]
pub fn task_changed(id: &Id, task: &RawJson) -> String {
    write_notification("notifications/tasks", Some(&of(id, task)))
}

/// The result: this server has ended the stream (NOTE-11).
#[must_use]
pub fn ended(id: &Id) -> RawJson {
    complete(&of(id, &RawJson::trusted("{}")))
}

fn of(id: &Id, params: &RawJson) -> RawJson {
    set_meta(params, &[(SUBSCRIPTION, id.as_raw())], &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(filter: &str) -> Result<Filter, InvalidParams> {
        Filter::parse(&RawJson::trusted(format!(r#"{{"notifications":{filter}}}"#)), 2)
    }

    fn texts(texts: &[&str]) -> Option<Vec<String>> {
        Some(texts.iter().map(|&text| text.to_owned()).collect())
    }

    #[test]
    fn a_filter_is_read_and_what_is_wrong_is_named() {
        assert_eq!(parse("{}"), Ok(Filter::default()));
        let all = r#"{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"taskIds":["\u0061", ""],"resourceSubscriptions":["x://1"],"else":7}"#;
        let read = Filter {
            tools: true,
            prompts: true,
            resources: true,
            updates: texts(&["x://1"]),
            tasks: texts(&["a", ""]),
        };
        assert_eq!(parse(all), Ok(read));
        assert_eq!(parse(r#"{"toolsListChanged":false}"#), Ok(Filter::default()));
        assert_eq!(parse(r#"{"taskIds":[]}"#), Ok(Filter { tasks: texts(&[]), ..Filter::default() }));
        for (bad, named) in [
            (r#"{"toolsListChanged":1}"#, "toolsListChanged"),
            (r#"{"resourcesListChanged":null}"#, "resourcesListChanged"),
            (r#"{"taskIds":"x"}"#, "taskIds must be an array of strings"),
            (r#"{"taskIds":["x",7]}"#, "taskIds must be an array of strings"),
            (r#"{"resourceSubscriptions":{}}"#, "resourceSubscriptions"),
            (
                r#"{"resourceSubscriptions":["a","b","c"]}"#,
                "resourceSubscriptions has 3 entries, more than the limit of 2",
            ),
            ("[]", "notifications"),
        ] {
            assert!(parse(bad).unwrap_err().0.contains(named), "{bad}");
        }
        let most = format!(r#"{{"taskIds":[{}""]}}"#, r#""","#.repeat(MOST_TASKS));
        assert!(parse(&most).unwrap_err().0.contains("1001 entries, more than the limit of 1000"));
        assert!(Filter::parse(&RawJson::trusted("{}"), 2).is_err());
    }

    // Of NOTE-05 the subscription's id.
    #[test]
    fn every_message_names_its_subscription_in_its_own_type() {
        let ids = [r#""a""#, "7"].map(|raw| Id::from_raw(raw).unwrap());
        for id in &ids {
            let meta = format!(r#""io.modelcontextprotocol/subscriptionId":{}"#, id.as_raw());
            let tasks = texts(&["t\""]);
            let honoured = Filter { tools: true, resources: true, updates: texts(&[]), tasks, ..Filter::default() };
            assert_eq!(
                acknowledged(id, &honoured),
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"notifications":{{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":[],"taskIds":["t\""]}},"_meta":{{{meta}}}}}}}"#
                )
            );
            assert!(list_changed(id, List::Prompts).contains("notifications/prompts/list_changed"));
            assert!(list_changed(id, List::Tools).contains(&meta) && ended(id).as_str().contains(&meta));
            let task = task_changed(id, &RawJson::trusted(r#"{"taskId":"t","n":1e400}"#));
            assert!(task.ends_with(&format!(r#""params":{{"taskId":"t","n":1e400,"_meta":{{{meta}}}}}}}"#)), "{task}");
            let theirs = r#"{"uri":"x://1","_meta":{"io.modelcontextprotocol/subscriptionId":"theirs","io.modelcontextprotocol/related-task":{"taskId":"theirs"},"k":1.0}}"#;
            let updated = resource_updated(id, &RawJson::trusted(theirs));
            assert!(
                updated.ends_with(&format!(r#""params":{{"uri":"x://1","_meta":{{"k":1.0,{meta}}}}}}}"#)),
                "{updated}"
            );
        }
    }
}
