//! Where values come from: the file, `./.env`, the environment, flags. The only code that reads them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::keys::KEYS;
use super::problem::Problem;
use super::value::{Located, Raw};

/// The file that is read when `--config` names none, if it is there.
pub const DEFAULT_FILE: &str = "taskhold.toml";

/// What the command line says. Wins over everything else.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// Flag, path of its key, value.
    pub flags: Vec<(&'static str, &'static str, String)>,
    /// `--upstream NAME=COMMAND LINE`, in their order.
    pub upstreams: Vec<String>,
}

/// Everything that a configuration is made from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Where the default file and `.env` are looked for, and nowhere else.
    pub directory: PathBuf,
    pub environment: Vec<(OsString, OsString)>,
    pub overrides: Overrides,
}

impl Sources {
    /// This process's environment and working directory.
    #[must_use]
    pub fn of_process(overrides: Overrides) -> Self {
        Self { directory: PathBuf::from("."), environment: std::env::vars_os().collect(), overrides }
    }
}

/// A value and where it stands, for messages.
#[derive(Clone)]
pub(super) struct Written {
    pub raw: Raw,
    pub place: String,
}

/// What was written, the sources laid over one another; not yet checked against what is allowed.
#[derive(Default)]
pub(super) struct Layers {
    /// By the path of a key.
    pub values: BTreeMap<&'static str, Written>,
    pub upstreams: Vec<(Located, String)>,
    pub upstream_flags: Vec<String>,
    pub tenants: BTreeMap<String, (Located, String)>,
    /// The environment with `.env` below it, for `${NAME}`.
    pub environment: BTreeMap<String, String>,
}

impl Layers {
    pub fn gather(sources: &Sources, problems: &mut Vec<Problem>) -> Self {
        let mut layers = Self::default();
        layers.read_file(sources, problems);
        let dotenv = read_dotenv(&sources.directory.join(".env"), problems);
        layers.read_variables(dotenv, " in .env", problems);
        let environment = sources.environment.iter().filter_map(|(name, value)| {
            let name = name.to_str()?;
            match value.to_str() {
                Some(value) => Some((name.to_owned(), value.to_owned())),
                None => {
                    if is_ours(name) {
                        problems.push(Problem::new(format!("{name} in the environment is not UTF-8")));
                    }
                    None
                }
            }
        });
        let environment: Vec<_> = environment.collect();
        layers.read_variables(environment, "", problems);
        for (flag, path, value) in &sources.overrides.flags {
            layers.values.insert(path, Written { raw: Raw::Text(value.clone()), place: (*flag).to_owned() });
        }
        layers.upstream_flags.clone_from(&sources.overrides.upstreams);
        layers
    }

