//! Arguments against a tool's input schema (EXEC-10, EXEC-24).
//!
//! The check runs on a copy of the arguments in which numbers beyond f64 and lone surrogates are replaced; the text
//! that goes to the upstream is never touched. Dialects: drafts 4, 6, 7, 2019-09 and 2020-12, which is the default.
//! References are resolved inside the schema and the known meta-schemas only, never over a network.

use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use serde_json::Value;

use super::cost::{Estimator, TooMuch};
use crate::domain::json::RawJson;
use crate::domain::text::storable;
use crate::executor::ArgumentCheck;
use crate::protocol::splice::member;

/// Bounds what a pattern with look-around or back-references may cost; patterns without them take linear time.
const BACKTRACK_LIMIT: usize = 100_000;
const PATTERN_BYTES: usize = 1 << 20;
/// How many faults a message names.
const MOST_FAULTS: usize = 3;
const MOST_FAULT_BYTES: usize = 300;

/// The check of a definition's `inputSchema`. A schema that cannot be used refuses all arguments and says why.
pub(super) fn arguments(definition: &RawJson) -> ArgumentCheck {
    let schema = member(definition.as_str(), "inputSchema").unwrap_or("{}");
    match compile(schema) {
        Ok(compiled) => ArgumentCheck::new(move |arguments| compiled.check(arguments)),
        Err(why) => ArgumentCheck::new(move |_| Err(format!("the tool's input schema cannot be used: {why}"))),
    }
}

/// Why a definition's `inputSchema` cannot be used.
pub(super) fn problem(definition: &RawJson) -> Option<String> {
    compile(member(definition.as_str(), "inputSchema").unwrap_or("{}")).err()
}

struct Compiled {
    validator: Validator,
    estimator: Option<Estimator>,
}

