//! Values: from the text of a variable or the types of the file to what a key means.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;

use crate::domain::redact::redact_url;

/// What a key may hold.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    /// Texts; in a variable separated by commas.
    TextList,
    /// Texts by name.
    TextTable,
    Flag,
    Count {
        min: u64,
        max: u64,
    },
    /// Bytes.
    Size {
        min: u64,
        max: u64,
    },
    /// With `none`, the word "none" means "without limit".
    Duration {
        min: Duration,
        max: Duration,
        none: bool,
    },
    Choice(&'static [&'static str]),
    TaskMode,
    Address,
    Url,
    OriginList,
    DatabaseUrl,
    /// One or more URLs of PostgreSQL servers; in a variable separated by commas.
    PostgresUrls,
    /// A database identifier that needs no quotes.
    Identifier,
    UpstreamName,
    Command,
    /// The URL of an MCP server, which may hold secrets.
    Endpoint,
    LogFilter,
}

/// A value as it was written.
#[derive(Clone, PartialEq)]
pub enum Raw {
    Text(String),
    /// An integer or float token of the file.
    Number(String),
    Flag(bool),
    List(Vec<Raw>),
    Table(BTreeMap<String, Located>),
    /// A TOML date or time, which no key takes.
    Date(String),
}

/// A value of the file and its line.
#[derive(Clone, PartialEq)]
pub struct Located {
    pub raw: Raw,
    pub line: usize,
}

/// A value as it is meant.
#[derive(Clone, PartialEq)]
pub enum Value {
    Text(String),
    List(Vec<String>),
    Table(BTreeMap<String, String>),
    Flag(bool),
    Number(u64),
    /// `None` is "without limit".
    Duration(Option<Duration>),
    Address(SocketAddr),
}

impl Kind {
    /// # Errors
    /// What is allowed instead.
    pub fn read(self, raw: &Raw) -> Result<Value, String> {
        self.try_read(raw).ok_or_else(|| format!("expected {self}"))
    }

    fn try_read(self, raw: &Raw) -> Option<Value> {
        match self {
            Self::Text => text(raw).map(Value::Text),
            Self::TextList => list(raw).map(Value::List),
            Self::TextTable => {
                let Raw::Table(table) = raw else { return None };
                let entry = |(name, value): (&String, &Located)| Some((name.clone(), text(&value.raw)?));
                table.iter().map(entry).collect::<Option<_>>().map(Value::Table)
            }
            Self::Flag => match raw {
                Raw::Flag(flag) => Some(Value::Flag(*flag)),
                Raw::Text(text) => text.parse().ok().map(Value::Flag),
                _ => None,
            },
            Self::Count { min, max } => number(raw).filter(|n| (min..=max).contains(n)).map(Value::Number),
            Self::Size { min, max } => {
                let bytes = number(raw).or_else(|| size(&text(raw)?))?;
                (min..=max).contains(&bytes).then_some(Value::Number(bytes))
            }
            Self::Duration { none: true, .. } if text(raw).as_deref() == Some("none") => Some(Value::Duration(None)),
            Self::Duration { min, max, .. } => {
                let duration =
                    number(raw).map(Duration::from_secs).or_else(|| humantime::parse_duration(&text(raw)?).ok())?;
                (min..=max).contains(&duration).then_some(Value::Duration(Some(duration)))
            }
            Self::Choice(words) => text(raw).filter(|text| words.contains(&text.as_str())).map(Value::Text),
            Self::TaskMode => {
                text(raw).filter(|text| text.parse::<crate::domain::mode::TaskMode>().is_ok()).map(Value::Text)
            }
            Self::Address => {
                let text = text(raw)?;
                let literal = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
                literal.unwrap_or(text).parse().ok().map(Value::Address)
            }
            Self::Url => text(raw).filter(|url| is_http_url(url)).map(Value::Text),
            Self::OriginList => list(raw).filter(|list| list.iter().all(|origin| is_origin(origin))).map(Value::List),
            Self::DatabaseUrl => text(raw).filter(|url| is_database_url(url)).map(Value::Text),
            Self::PostgresUrls => list(raw)
                .filter(|urls| !urls.is_empty() && urls.iter().all(|url| is_postgres_url(url)))
                .map(Value::List),
            Self::Identifier => text(raw).filter(|name| is_identifier(name)).map(Value::Text),
            Self::UpstreamName => text(raw).filter(|name| is_upstream_name(name)).map(Value::Text),
            Self::Command => {
                let words = match raw {
                    Raw::Text(line) => shell_words::split(line).ok()?,
                    Raw::List(_) => list(raw)?,
                    _ => return None,
                };
                words.first().is_some_and(|word| !word.is_empty()).then_some(Value::List(words))
            }
            Self::Endpoint => text(raw).filter(|url| is_endpoint(url)).map(Value::Text),
            Self::LogFilter => {
                let filter = text(raw)?;
                // A bare word is a target to it, of which everything is logged, and of the rest nothing.
                let is_said = |part: &str| part.contains(['=', '[', ']']) || part.trim().parse::<LevelFilter>().is_ok();
                filter.split(',').all(is_said).then_some(())?;
                tracing_subscriber::EnvFilter::try_new(&filter).ok().map(|_| Value::Text(filter))
            }
        }
    }
}