    fn read_file(&mut self, sources: &Sources, problems: &mut Vec<Problem>) {
        let named = sources.overrides.file.as_deref();
        let path = named.map_or_else(|| sources.directory.join(DEFAULT_FILE), Path::to_path_buf);
        let shown = named.unwrap_or(Path::new(DEFAULT_FILE)).display();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => return,
            Err(error) => return problems.push(Problem::new(format!("the file {shown} cannot be read: {error}"))),
        };
        let table = match toml::de::DeTable::parse(&text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                // Its own text would quote the line, which may hold a secret.
                let line = error.span().map_or(1, |span| line_of(&text, span.start));
                let why = error.message();
                return problems.push(Problem::new(format!("{shown} line {line} is not TOML: {why}")));
            }
        };
        let Raw::Table(table) = raw_table(&text, &table) else { return };
        for (name, value) in table {
            let place = format!("{shown} line {}", value.line);
            match (name.as_str(), value.raw) {
                ("upstreams", Raw::List(items)) => {
                    // A list of tables has the line of its first entry only; the names in it say which is which.
                    let entry = |raw| (Located { raw, line: value.line }, format!("{shown}"));
                    self.upstreams = items.into_iter().map(entry).collect();
                }
                ("upstreams", _) => {
                    problems.push(Problem::new(format!(
                        "upstreams ({place}) is not a list of tables; write [[upstreams]]"
                    )));
                }
                ("tenants", Raw::Table(tenants)) => {
                    let entry = |(name, tenant): (String, Located)| {
                        let place = format!("{shown} line {}", tenant.line);
                        (name, (tenant, place))
                    };
                    self.tenants = tenants.into_iter().map(entry).collect();
                }
                ("tenants", _) => {
                    problems.push(Problem::new(format!(
                        "tenants ({place}) is not a table of tables; write [tenants.NAME]"
                    )));
                }
                (section, Raw::Table(entries)) if KEYS.iter().any(|key| key.section() == section) => {
                    for (name, value) in entries {
                        self.put(
                            &format!("{section}.{name}"),
                            value.raw,
                            &format!("{shown} line {}", value.line),
                            problems,
                        );
                    }
                }
                (name, raw) => self.put(name, raw, &place, problems),
            }
        }
    }

    fn put(&mut self, path: &str, raw: Raw, place: &str, problems: &mut Vec<Problem>) {
        match KEYS.iter().find(|key| key.path == path) {
            Some(key) => {
                self.values.insert(key.path, Written { raw, place: place.to_owned() });
            }
            None => problems.push(Problem::unknown_key(path, place)),
        }
    }

    fn read_variables(&mut self, variables: Vec<(String, String)>, place: &str, problems: &mut Vec<Problem>) {
        for (name, value) in variables {
            if is_ours(&name) {
                match KEYS.iter().find(|key| key.variable() == name) {
                    // What compose files pass for "not set".
                    Some(_) if value.is_empty() => {}
                    Some(key) => {
                        let place = format!("{name}{place}");
                        self.values.insert(key.path, Written { raw: Raw::Text(value.clone()), place });
                    }
                    None => problems.push(Problem::unknown_variable(&name, place)),
                }
            }
            self.environment.insert(name, value);
        }
    }
}

/// Whether a variable is configuration. Kubernetes sets `TASKHOLD_SERVICE_*` and `TASKHOLD_PORT*` for a service of that
/// name; `TASKHOLD_TEST_*` steers tests.
fn is_ours(name: &str) -> bool {
    name.strip_prefix("TASKHOLD_").is_some_and(|rest| {
        let foreign = ["SERVICE_", "PORT_", "TEST_"].iter().any(|prefix| rest.starts_with(prefix));
        !foreign && rest != "PORT"
    })
}

fn read_dotenv(path: &Path, problems: &mut Vec<Problem>) -> Vec<(String, String)> {
    let entries = match dotenvy::from_path_iter(path) {
        Ok(entries) => entries,
        Err(dotenvy::Error::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(_) => {
            problems.push(Problem::new("the file .env cannot be read".to_owned()));
            return Vec::new();
        }
    };
    let mut variables = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => variables.push(entry),
            // Its own text would quote the line, which may hold a secret.
            Err(_) => {
                let after = variables.last().map_or("at its start".to_owned(), |(name, _)| format!("after {name}"));
                problems.push(Problem::new(format!(".env has a line that is not NAME=value, {after}")));
                break;
            }
        }
    }
    variables
}

fn raw_table(text: &str, table: &toml::de::DeTable<'_>) -> Raw {
    let entry = |(name, value): (&toml::Spanned<std::borrow::Cow<'_, str>>, &toml::Spanned<toml::de::DeValue<'_>>)| {
        let line = line_of(text, name.span().start);
        (name.get_ref().to_string(), Located { raw: raw_value(text, value.get_ref()), line })
    };
    Raw::Table(table.iter().map(entry).collect())
}

fn raw_value(text: &str, value: &toml::de::DeValue<'_>) -> Raw {
    use toml::de::DeValue;
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(number) => Raw::Number(match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => number.to_string(),
        }),
        DeValue::Float(number) => Raw::Number(number.to_string()),
        DeValue::Boolean(flag) => Raw::Flag(*flag),
        DeValue::Datetime(time) => Raw::Date(time.to_string()),
        DeValue::Array(items) => Raw::List(items.iter().map(|item| raw_value(text, item.get_ref())).collect()),
        DeValue::Table(table) => raw_table(text, table),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count()
}
