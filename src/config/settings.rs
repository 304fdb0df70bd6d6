//! Checked values by key, from which the sections are filled.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::keys::Key;
use super::problem::Problem;
use super::sources::Written;
use super::value::{Located, Raw, Value};

/// The values of one list of keys: each key's own, or its default, or nothing where it has none.
///
/// The getters panic when a key is not in the list or is of another kind: that is a fault of a section's file, and
/// every test that loads a configuration finds it.
pub(super) struct Settings {
    values: BTreeMap<&'static str, Value>,
    /// Keys that somebody gave a value.
    written: BTreeSet<&'static str>,
}

impl Settings {
    /// Checks what was written; a bad value is reported and replaced by the default.
    pub fn read(
        keys: &'static [Key],
        prefix: &str,
        written: &BTreeMap<&'static str, Written>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut values = BTreeMap::new();
        for key in keys {
            let default = key.default.map(|text| {
                key.kind.read(&Raw::Text(text.to_owned())).expect("a test checks that every default is allowed")
            });
            let value = match written.get(key.path) {
                None => default,
                Some(written) => key.kind.read(&written.raw).map_or_else(
                    |expected| {
                        problems.push(Problem::bad_value(
                            &format!("{prefix}{}", key.path),
                            written,
                            key.secret,
                            &expected,
                        ));
                        default
                    },
                    Some,
                ),
            };
            values.extend(value.map(|value| (key.path, value)));
        }
        Self { values, written: written.keys().copied().collect() }
    }

    /// The same from one table of the file; answers also the entries that `besides` names.
    pub fn read_table(
        keys: &'static [Key],
        besides: &[&'static str],
        path: &str,
        table: &Located,
        place: &str,
        problems: &mut Vec<Problem>,
    ) -> (Self, BTreeMap<String, Located>) {
        let mut written = BTreeMap::new();
        let mut rest = BTreeMap::new();
        match &table.raw {
            Raw::Table(entries) => {
                for (name, value) in entries {
                    // Entries know their line, whatever is known of the table.
                    let place = format!("{} line {}", file_of(place), value.line);
                    if besides.contains(&name.as_str()) {
                        rest.insert(name.clone(), value.clone());
                    } else if let Some(key) = keys.iter().find(|key| key.path == name) {
                        written.insert(key.path, Written { raw: value.raw.clone(), place });
                    } else {
                        problems.push(Problem::unknown_entry(path, name, &place, keys, besides));
                    }
                }
            }
            other => problems.push(Problem::new(format!("{path} = {other} ({place}): expected a table"))),
        }
        (Self::read(keys, &format!("{path}."), &written, problems), rest)
    }

    /// Whether a key has its value from somebody, and not by default.
    pub fn is_written(&self, path: &str) -> bool {
        self.written.contains(path)
    }

    pub fn maybe_text(&self, path: &str) -> Option<String> {
        match self.values.get(path)? {
            Value::Text(text) => Some(text.clone()),
            _ => wrong(path),
        }
    }

    pub fn text(&self, path: &str) -> String {
        self.maybe_text(path).unwrap_or_else(|| wrong(path))
    }

    pub fn list(&self, path: &str) -> Vec<String> {
        match self.values.get(path) {
            Some(Value::List(list)) => list.clone(),
            None => Vec::new(),
            Some(_) => wrong(path),
        }
    }

    pub fn table(&self, path: &str) -> BTreeMap<String, String> {
        match self.values.get(path) {
            Some(Value::Table(table)) => table.clone(),
            None => BTreeMap::new(),
            Some(_) => wrong(path),
        }
    }

    pub fn maybe_flag(&self, path: &str) -> Option<bool> {
        match self.values.get(path)? {
            Value::Flag(flag) => Some(*flag),
            _ => wrong(path),
        }
    }

    pub fn flag(&self, path: &str) -> bool {
        match self.values.get(path) {
            Some(Value::Flag(flag)) => *flag,
            _ => wrong(path),
        }
    }

    /// A count or a size.
    pub fn number<N: TryFrom<u64>>(&self, path: &str) -> N {
        match self.values.get(path) {
            Some(Value::Number(number)) => N::try_from(*number).unwrap_or_else(|_| wrong(path)),
            _ => wrong(path),
        }
    }

    /// `None` is "without limit" or, for a key without a default, "not set".
    pub fn maybe_duration(&self, path: &str) -> Option<Duration> {
        match self.values.get(path)? {
            Value::Duration(duration) => *duration,
            _ => wrong(path),
        }
    }

    pub fn duration(&self, path: &str) -> Duration {
        self.maybe_duration(path).unwrap_or_else(|| wrong(path))
    }

    pub fn address(&self, path: &str) -> SocketAddr {
        match self.values.get(path) {
            Some(Value::Address(address)) => *address,
            _ => wrong(path),
        }
    }
}

fn wrong<T>(path: &str) -> T {
    panic!("{path} is not what its section's file takes it for")
}

fn file_of(place: &str) -> &str {
    place.split(" line ").next().unwrap_or(place)
}