fn compile(text: &str) -> Result<Compiled, String> {
    let schema = replaced(text)?;
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
    Ok(Compiled { validator, estimator })
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

impl Compiled {
    fn check(&self, arguments: &RawJson) -> Result<(), String> {
        let copy = replaced(arguments.as_str()).map_err(|why| format!("the arguments cannot be checked: {why}"))?;
        if let Some(estimator) = &self.estimator {
            let too_much = |TooMuch| "the arguments cannot be checked: the tool's input schema makes it too much work";
            estimator.estimate(&copy).map_err(too_much)?;
        }
        let mut faults = self.validator.iter_errors(&copy);
        let first: Vec<_> = faults.by_ref().take(MOST_FAULTS).map(|error| describe(&error)).collect();
        if first.is_empty() {
            return Ok(());
        }
        let more = if faults.next().is_some() { "; and more" } else { "" };
        Err(format!("the arguments do not fit the tool's input schema: {}{more}", first.join("; ")))
    }
}

fn describe(error: &ValidationError<'_>) -> String {
    let path = error.instance_path().to_string();
    let text = if path.is_empty() { error.to_string() } else { format!("at {path}: {error}") };
    storable(&text, MOST_FAULT_BYTES)
}

/// JSON as a value, numbers beyond f64 brought to its limits and lone surrogates replaced by U+FFFD.
fn replaced(text: &str) -> Result<Value, String> {
    let mut copy = String::with_capacity(text.len());
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
            b'"' if token.contains("\\u") => replace_surrogates(token, &mut copy),
            b'-' | b'0'..=b'9' if token.parse().is_ok_and(f64::is_infinite) => {
                copy.push_str(if byte == b'-' { "-1.7976931348623157e308" } else { "1.7976931348623157e308" });
            }
            _ => copy.push_str(token),
        }
        at = end;
    }
    serde_json::from_str(&copy).map_err(|error| error.to_string())
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verdict(schema: &Value, arguments: &str) -> Result<(), String> {
        let definition = RawJson::from_value(&json!({ "name": "t", "inputSchema": schema }));
        super::arguments(&definition).check(&RawJson::trusted(arguments))
    }

    // req: EXEC-10
    #[test]
    fn the_message_says_where_and_why() {
        let schema = json!({
            "type": "object",
            "properties": { "a": { "type": "object", "properties": { "b": { "type": "integer" } } } },
            "required": ["c"],
        });
        assert_eq!(verdict(&schema, r#"{"a":{"b":1},"c":null,"more":[]}"#), Ok(()));
        let why = verdict(&schema, r#"{"a":{"b":"x"}}"#).unwrap_err();
        assert!(why.contains("at /a/b") && why.contains("integer") && why.contains("\"c\" is a required"), "{why}");
        let long = verdict(&schema, &format!(r#"{{"a":"{}"}}"#, "x".repeat(100_000))).unwrap_err();
        assert!(long.len() < 1200, "{}", long.len());
    }

    // req: EXEC-24
    #[test]
    fn the_declared_dialect_counts() {
        let tuple = |dialect: Option<&str>| {
            let mut schema = json!({ "properties": { "p": { "prefixItems": [{ "type": "string" }] } } });
            if let Some(dialect) = dialect {
                schema["$schema"] = json!(dialect);
            }
            verdict(&schema, r#"{"p":[1]}"#)
        };
        assert!(tuple(None).is_err(), "2020-12 without a declaration");
        assert!(tuple(Some("https://json-schema.org/draft/2020-12/schema")).is_err());
        assert!(tuple(Some("http://json-schema.org/draft-07/schema#")).is_ok(), "draft 7 does not know prefixItems");
        for unknown in ["https://example.com/my-dialect", "http://json-schema.org/draft-03/schema#", ""] {
            let why = tuple(Some(unknown)).unwrap_err();
            assert!(why.contains(&json!(unknown).to_string()) && why.contains("not supported"), "{why}");
        }
    }

    // req: EXEC-24
    #[test]
    fn what_cannot_be_resolved_is_named() {
        for reference in ["https://example.com/schema.json", "file:///etc/passwd", "#/$defs/missing", "other.json"] {
            let why = verdict(&json!({ "properties": { "x": { "$ref": reference } } }), r#"{"x":1}"#).unwrap_err();
            assert!(why.contains("cannot be used") && why.contains(reference.trim_start_matches("#/$defs/")), "{why}");
        }
        let recursive =
            json!({ "$ref": "#/$defs/t", "$defs": { "t": { "properties": { "t": { "$ref": "#/$defs/t" } } } } });
        assert_eq!(verdict(&recursive, r#"{"t":{"t":{}}}"#), Ok(()));
        let endless = [
            json!({ "$ref": "#" }),
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
            json!({ "allOf": [{ "$ref": "#" }] }),
            json!({ "not": { "anyOf": [{ "$ref": "#" }] } }),
            json!({ "$dynamicAnchor": "x", "properties": { "a": {} }, "allOf": [{ "$dynamicRef": "#x" }] }),
            json!({ "if": { "$ref": "#" }, "then": { "$ref": "#" } }),
        ];
        for schema in endless {
            let verdict = verdict(&schema, r#"{"t":1}"#);
            assert!(verdict.is_ok() || verdict.is_err_and(|why| why.contains("do not fit")), "{schema} ends");
        }
    }

    // req: EXEC-24
    #[test]
    fn patterns_are_bounded_in_time() {
        let started = std::time::Instant::now();
        let subject = format!(r#"{{"x":"{}!"}}"#, "a".repeat(50_000));
        for pattern in ["^(a+)+$", "^(a|aa)+$", "^(?!b)(a+)+$"] {
            let schema = json!({ "properties": { "x": { "type": "string", "pattern": pattern } } });
            assert!(verdict(&schema, &subject).is_err(), "{pattern}");
        }
        assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
        let look = json!({ "properties": { "x": { "pattern": "^(?!bad)" } } });
        assert_eq!(verdict(&look, r#"{"x":"good"}"#), Ok(()));
        assert!(verdict(&look, r#"{"x":"bad"}"#).is_err());
    }

    // req: EXEC-24
    #[test]
    fn what_no_parser_takes_is_checked_as_its_nearest() {
        let schema = json!({
            "properties": { "n": { "type": "number" }, "s": { "type": "string", "minLength": 2 }, "i": { "type": "integer" } },
        });
        let fine = r#"{"n":1e400,"s":"a\ud800","i":18446744073709551616,"z":-1e999,"\udc00":"\ud83e\udd80\\ud800"}"#;
        assert_eq!(verdict(&schema, fine), Ok(()));
        assert!(verdict(&schema, r#"{"n":"1e400"}"#).is_err());
        assert!(verdict(&schema, r#"{"s":"\ud800"}"#).unwrap_err().contains("/s"));
        let deep = format!(r#"{{"d":{}{}}}"#, "[".repeat(126), "]".repeat(126));
        assert_eq!(verdict(&schema, &deep), Ok(()));
    }
}
