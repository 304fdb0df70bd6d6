//! What is wrong with a configuration, in words that say what to do.

use std::fmt;

use super::keys::{KEYS, Key};
use super::sources::Written;

/// Everything that is wrong, so that it can be put right in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }

    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used")?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// One thing that is wrong. Never holds the value of a secret key or a password in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(String);

impl Problem {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn unknown_key(path: &str, place: &str) -> Self {
        let section = path.split_once('.').map_or("", |(section, _)| section);
        let known = KEYS.iter().any(|key| key.section() == section);
        let allowed = match section {
            "" => format!("at the top of the file: log; sections: {}", sections()),
            _ if known => {
                let keys = KEYS.iter().filter(|key| key.section() == section);
                format!("in [{section}]: {}", names(keys.map(Key::name)))
            }
            _ => format!("as sections: {}", sections()),
        };
        Self(format!("unknown key {path} ({place}); allowed {allowed}"))
    }

    pub(super) fn unknown_entry(path: &str, name: &str, place: &str, allowed: &[Key], more: &[&'static str]) -> Self {
        let allowed = names(allowed.iter().map(Key::name).chain(more.iter().copied()));
        Self(format!("unknown key {path}.{name} ({place}); allowed in {path}: {allowed}"))
    }

    pub(super) fn unknown_variable(name: &str, place: &str) -> Self {
        let place = if place.is_empty() { " in the environment" } else { place };
        let section = |variable: &str| variable.split('_').nth(1).map(str::to_owned);
        let near: Vec<String> =
            KEYS.iter().map(Key::variable).filter(|known| section(known) == section(name)).collect();
        let allowed = if near.is_empty() { KEYS.iter().map(Key::variable).collect() } else { near };
        Self(format!("unknown variable {name}{place}; allowed: {}", allowed.join(", ")))
    }

    pub(super) fn bad_value(path: &str, written: &Written, secret: bool, expected: &str) -> Self {
        let shown = if secret { "(not shown)".to_owned() } else { written.raw.to_string() };
        Self(format!("{path} = {shown} ({}): {expected}", written.place))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn sections() -> String {
    let mut sections: Vec<&str> = KEYS.iter().map(Key::section).filter(|section| !section.is_empty()).collect();
    sections.dedup();
    sections.extend(["upstreams", "tenants"]);
    sections.join(", ")
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