/// What is allowed, to follow "expected".
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("a text"),
            Self::TextList => f.write_str("a list of texts (in a variable: separated by commas)"),
            Self::TextTable => f.write_str("a table of texts"),
            Self::Flag => f.write_str("true or false"),
            Self::Count { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Size { min, max } => {
                write!(f, "a size from {} to {}, such as 64 KiB or a number of bytes", bytes(*min), bytes(*max))
            }
            Self::Duration { min, max, none } => {
                let least = if min.is_zero() { "0s".to_owned() } else { humantime::format_duration(*min).to_string() };
                write!(f, "a duration of at least {least}")?;
                if *max < Duration::from_secs(3_000_000_000) {
                    write!(f, " and at most {}", humantime::format_duration(*max))?;
                }
                f.write_str(", such as 90s or 1h 30min, or a number of seconds")?;
                f.write_str(if *none { ", or none" } else { "" })
            }
            Self::Choice(words) => f.write_str(&words.join(" or ")),
            Self::TaskMode => f.write_str("never, optional, eager or always"),
            Self::Address => f.write_str("an address and port, such as 127.0.0.1:8080 or [::1]:8080"),
            Self::Url => f.write_str("a URL that starts with http:// or https://, without ? and #"),
            Self::OriginList => {
                f.write_str("a list of origins such as https://app.example.com (in a variable: separated by commas)")
            }
            Self::DatabaseUrl => f.write_str(
                "a URL that starts with sqlite:, postgres:// or postgresql://, such as sqlite://taskhold.db",
            ),
            Self::PostgresUrls => f.write_str(
                "one or more URLs that start with postgres:// or postgresql://, in a list (in a variable: separated by \
                 commas)",
            ),
            Self::Identifier => f.write_str("1 to 63 of a-z, 0-9 and _, not starting with a digit"),
            Self::UpstreamName => f.write_str("1 to 32 of a-z, 0-9 and -"),
            Self::Command => f.write_str("a command line with balanced quotes, or a list of texts, the program first"),
            Self::Endpoint => f.write_str("a URL that starts with http:// or https://, without #"),
            Self::LogFilter => f.write_str("a level (error, warn, info, debug, trace, off) or a list of target=level"),
        }
    }
}

/// As a message shows it; passwords in URLs are hidden.
impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{:?}", redact_url(text)),
            Self::Number(token) | Self::Date(token) => f.write_str(token),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            // Its parts may be anything, secrets too.
            Self::Table(_) => f.write_str("a table"),
        }
    }
}

fn text(raw: &Raw) -> Option<String> {
    match raw {
        Raw::Text(text) => Some(text.clone()),
        _ => None,
    }
}

fn number(raw: &Raw) -> Option<u64> {
    match raw {
        Raw::Number(token) | Raw::Text(token) => token.parse().ok(),
        _ => None,
    }
}

fn list(raw: &Raw) -> Option<Vec<String>> {
    match raw {
        Raw::List(items) => items.iter().map(text).collect(),
        Raw::Text(text) => Some(text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()),
        _ => None,
    }
}

fn size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

fn bytes(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

fn is_http_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let host = rest.map(|rest| rest.split('/').next().unwrap_or_default()).unwrap_or_default();
    !host.is_empty()
        && !host.starts_with(':')
        && !host.contains('@')
        && !url.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '"' | '<' | '>'))
}

/// Whether a request can be sent there.
pub(super) fn is_endpoint(url: &str) -> bool {
    let is_http = reqwest::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let starts = url.starts_with("http://") || url.starts_with("https://");
    is_http && starts && !url.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#')
}

