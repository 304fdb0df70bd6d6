//! JSON Schema checks of JSON that arrived: a call's arguments (EXEC-10, EXEC-24), the answers to forms (INPUT-13).
//!
//! A check runs on a copy in which numbers beyond f64 and lone surrogates are replaced; the text itself is never
//! touched. Dialects: drafts 4, 6, 7, 2019-09 and 2020-12, which is the default. References are resolved inside the
//! schema and the known meta-schemas only, never over a network.

mod cost;

use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use serde_json::Value;

use self::cost::{Estimator, TooMuch};
use super::distinct::Distinct;
use super::text::storable;

/// Bounds what a pattern with look-around or back-references may cost; patterns without them take linear time.
const BACKTRACK_LIMIT: usize = 100_000;
const PATTERN_BYTES: usize = 1 << 20;
/// How many faults a message names.
const MOST_FAULTS: usize = 3;
const MOST_FAULT_BYTES: usize = 300;

/// A schema, ready to check by.
pub struct Schema {
    validator: Validator,
    estimator: Option<Estimator>,
}

/// Why JSON did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be checked at all.
    Uncheckable(String),
    /// It does not fit; says where and why.
    Misfit(String),
}

impl Schema {
    /// # Errors
    /// Why the schema cannot be used.
    pub fn compile(text: &str) -> Result<Self, String> {
        let schema = copy(text)?;
        let estimator = Estimator::new(&schema, text.len())?;
        let options = || jsonschema::options().with_draft_of(&schema).map(jsonschema::ValidationOptions::offline);
        let linear = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
        let built = options()?.with_pattern_options(linear).build(&schema);
        let validator = built
            .or_else(|error| match options() {
                Ok(options) if is_about_a_pattern(&error) => {
                    let bounded = PatternOptions::fancy_regex()
                        .backtrack_limit(BACKTRACK_LIMIT)
                        .size_limit(PATTERN_BYTES)
                        .dfa_size_limit(PATTERN_BYTES);
                    options.with_pattern_options(bounded).build(&schema)
                }
                _ => Err(error),
            })
            .map_err(|error| describe(&error))?;
        Ok(Self { validator, estimator })
    }

    /// Whether a value as [`copy`] gives it fits; may take milliseconds for large ones.
    ///
    /// # Errors
    /// A [`Fault`], bounded in length.
    pub fn check(&self, copy: &Value) -> Result<(), Fault> {
        if let Some(estimator) = &self.estimator {
            let too_much = |TooMuch| Fault::Uncheckable("the schema makes it too much work".to_owned());
            estimator.estimate(copy).map_err(too_much)?;
        }
        let mut faults = self.validator.iter_errors(copy);
        let first: Vec<_> = faults.by_ref().take(MOST_FAULTS).map(|error| describe(&error)).collect();
        if first.is_empty() {
            return Ok(());
        }
        let more = if faults.next().is_some() { "; and more" } else { "" };
        Err(Fault::Misfit(format!("{}{more}", first.join("; "))))
    }
}

/// Chooses the dialect before anything is compiled.
trait WithDraftOf: Sized {
    fn with_draft_of(self, schema: &Value) -> Result<Self, String>;
}

impl WithDraftOf for jsonschema::ValidationOptions<'_> {
    fn with_draft_of(self, schema: &Value) -> Result<Self, String> {
        let Some(declared) = schema.get("$schema") else { return Ok(self.with_draft(Draft::Draft202012)) };
        let uri = declared.as_str().unwrap_or_default();
        let plain = uri.trim_end_matches('#').trim_start_matches("https://").trim_start_matches("http://");
        let draft = match plain {
            "json-schema.org/draft/2020-12/schema" => Draft::Draft202012,
            "json-schema.org/draft/2019-09/schema" => Draft::Draft201909,
            "json-schema.org/draft-07/schema" => Draft::Draft7,
            "json-schema.org/draft-06/schema" => Draft::Draft6,
            "json-schema.org/draft-04/schema" => Draft::Draft4,
            _ => return Err(format!("the dialect {declared} is not supported")),
        };
        Ok(self.with_draft(draft))
    }
}

fn is_about_a_pattern(error: &ValidationError<'_>) -> bool {
    let path = error.instance_path().to_string();
    path.contains("pattern") || error.to_string().contains("regex")
}

fn describe(error: &ValidationError<'_>) -> String {
    let path = error.instance_path().to_string();
    let text = if path.is_empty() { error.to_string() } else { format!("at {path}: {error}") };
    storable(&text, MOST_FAULT_BYTES)
}

/// JSON as a value to check, numbers beyond f64 brought to its limits and lone surrogates replaced by U+FFFD.
///
/// # Errors
/// Why it is no JSON.
pub fn copy(text: &str) -> Result<Value, String> {
    serde_json::from_str(&clean(text)?).map_err(|error| error.to_string())
}

/// The same of a text in which no object may have a member twice: the check would see one of the two alone.
///
/// # Errors
/// Why it is no JSON, or the member that is there twice.
pub fn distinct_copy(text: &str) -> Result<Value, String> {
    let clean = clean(text)?;
    serde_json::from_str::<Distinct>(&clean).map_err(|error| error.to_string())?;
    serde_json::from_str(&clean).map_err(|error| error.to_string())
}

fn clean(text: &str) -> Result<String, String> {
    let mut clean = String::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let end = match byte {
            b'"' => string_end(bytes, at),
            b'-' | b'0'..=b'9' => at + bytes[at..].iter().take_while(|byte| is_number_byte(**byte)).count(),
            // Everything else outside strings is ASCII in valid JSON; other bytes go on to the parser, which refuses them.
            _ => at + bytes[at..].iter().take_while(|byte| !matches!(byte, b'"' | b'-' | b'0'..=b'9')).count(),
        };
        let token = text.get(at..end).ok_or("it is not valid JSON")?;
        match byte {
            b'"' if token.contains("\\u") => replace_surrogates(token, &mut clean),
            b'-' | b'0'..=b'9' if token.parse().is_ok_and(f64::is_infinite) => {
                clean.push_str(if byte == b'-' { "-1.7976931348623157e308" } else { "1.7976931348623157e308" });
            }
            _ => clean.push_str(token),
        }
        at = end;
    }
    Ok(clean)
}

fn is_number_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

/// Where the string that starts at `start` ends, after its quote.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Copies a string token; a `\ud800`-like escape without its other half becomes `\ufffd`.
fn replace_surrogates(token: &str, copy: &mut String) {
    let unit = |at: usize| {
        let escape = token.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(escape, 16).ok()
    };
    let mut at = 0;
    while at < token.len() {
        let rest = &token[at..];
        let (taken, put) = match unit(at) {
            Some(0xD800..=0xDBFF) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => (12, &rest[..12]),
            Some(0xD800..=0xDFFF) => (6, "\\ufffd"),
            _ => {
                let escape = if rest.starts_with('\\') { 2 } else { 1 };
                let taken = rest.char_indices().nth(escape).map_or(rest.len(), |(at, _)| at);
                (taken, &rest[..taken])
            }
        };
        copy.push_str(put);
        at += taken;
    }
}
