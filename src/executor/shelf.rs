//! What upstreams have besides tools: prompts, resources, resource templates, and which other requests they take.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::json::RawJson;
use crate::domain::uri_template::UriTemplate;

/// A prompt as it is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The name that clients use; unique and host-safe.
    pub exposed: String,
    pub upstream: String,
    pub upstream_prompt: String,
    /// The upstream's definition as it arrived, with the upstream's own name.
    pub definition: RawJson,
}

/// A resource as it is offered: under its own URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub uri: String,
    pub upstream: String,
    pub definition: RawJson,
}

/// A resource template as it is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// As the upstream wrote it.
    pub template: String,
    pub upstream: String,
    pub definition: RawJson,
    /// `None` if it is no template that can be matched.
    pub pattern: Option<UriTemplate>,
}

/// Which requests are served, by what upstreams declare (CAP-11).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    pub prompts: bool,
    pub resources: bool,
    pub subscribe: bool,
    pub completions: bool,
    pub logging: bool,
}

impl Served {
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            prompts: self.prompts || other.prompts,
            resources: self.resources || other.resources,
            subscribe: self.subscribe || other.subscribe,
            completions: self.completions || other.completions,
            logging: self.logging || other.logging,
        }
    }
}

/// Something that two upstreams have: the first in the order of configuration keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clash {
    /// The upstream whose item is not offered.
    pub upstream: String,
    /// What is offered by both: a URI or a template.
    pub item: String,
    /// The upstream that keeps it.
    pub kept_by: String,
}

/// See the module's documentation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shelf {
    /// In the order of configuration.
    upstreams: Vec<(String, Served)>,
    served: Served,
    prompts: Vec<Arc<Prompt>>,
    resources: Vec<Arc<Resource>>,
    templates: Vec<Arc<Template>>,
    prompts_by_name: HashMap<String, usize>,
    resources_by_uri: HashMap<String, usize>,
    clashes: Vec<Clash>,
}

/// What an argument is completed for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// By its exposed name.
    Prompt(String),
    /// A template as it is listed, or a URI.
    Resource(String),
}

impl Shelf {
    /// Everything in the order in which it is listed; of items with one URI the first counts.
    #[must_use]
    pub fn new(
        upstreams: Vec<(String, Served)>,
        prompts: Vec<Prompt>,
        resources: Vec<Resource>,
        templates: Vec<Template>,
    ) -> Self {
        let mut shelf = Self {
            served: upstreams.iter().fold(Served::default(), |all, (_, served)| all.or(*served)),
            upstreams,
            ..Self::default()
        };
        for prompt in prompts {
            shelf.prompts_by_name.insert(prompt.exposed.clone(), shelf.prompts.len());
            shelf.prompts.push(Arc::new(prompt));
        }
        for resource in resources {
            match shelf.resources_by_uri.get(&resource.uri).map(|&at| &shelf.resources[at]) {
                Some(kept) => shelf.clashes.push(Clash::new(resource.upstream, resource.uri, &kept.upstream)),
                None => {
                    shelf.resources_by_uri.insert(resource.uri.clone(), shelf.resources.len());
                    shelf.resources.push(Arc::new(resource));
                }
            }
        }
        let mut by_template: HashMap<String, String> = HashMap::new();
        for template in templates {
            match by_template.get(&template.template) {
                Some(kept_by) => shelf.clashes.push(Clash::new(template.upstream, template.template, kept_by)),
                None => {
                    by_template.insert(template.template.clone(), template.upstream.clone());
                    shelf.templates.push(Arc::new(template));
                }
            }
        }
        shelf
    }

    /// Whether anything is known of an upstream.
    #[must_use]
    pub fn has(&self, upstream: &str) -> bool {
        self.upstreams.iter().any(|(name, _)| name == upstream)
    }

    /// What any of the upstreams serves.
    #[must_use]
    pub const fn served(&self) -> Served {
        self.served
    }

    #[must_use]
    pub fn prompts(&self) -> &[Arc<Prompt>] {
        &self.prompts
    }

    #[must_use]
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    #[must_use]
    pub fn templates(&self) -> &[Arc<Template>] {
        &self.templates
    }

    /// Whether both list the same resources and templates.
    #[must_use]
    pub fn same_resources(&self, other: &Self) -> bool {
        self.resources == other.resources && self.templates == other.templates
    }

    #[must_use]
    pub fn clashes(&self) -> &[Clash] {
        &self.clashes
    }

    #[must_use]
    pub fn prompt(&self, exposed: &str) -> Option<&Arc<Prompt>> {
        self.prompts_by_name.get(exposed).and_then(|&at| self.prompts.get(at))
    }

    /// The upstreams to ask for a resource, in this order: the one that lists it; else those with a template that fits,
    /// and then all others that have resources.
    #[must_use]
    pub fn readers(&self, uri: &str) -> Vec<String> {
        self.holders(uri, |served| served.resources)
    }

    /// The same for a subscription.
    #[must_use]
    pub fn publishers(&self, uri: &str) -> Vec<String> {
        self.holders(uri, |served| served.subscribe)
    }

