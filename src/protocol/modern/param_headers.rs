//! Arguments that headers repeat, `Mcp-Param-*` (MOD-11): which ones, as a tool's input schema says by `x-mcp-header`, and
//! whether a call's headers say the same as its arguments.

use std::collections::HashSet;

use crate::domain::json::RawJson;
use crate::protocol::number::integer;
use crate::protocol::scan::string_value;
use crate::protocol::splice::{items, member, members, replace_member};

use super::headers::{Mismatch, decoded, encoded, one};

const ANNOTATION: &str = "x-mcp-header";

/// One annotated argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamHeader {
    /// The header's whole name, in lower case.
    pub header: String,
    /// The keys that lead to the argument.
    pub path: Vec<String>,
}

/// An annotation that no client could follow (EXEC-22).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAnnotation {
    #[error("x-mcp-header at {at} is not the name of a header")]
    NoName { at: String },
    #[error("x-mcp-header at {at} repeats {name:?}")]
    Repeated { at: String, name: String },
    #[error("x-mcp-header at {at} is not on a string, an integer or a boolean")]
    Type { at: String },
    #[error("x-mcp-header at {at} is not reached by properties alone")]
    Unreachable { at: String },
}

/// The annotated arguments of a tool, in the order of its schema.
///
/// # Errors
/// [`BadAnnotation`] for the first annotation that is invalid: then the whole definition is.
pub fn declared(definition: &RawJson) -> Result<Vec<ParamHeader>, BadAnnotation> {
    let mut walk = Walk::default();
    if let Some(schema) = member(definition.as_str(), "inputSchema") {
        walk.schema(schema, &Place { at: String::new(), keys: Some(Vec::new()) })?;
    }
    Ok(walk.found)
}

/// Where a schema stands.
struct Place {
    /// As a JSON pointer, to name it.
    at: String,
    /// The keys of the argument that it describes, if `properties` alone lead to it.
    keys: Option<Vec<String>>,
}

#[derive(Default)]
struct Walk {
    found: Vec<ParamHeader>,
    names: HashSet<String>,
}

impl Walk {
    fn schema(&mut self, schema: &str, place: &Place) -> Result<(), BadAnnotation> {
        for entry in members(schema) {
            let key = string_value(&format!("\"{}\"", entry.key)).unwrap_or_default().into_owned();
            let at = format!("{}/{key}", place.at);
            match key.as_str() {
                ANNOTATION => self.annotation(schema, entry.value, place)?,
                "properties" => {
                    for property in members(entry.value) {
                        let name = string_value(&format!("\"{}\"", property.key)).unwrap_or_default().into_owned();
                        let at = format!("{at}/{name}");
                        let keys = place.keys.clone().map(|keys| keys.into_iter().chain([name]).collect());
                        self.schema(property.value, &Place { at, keys })?;
                    }
                }
                key if holds_values(key) => {}
                _ => self.elsewhere(entry.value, at)?,
            }
        }
        Ok(())
    }

    /// Schemas that are reached in another way.
    fn elsewhere(&mut self, value: &str, at: String) -> Result<(), BadAnnotation> {
        if value.starts_with('[') {
            for (number, item) in items(value).enumerate() {
                self.elsewhere(item, format!("{at}/{number}"))?;
            }
            return Ok(());
        }
        if !value.starts_with('{') {
            return Ok(());
        }
        self.schema(value, &Place { at, keys: None })
    }

    fn annotation(&mut self, schema: &str, value: &str, place: &Place) -> Result<(), BadAnnotation> {
        let at = || place.at.clone();
        // A schema's own member of that name is text; an object is a property that happens to be called so.
        let name = match string_value(value) {
            Some(name) => name,
            None if value.starts_with('{') => return self.elsewhere(value, format!("{}/{ANNOTATION}", place.at)),
            None => return Err(BadAnnotation::NoName { at: at() }),
        };
        let Some(keys) = place.keys.clone().filter(|keys| !keys.is_empty()) else {
            return Err(BadAnnotation::Unreachable { at: at() });
        };
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(BadAnnotation::NoName { at: at() });
        }
        let kind = member(schema, "type").and_then(string_value);
        if !matches!(kind.as_deref(), Some("string" | "integer" | "boolean")) {
            return Err(BadAnnotation::Type { at: at() });
        }
        let header = format!("mcp-param-{}", name.to_ascii_lowercase());
        if !self.names.insert(header.clone()) {
            return Err(BadAnnotation::Repeated { at: at(), name: name.into_owned() });
        }
        self.found.push(ParamHeader { header, path: keys });
        Ok(())
    }
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// Whether a key of a schema holds values of users, not schemas.
fn holds_values(key: &str) -> bool {
    matches!(key, "default" | "const" | "enum" | "examples")
}

/// The definition without annotations: no header repeats its arguments.
#[must_use]
pub fn without_annotations(definition: &RawJson) -> RawJson {
    match member(definition.as_str(), "inputSchema") {
        Some(schema) => replace_member(definition, "inputSchema", &bare(schema, true)),
        None => definition.clone(),
    }
}

