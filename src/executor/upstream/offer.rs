//! How what is stored of upstreams is offered: tools with task mode, restart policy and limits; the rest as it is.

use std::sync::Arc;

use super::config::UpstreamConfig;
use super::kinds::Kind;
use super::validate;
use crate::domain::json::RawJson;
use crate::domain::lease::RestartPolicy;
use crate::domain::mode::TaskMode;
use crate::domain::uri_template::UriTemplate;
use crate::executor::Tool;
use crate::executor::shelf::{Prompt, Resource, Served, Shelf, Template};
use crate::protocol::modern::param_headers::{ParamHeader, declared};
use crate::protocol::scan::string_value;
use crate::protocol::splice::member;
use crate::store::CatalogItem;

/// The key of the task-mode hint in a definition's `_meta`.
const HINT: &str = "io.taskhold/task";

/// The stored item as a tool, by its upstream's configuration and its own hints.
pub(super) fn tool(item: &CatalogItem, config: &UpstreamConfig) -> Tool {
    let own = config.tool(&item.name);
    Tool {
        exposed: item.exposed.clone(),
        upstream: item.upstream.clone(),
        upstream_tool: item.name.clone(),
        mode: own.task.or(config.task).or_else(|| hint(&item.definition)).unwrap_or_default(),
        ask_first: own.ask_first.unwrap_or_else(|| asks_first(&item.definition)),
        restart: own.restart.unwrap_or_else(|| restart(&item.definition)),
        run_limit: own.run_limit,
        slots: own.slots,
        ttl: own.ttl,
        poll_interval: own.poll_interval,
        grace: own.grace.or(config.grace),
        input_timeout: own.input_timeout,
        immediate_response: own.immediate_response,
        arguments: validate::arguments(&item.definition),
        param_headers: param_headers(item),
        definition: item.definition.clone(),
    }
}

/// Everything but the tools of the stored items, in the order of configuration and of the upstreams' lists.
pub(super) fn shelf(items: &[CatalogItem], configs: &[Arc<UpstreamConfig>]) -> Shelf {
    let of = |kind: Kind| {
        configs.iter().flat_map(move |config| {
            let is_of = |item: &&CatalogItem| item.kind == kind.as_str() && item.listed && item.upstream == config.name;
            let mut own: Vec<_> = items.iter().filter(is_of).collect();
            own.sort_by_key(|item| item.rank);
            own
        })
    };
    let upstreams = of(Kind::Capabilities).map(|item| (item.upstream.clone(), served(&item.definition)));
    let prompts = of(Kind::Prompt).map(|item| Prompt {
        exposed: item.exposed.clone(),
        upstream: item.upstream.clone(),
        upstream_prompt: item.name.clone(),
        definition: item.definition.clone(),
    });
    let resources = of(Kind::Resource).map(|item| Resource {
        uri: item.name.clone(),
        upstream: item.upstream.clone(),
        definition: item.definition.clone(),
    });
    let templates = of(Kind::Template).map(|item| Template {
        template: item.name.clone(),
        upstream: item.upstream.clone(),
        definition: item.definition.clone(),
        pattern: UriTemplate::parse(&item.name),
    });
    Shelf::new(upstreams.collect(), prompts.collect(), resources.collect(), templates.collect())
}

/// What an upstream with these capabilities serves.
pub(super) fn served(capabilities: &RawJson) -> Served {
    let has = |name| member(capabilities.as_str(), name).filter(|raw| raw.starts_with('{'));
    Served {
        prompts: has("prompts").is_some(),
        resources: has("resources").is_some(),
        subscribe: has("resources").and_then(|resources| member(resources, "subscribe")) == Some("true"),
        completions: has("completions").is_some(),
        logging: has("logging").is_some(),
    }
}

/// What the definition says of tasks (design section 4): our own key first, then `execution.taskSupport`.
fn hint(definition: &RawJson) -> Option<TaskMode> {
    let ours = member(definition.as_str(), "_meta").and_then(|meta| member(meta, HINT)).and_then(|raw| {
        let mode = if raw.starts_with('{') { member(raw, "mode")? } else { raw };
        string_value(mode)?.parse().ok()
    });
    ours.or_else(|| match task_support(definition).as_deref()? {
        "optional" => Some(TaskMode::Eager),
        "required" => Some(TaskMode::Always),
        // `forbidden` speaks of the upstream's own task runtime, which we replace.
        _ => None,
    })
}