    fn holders(&self, uri: &str, can: impl Fn(&Served) -> bool) -> Vec<String> {
        if let Some(resource) = self.resource(uri) {
            let able = self.upstreams.iter().any(|(name, served)| *name == resource.upstream && can(served));
            return if able { vec![resource.upstream.clone()] } else { Vec::new() };
        }
        let able = || self.upstreams.iter().filter(|(_, served)| can(served)).map(|(name, _)| name);
        let fits = |upstream: &str| {
            let mut own = self.templates.iter().filter(|template| template.upstream == upstream);
            own.any(|template| template.pattern.as_ref().is_some_and(|pattern| pattern.matches(uri)))
        };
        let (mut first, others): (Vec<String>, Vec<String>) = able().cloned().partition(|name| fits(name));
        first.extend(others);
        first
    }

    fn resource(&self, uri: &str) -> Option<&Arc<Resource>> {
        self.resources_by_uri.get(uri).and_then(|&at| self.resources.get(at))
    }

    /// The upstream that has what is referred to; `None` if there is no such thing.
    #[must_use]
    pub fn referred(&self, reference: &Reference) -> Option<String> {
        match reference {
            Reference::Prompt(name) => self.prompt(name).map(|prompt| prompt.upstream.clone()),
            Reference::Resource(uri) => {
                let template = self.templates.iter().find(|template| template.template == *uri);
                let resource = self.resource(uri).map(|resource| &resource.upstream);
                template.map(|template| &template.upstream).or(resource).cloned().or_else(|| {
                    let fits = |template: &&Arc<Template>| template.pattern.as_ref().is_some_and(|p| p.matches(uri));
                    self.templates.iter().find(fits).map(|template| template.upstream.clone())
                })
            }
        }
    }

    /// Whether this upstream completes arguments.
    #[must_use]
    pub fn completes(&self, upstream: &str) -> bool {
        self.upstreams.iter().any(|(name, served)| name == upstream && served.completions)
    }
}

impl Clash {
    fn new(upstream: String, item: String, kept_by: &str) -> Self {
        Self { upstream, item, kept_by: kept_by.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf() -> Shelf {
        let all = Served { prompts: true, resources: true, subscribe: true, completions: true, logging: true };
        let readable = Served { resources: true, ..Served::default() };
        let upstreams =
            [("a", readable), ("b", all), ("c", readable), ("d", Served::default())].map(|(n, s)| (n.to_owned(), s));
        let definition = || RawJson::trusted("{}");
        let resource = |upstream: &str, uri: &str| Resource {
            uri: uri.to_owned(),
            upstream: upstream.to_owned(),
            definition: definition(),
        };
        let template = |upstream: &str, template: &str| Template {
            template: template.to_owned(),
            upstream: upstream.to_owned(),
            definition: definition(),
            pattern: UriTemplate::parse(template),
        };
        let prompt = Prompt {
            exposed: "b__p".to_owned(),
            upstream: "b".to_owned(),
            upstream_prompt: "p".to_owned(),
            definition: definition(),
        };
        Shelf::new(
            upstreams.into(),
            vec![prompt],
            vec![resource("a", "x://1"), resource("c", "x://1"), resource("b", "x://2")],
            vec![template("c", "t://{id}"), template("b", "t://{id}"), template("b", "u://{id}")],
        )
    }

    #[test]
    fn a_uri_is_asked_of_who_lists_it_then_of_who_may_have_it() {
        let shelf = shelf();
        assert_eq!(shelf.readers("x://1"), ["a"]);
        assert_eq!(shelf.readers("t://7"), ["c", "a", "b"]);
        assert_eq!(shelf.readers("u://7"), ["b", "a", "c"]);
        assert_eq!(shelf.readers("z://"), ["a", "b", "c"]);
        assert_eq!(shelf.publishers("x://2"), ["b"]);
        assert_eq!(shelf.publishers("x://1"), [""; 0], "its upstream takes no subscriptions");
        assert_eq!(shelf.publishers("z://"), ["b"]);
    }

    #[test]
    fn the_first_configured_keeps_a_uri_and_the_clash_is_told() {
        let shelf = shelf();
        let shown: Vec<_> = shelf.resources().iter().map(|one| (one.uri.as_str(), one.upstream.as_str())).collect();
        assert_eq!(shown, [("x://1", "a"), ("x://2", "b")]);
        assert_eq!(shelf.templates().len(), 2);
        let clashes: Vec<_> =
            shelf.clashes().iter().map(|clash| (clash.upstream.as_str(), clash.kept_by.as_str())).collect();
        assert_eq!(clashes, [("c", "a"), ("b", "c")]);
    }

    #[test]
    fn a_reference_leads_to_its_upstream() {
        let shelf = shelf();
        let resource = |uri: &str| shelf.referred(&Reference::Resource(uri.to_owned()));
        assert_eq!(shelf.referred(&Reference::Prompt("b__p".to_owned())).as_deref(), Some("b"));
        assert_eq!(shelf.referred(&Reference::Prompt("p".to_owned())), None);
        assert_eq!(resource("u://{id}").as_deref(), Some("b"));
        assert_eq!(resource("u://9").as_deref(), Some("b"));
        assert_eq!(resource("x://1").as_deref(), Some("a"));
        assert_eq!(resource("z://"), None);
        assert!(shelf.completes("b") && !shelf.completes("a"));
        assert_eq!(
            shelf.served(),
            Served { prompts: true, resources: true, subscribe: true, completions: true, logging: true }
        );
    }
}