/// A value without annotations; `is_schema` says whether its own keys are those of a schema, not names of properties.
fn bare(value: &str, is_schema: bool) -> String {
    if value.starts_with('[') {
        let kept: Vec<_> = items(value).map(|item| bare(item, true)).collect();
        return format!("[{}]", kept.join(","));
    }
    if !value.starts_with('{') {
        return value.to_owned();
    }
    let kept = members(value).filter_map(|entry| {
        let key = string_value(&format!("\"{}\"", entry.key)).unwrap_or_default().into_owned();
        let value = match key.as_str() {
            _ if !is_schema => bare(entry.value, true),
            ANNOTATION if !entry.value.starts_with('{') => return None,
            "properties" => bare(entry.value, false),
            key if holds_values(key) => entry.value.to_owned(),
            _ => bare(entry.value, true),
        };
        Some(format!("\"{}\":{value}", entry.key))
    });
    format!("{{{}}}", kept.collect::<Vec<_>>().join(","))
}

impl ParamHeader {
    /// What the header has to say of `arguments`; `None` if there is no value that it could repeat.
    #[must_use]
    pub fn repeats(&self, arguments: &str) -> Option<String> {
        let found = self.value(arguments)?;
        Some(match string_value(found) {
            Some(text) => encoded(&text).into_owned(),
            None => integer(found).map_or_else(|| found.to_owned(), |number| number.to_string()),
        })
    }