/// Whether our own key of the definition says that its questions come before its task.
fn asks_first(definition: &RawJson) -> bool {
    let hint = member(definition.as_str(), "_meta").and_then(|meta| member(meta, HINT));
    hint.filter(|raw| raw.starts_with('{')).and_then(|raw| member(raw, "askFirst")) == Some("true")
}

/// The definition's `execution.taskSupport`.
pub(super) fn task_support(definition: &RawJson) -> Option<String> {
    let support = member(member(definition.as_str(), "execution")?, "taskSupport")?;
    Some(string_value(support)?.into_owned())
}

/// A definition with a bad annotation, as one that was stored before, has none that counts: no client can be held to it.
fn param_headers(item: &CatalogItem) -> Vec<ParamHeader> {
    declared(&item.definition).unwrap_or_else(|error| {
        let (upstream, name) = (&item.upstream, &item.name);
        tracing::warn!(%error, upstream.name = upstream, item.name = name, "headers of a tool's arguments are not checked");
        Vec::new()
    })
}

fn restart(definition: &RawJson) -> RestartPolicy {
    let annotations = member(definition.as_str(), "annotations").unwrap_or("{}");
    let is_true = |name| member(annotations, name) == Some("true");
    if is_true("readOnlyHint") || is_true("idempotentHint") { RestartPolicy::Retry } else { RestartPolicy::Fail }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::config::ToolConfig;
    use super::*;
    use crate::domain::clock::Timestamp;

    fn offered(definition: &str, config: &UpstreamConfig) -> Tool {
        let item = CatalogItem {
            upstream: "u".to_owned(),
            kind: "tool".to_owned(),
            name: "t".to_owned(),
            exposed: "t".to_owned(),
            definition: RawJson::trusted(definition),
            rank: 0,
            listed: true,
            seen: Timestamp::from_micros(0),
        };
        tool(&item, config)
    }

    #[test]
    fn the_mode_comes_from_the_nearest_that_says_one() {
        let config = UpstreamConfig::new("u", Vec::new());
        let upstream = UpstreamConfig { task: Some(TaskMode::Never), ..config.clone() };
        let own = ToolConfig { task: Some(TaskMode::Always), ..ToolConfig::default() };
        let tool_too = UpstreamConfig { tools: vec![("t".to_owned(), own)], ..upstream.clone() };
        for (definition, expected) in [
            (r#"{"name":"t"}"#, TaskMode::Optional),
            (r#"{"execution":{"taskSupport":"forbidden"}}"#, TaskMode::Optional),
            (r#"{"execution":{"taskSupport":"optional"}}"#, TaskMode::Eager),
            (r#"{"execution":{"taskSupport":"required"}}"#, TaskMode::Always),
            (r#"{"_meta":{"io.taskhold/task":"never"},"execution":{"taskSupport":"required"}}"#, TaskMode::Never),
            (r#"{"_meta":{"io.taskhold/task":{"mode":"always","askFirst":true}}}"#, TaskMode::Always),
            (r#"{"_meta":{"io.taskhold/task":"sometimes"}}"#, TaskMode::Optional),
        ] {
            assert_eq!(offered(definition, &config).mode, expected, "{definition}");
            assert_eq!(offered(definition, &upstream).mode, TaskMode::Never);
            assert_eq!(offered(definition, &tool_too).mode, TaskMode::Always);
        }
    }

    // req: KEEP-07
    #[test]
    fn only_harmless_tools_are_run_again() {
        let config = UpstreamConfig::new("u", Vec::new());
        for (annotations, expected) in [
            (r#"{"readOnlyHint":true}"#, RestartPolicy::Retry),
            (r#"{"idempotentHint":true,"readOnlyHint":false}"#, RestartPolicy::Retry),
            (r#"{"readOnlyHint":"true"}"#, RestartPolicy::Fail),
            ("{}", RestartPolicy::Fail),
            ("null", RestartPolicy::Fail),
        ] {
            assert_eq!(offered(&format!(r#"{{"annotations":{annotations}}}"#), &config).restart, expected);
        }
        let own = ToolConfig {
            restart: Some(RestartPolicy::Fail),
            run_limit: Some(Duration::from_secs(5)),
            ..ToolConfig::default()
        };
        let config = UpstreamConfig { tools: vec![("t".to_owned(), own)], ..config };
        let tool = offered(r#"{"annotations":{"readOnlyHint":true}}"#, &config);
        assert_eq!((tool.restart, tool.run_limit), (RestartPolicy::Fail, Some(Duration::from_secs(5))));
    }
}