fn is_origin(origin: &str) -> bool {
    is_http_url(origin) && origin.matches('/').count() == 2
}

fn is_database_url(url: &str) -> bool {
    has_scheme(url, &["sqlite:"]) || is_postgres_url(url)
}

fn is_postgres_url(url: &str) -> bool {
    has_scheme(url, &["postgres://", "postgresql://"])
}

fn has_scheme(url: &str, schemes: &[&str]) -> bool {
    schemes.iter().any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| !rest.trim_start_matches('/').is_empty()))
}

fn is_identifier(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

pub(super) fn is_upstream_name(name: &str) -> bool {
    (1..=32).contains(&name.len()) && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, text: &str) -> Option<Value> {
        kind.try_read(&Raw::Text(text.to_owned()))
    }

    #[test]
    fn durations_are_human_text_or_seconds() {
        let kind = Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(7200), none: true };
        let seconds = |text| match read(kind, text) {
            Some(Value::Duration(Some(duration))) => Some(duration.as_secs()),
            _ => None,
        };
        assert_eq!(seconds("30s"), Some(30));
        assert_eq!(seconds("10 min"), Some(600));
        assert_eq!(seconds("1h 30min"), Some(5400));
        assert_eq!(seconds("90"), Some(90));
        for refused in ["0s", "3h", "-1", "soon", "", "1 fortnight"] {
            assert_eq!(seconds(refused), None, "{refused}");
        }
        assert!(read(kind, "none") == Some(Value::Duration(None)));
        assert!(kind.try_read(&Raw::Number("60".to_owned())).is_some());
        assert!(kind.try_read(&Raw::Flag(true)).is_none());
    }

    #[test]
    fn sizes_have_units_or_are_bytes() {
        let kind = Kind::Size { min: 1, max: 1 << 30 };
        for (text, bytes) in [("4 MiB", 4 << 20), ("4MiB", 4 << 20), ("512", 512), ("1 kB", 1000), ("7B", 7)] {
            assert!(read(kind, text) == Some(Value::Number(bytes)), "{text}");
        }
        for refused in ["0", "2 GiB", "4 mebibytes", "MiB", "1.5 MiB", "99999999999999999999 GiB"] {
            assert!(read(kind, refused).is_none(), "{refused}");
        }
    }

    #[test]
    fn addresses_urls_and_origins_are_checked() {
        for (kind, good, bad) in [
            (Kind::Address, &["127.0.0.1:0", "[::1]:8080", "localhost:80"][..], &["8080", "example.com:80", ":80"][..]),
            (
                Kind::Url,
                &["https://a.example", "http://a.example:8080/base"],
                &["a.example", "ftp://a", "https://", "https://a b", "https://a?x", "https://u:p@a"],
            ),
            (Kind::OriginList, &["https://a.example,http://b:81", ""], &["https://a.example/", "a.example"]),
            (Kind::DatabaseUrl, &["sqlite://x.db", "postgres://h/d"], &["mysql://h", "sqlite://"]),
            (
                Kind::PostgresUrls,
                &["postgres://h/d", "postgres://a/d, postgresql://b/d"],
                &["", ",", "sqlite://x.db", "postgres://h/d,sqlite://x.db", "postgres://"],
            ),
            (Kind::Identifier, &["taskhold", "_a1"], &["", "1a", "A", "a-b", "a.b"]),
            (Kind::UpstreamName, &["everything", "a-1"], &["", "A", "a_b", "a.b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]),
            (Kind::LogFilter, &["info", "warn,taskhold=debug"], &["taskhold=loud"]),
        ] {
            for text in good {
                assert!(read(kind, text).is_some(), "{kind:?} {text:?}");
            }
            for text in bad {
                assert!(read(kind, text).is_none(), "{kind:?} {text:?}");
            }
        }
    }

    #[test]
    fn commands_are_split_as_a_shell_splits_words() {
        let words = |text| match read(Kind::Command, text) {
            Some(Value::List(words)) => Some(words),
            _ => None,
        };
        assert_eq!(words("npx -y 'a b' \"c\""), Some(["npx", "-y", "a b", "c"].map(str::to_owned).to_vec()));
        for refused in ["", "  ", "'open", "''"] {
            assert_eq!(words(refused), None, "{refused:?}");
        }
    }
}