    /// The argument, if it is a plain value.
    fn value<'a>(&self, arguments: &'a str) -> Option<&'a str> {
        let found = self.path.iter().try_fold(arguments, |object, key| member(object, key));
        found.filter(|raw| *raw != "null" && !raw.starts_with(['{', '[']))
    }

    /// Whether the header says what `arguments` say; `values` are those of the header.
    ///
    /// # Errors
    /// [`Mismatch`]; it shows no value.
    pub fn check(&self, values: &[&[u8]], arguments: &str) -> Result<(), Mismatch> {
        let field = || format!("arguments.{}", self.path.join("."));
        // What is no plain value cannot be repeated; whether it may be there, the tool's schema says.
        let Some(argument) = self.value(arguments) else {
            return if values.is_empty() {
                Ok(())
            } else {
                Err(Mismatch::Unfounded { header: self.header.clone(), field: field() })
            };
        };
        let said = decoded(&self.header, one(&self.header, values, &field())?)?;
        let is_same = match string_value(argument) {
            Some(text) => text == said,
            None => said == argument || integer(argument).is_some_and(|number| integer(&said) == Some(number)),
        };
        if is_same { Ok(()) } else { Err(Mismatch::Unlike { header: self.header.clone(), field: field() }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: &str) -> Result<Vec<ParamHeader>, BadAnnotation> {
        declared(&RawJson::trusted(format!(r#"{{"name":"t","inputSchema":{schema}}}"#)))
    }

    // req: MOD-11
    #[test]
    fn annotations_are_found_along_properties() {
        let schema = r#"{"type":"object","properties":{
            "region":{"type":"string","x-mcp-header":"Region"},
            "x-mcp-header":{"type":"string"},
            "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N-1"}}},
            "plain":{"type":"string","default":{"x-mcp-header":7}}}}"#
            .replace('\n', " ");
        let found = of(&schema).unwrap();
        let shown: Vec<_> = found.iter().map(|one| (one.header.as_str(), one.path.join("."))).collect();
        assert_eq!(shown, [("mcp-param-region", "region".to_owned()), ("mcp-param-n-1", "deep.n".to_owned())]);
        assert_eq!(of(r#"{"type":"object"}"#).unwrap(), []);
        assert_eq!(declared(&RawJson::trusted(r#"{"name":"t"}"#)).unwrap(), []);
    }

    // Of EXEC-22 what is invalid.
    #[test]
    fn an_annotation_that_no_client_can_follow_is_found() {
        let property = |text: &str| of(&format!(r#"{{"properties":{{"a":{text}}}}}"#)).unwrap_err();
        for bad in [r#""""#, r#""a b""#, r#""a:b""#, r#""a\nb""#, r#""é""#, "7", "null"] {
            let error = property(&format!(r#"{{"type":"string","x-mcp-header":{bad}}}"#));
            assert!(matches!(error, BadAnnotation::NoName { .. }), "{bad}: {error}");
        }
        for kind in [r#""number""#, r#""object""#, r#"["string","null"]"#] {
            let error = property(&format!(r#"{{"type":{kind},"x-mcp-header":"A"}}"#));
            assert!(matches!(error, BadAnnotation::Type { .. }), "{kind}");
        }
        assert!(matches!(property(r#"{"x-mcp-header":"A"}"#), BadAnnotation::Type { .. }));
        let twice =
            of(r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#);
        assert!(matches!(twice, Err(BadAnnotation::Repeated { .. })));
        let one = r#"{"type":"string","x-mcp-header":"A"}"#;
        for unreachable in [
            format!(r#"{{"items":{{"properties":{{"a":{one}}}}}}}"#),
            format!(r#"{{"properties":{{"a":{{"items":{one}}}}}}}"#),
            format!(r#"{{"anyOf":[{{}},{{"properties":{{"a":{one}}}}}]}}"#),
            format!(r#"{{"$defs":{{"a":{one}}}}}"#),
            r#"{"type":"string","x-mcp-header":"A"}"#.to_owned(),
        ] {
            assert!(matches!(of(&unreachable), Err(BadAnnotation::Unreachable { .. })), "{unreachable}");
        }
    }

    // req: MOD-11
    #[test]
    fn a_header_says_what_its_argument_says() {
        let header = ParamHeader { header: "mcp-param-a".to_owned(), path: vec!["o".to_owned(), "a".to_owned()] };
        let check = |values: &[&str], argument: &str| {
            let values: Vec<_> = values.iter().map(|value| value.as_bytes()).collect();
            header.check(&values, &format!(r#"{{"o":{{"a":{argument}}}}}"#))
        };
        for (value, argument) in [
            ("x", r#""x""#),
            ("\u{20}x ", r#""\u0078""#),
            ("=?base64?w6k=?=", r#""é""#),
            ("=?base64?MTI=?=", "12"),
            ("42.0", "42"),
            ("42", "4.2e1"),
            ("-7", "-7"),
            ("1.5", "1.5"),
            ("true", "true"),
        ] {
            assert_eq!(check(&[value], argument), Ok(()), "{value} {argument}");
        }
        for (value, argument) in [("X", r#""x""#), ("41", "42"), ("false", "true"), ("TRUE", "true"), ("", r#""x""#)] {
            assert!(matches!(check(&[value], argument), Err(Mismatch::Unlike { .. })), "{value} {argument}");
        }
        assert!(matches!(check(&[], r#""x""#), Err(Mismatch::Missing { .. })));
        assert!(matches!(check(&["x", "x"], r#""x""#), Err(Mismatch::Repeated { .. })));
        assert!(matches!(check(&["=?base64?SGVsbG8?="], r#""Hello""#), Err(Mismatch::Unreadable { .. })));
        for none in ["null", "{}", "[]"] {
            assert_eq!(check(&[], none), Ok(()));
            assert!(matches!(check(&["x"], none), Err(Mismatch::Unfounded { .. })), "{none}");
        }
        assert_eq!(header.check(&[], "{}"), Ok(()));
        assert!(header.check(&[b"x"], r#"{"o":7}"#).is_err());
        let why = check(&["secret"], r#""other""#).unwrap_err().to_string();
        assert!(why.contains("mcp-param-a") && why.contains("arguments.o.a") && !why.contains("secret"), "{why}");
    }

    // Of EXEC-18 the headers of arguments.
    #[test]
    fn a_header_repeats_a_plain_argument() {
        let header = ParamHeader { header: "mcp-param-a".to_owned(), path: vec!["o".to_owned(), "a".to_owned()] };
        let said = |argument: &str| header.repeats(&format!(r#"{{"o":{{"a":{argument}}}}}"#));
        for (argument, value) in [
            (r#""x""#, "x"),
            (r#""\u00e9""#, "=?base64?w6k=?="),
            ("42.0", "42"),
            ("-7", "-7"),
            ("true", "true"),
            (r#""""#, ""),
        ] {
            let repeated = said(argument).unwrap();
            assert_eq!(repeated, value, "{argument}");
            assert_eq!(header.check(&[repeated.as_bytes()], &format!(r#"{{"o":{{"a":{argument}}}}}"#)), Ok(()));
        }
        for none in ["null", "{}", "[1]"] {
            assert_eq!(said(none), None, "{none}");
        }
        assert_eq!(header.repeats("{}"), None);
    }

    // Of EXEC-22 what is listed of a server on standard streams.
    #[test]
    fn annotations_are_taken_out_and_nothing_else() {
        let definition = r#"{"name":"t","inputSchema":{"type":"object","x-mcp-header":7,"properties":{"x-mcp-header":{"type":"string","x-mcp-header":"A"},"d":{"default":{"x-mcp-header":"kept"},"n":1e400}},"anyOf":[{"x-mcp-header":"B","properties":{}}]},"x-mcp-header":"kept"}"#;
        assert_eq!(
            without_annotations(&RawJson::trusted(definition)).as_str(),
            r#"{"name":"t","inputSchema":{"type":"object","properties":{"x-mcp-header":{"type":"string"},"d":{"default":{"x-mcp-header":"kept"},"n":1e400}},"anyOf":[{"properties":{}}]},"x-mcp-header":"kept"}"#
        );
        let none = RawJson::trusted(r#"{"name":"t"}"#);
        assert_eq!(without_annotations(&none), none);
    }
}
