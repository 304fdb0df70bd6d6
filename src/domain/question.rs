//! What a question must look like to be asked at all: as the specification's schema has it, since clients refuse or choke on
//! anything else.
//!
//! Lenient about members that are not known, and about forms that say of a value that it may be null, as some servers do.

use std::collections::BTreeSet;

use serde_json::Value;

use super::answer::form_schema;
use super::capabilities::params_of;
use super::input::{InputKind, Question};
use super::text::storable;

const NULL: &str = "null";

/// Why a question cannot be asked, naming the member. Says it to the work's author.
#[must_use]
pub fn problem(question: &Question) -> Option<String> {
    let params = params_of(question);
    let checked = match question.kind {
        InputKind::Elicitation => elicitation(question, &params),
        InputKind::Sampling => sampling(&params),
        InputKind::Roots => Ok(()),
    };
    checked.err()
}

fn elicitation(question: &Question, params: &Value) -> Result<(), String> {
    // Its mode is checked with it.
    let schema = form_schema(question)?;
    text(params, "message")?;
    if schema.is_some() {
        return form(&params["requestedSchema"]);
    }
    text(params, "elicitationId")?;
    let url = text(params, "url")?;
    if is_web(url) { Ok(()) } else { Err("url must begin with https:// or http:// and a host".to_owned()) }
}

/// Nothing else is opened in a browser by a click: `javascript:` and `file:` act on whoever does.
fn is_web(url: &str) -> bool {
    let rest = url
        .split_once("://")
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http"));
    let has_host = rest.is_some_and(|(_, rest)| !rest.is_empty() && !rest.starts_with(['/', '\\', '?', '#', ':']));
    has_host && !url.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn form(schema: &Value) -> Result<(), String> {
    if schema["type"] != "object" {
        return Err("requestedSchema.type must be object".to_owned());
    }
    let fields = schema["properties"].as_object().ok_or("requestedSchema.properties is missing or no object")?;
    for (name, field) in fields {
        // There has to be something to choose besides null.
        if kinds(field).is_none_or(|kinds| kinds.iter().all(|kind| *kind == NULL)) {
            let shown = storable(name, 60);
            return Err(format!(
                "requestedSchema.properties.{shown} must be a text, a number, a boolean, or a list of texts, and its \
                 choices and default of that type"
            ));
        }
    }
    Ok(())
}

/// The kinds of values that a field may have, by its type or its choices; `None` if there are others than simple ones, or
/// none at all.
fn kinds(field: &Value) -> Option<BTreeSet<&str>> {
    if !field.is_object() || ["properties", "$ref", "allOf"].iter().any(|name| field.get(name).is_some()) {
        return None;
    }
    if field["enum"].as_array().is_some_and(Vec::is_empty) {
        return None;
    }
    let named = match &field["type"] {
        Value::Null => return chosen(field),
        Value::Array(names) => names.iter().map(|name| simple(name.as_str()?)).collect::<Option<_>>()?,
        Value::String(name) if name == "array" => {
            // An answer's lists are of texts and nothing else.
            let is_of_texts = kinds(&field["items"])? == BTreeSet::from(["string"]);
            return is_of_texts.then(|| BTreeSet::from(["array"]));
        }
        name => BTreeSet::from([simple(name.as_str()?)?]),
    };
    choices(field).all(|value| is_of(value, &named)).then_some(named)
}

/// The kinds of the choices of a field that names no type.
fn chosen(field: &Value) -> Option<BTreeSet<&str>> {
    if let Some(choices) = ["anyOf", "oneOf"].iter().find_map(|name| field[*name].as_array()) {
        return choices.iter().try_fold(BTreeSet::new(), |all, choice| Some(&all | &kinds(choice)?));
    }
    match (field["enum"].as_array(), field.get("const")) {
        (Some(values), _) => values.iter().map(kind_of).collect(),
        (None, value) => Some(BTreeSet::from([kind_of(value?)?])),
    }
}

/// What may be chosen for a field that names its type, and what is chosen to begin with. Some servers say so by null.
fn choices(field: &Value) -> impl Iterator<Item = &Value> {
    let listed = field["enum"].as_array().into_iter().flatten();
    let titled = ["anyOf", "oneOf"].iter().filter_map(|name| field[*name].as_array()).flatten();
    let default = field.get("default").filter(|value| !value.is_null());
    listed.chain(titled.filter_map(|choice| choice.get("const"))).chain(field.get("const")).chain(default)
}

fn is_of(value: &Value, kinds: &BTreeSet<&str>) -> bool {
    // JSON Schema counts 1.0 among the integers.
    let is_whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
    kind_of(value).is_some_and(|kind| kinds.contains(kind)) || (is_whole && kinds.contains("integer"))
}

/// The kind's name, if it is a simple one.
fn simple(kind: &str) -> Option<&str> {
    matches!(kind, "string" | "number" | "integer" | "boolean" | NULL).then_some(kind)
}

const fn kind_of(value: &Value) -> Option<&'static str> {
    match value {
        Value::Null => Some(NULL),
        Value::Bool(_) => Some("boolean"),
        Value::Number(_) => Some("number"),
        Value::String(_) => Some("string"),
        Value::Array(_) | Value::Object(_) => None,
    }
}

fn sampling(params: &Value) -> Result<(), String> {
    let messages = params["messages"].as_array().ok_or("messages is missing or no list")?;
    for message in messages {
        if !matches!(message["role"].as_str(), Some("user" | "assistant")) {
            return Err("messages: role must be user or assistant".to_owned());
        }
        let is_content = match &message["content"] {
            Value::Array(blocks) => blocks.iter().all(Value::is_object),
            content => content.is_object(),
        };
        if !is_content {
            return Err("messages: content must be an object or a list of objects".to_owned());
        }
    }
    // JSON Schema counts 1.0 among the integers.
    let is_whole = params["maxTokens"].as_f64().is_some_and(|number| number.fract() == 0.0);
    if is_whole { Ok(()) } else { Err("maxTokens is missing or no integer".to_owned()) }
}

fn text<'a>(params: &'a Value, name: &str) -> Result<&'a str, String> {
    params[name].as_str().ok_or_else(|| format!("{name} is missing or no text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::json::RawJson;

    fn said(kind: InputKind, params: &str) -> Option<String> {
        problem(&Question { kind, params: Some(RawJson::trusted(params)) })
    }

    #[track_caller]
    fn refused(kind: InputKind, params: &str, word: &str) {
        let why = said(kind, params).unwrap_or_else(|| panic!("{params} is refused"));
        assert!(why.contains(word) && why.len() < 1200, "{params}: {why}");
    }

    fn with_field(field: &str) -> String {
        format!(r#"{{"message":"m","requestedSchema":{{"type":"object","properties":{{"f":{field}}}}}}}"#)
    }

    #[test]
    fn a_form_asks_for_texts_numbers_booleans_and_choices() {
        for fine in [
            r#"{"type":"string","format":"email","minLength":1,"x":1}"#,
            r#"{"type":"number","default":1.5}"#,
            r#"{"type":"integer"}"#,
            r#"{"type":"boolean"}"#,
            r#"{"type":"string","enum":["a"],"enumNames":["A"]}"#,
            r#"{"type":"string","oneOf":[{"const":"a","title":"A"}]}"#,
            r#"{"type":"array","items":{"type":"string","enum":["a"]}}"#,
            r#"{"type":"array","items":{"anyOf":[{"const":"a","title":"A"}]}}"#,
            r#"{"type":"array","items":{"type":"string"}}"#,
            r#"{"anyOf":[{"type":"string"},{"type":"null"}],"default":null}"#,
            r#"{"type":["integer","null"]}"#,
            r#"{"type":"string","enum":["a"],"default":"a"}"#,
            r#"{"type":"string","default":null}"#,
            r#"{"type":"integer","enum":[1,2.0],"default":1}"#,
            r#"{"type":["string","null"],"enum":["a",null]}"#,
            r#"{"enum":["a",1]}"#,
            r#"{"enum":["a",null]}"#,
            r#"{"anyOf":[{"enum":[1,2]},{"const":null}]}"#,
            r#"{"anyOf":[{"type":"array","items":{"enum":["a"]}},{"type":"null"}]}"#,
        ] {
            assert_eq!(said(InputKind::Elicitation, &with_field(fine)), None, "{fine}");
        }
        for odd in [
            r#"{"type":"object","properties":{}}"#,
            r#"{"type":"array","items":{"type":"object"}}"#,
            r#"{"type":"array","items":{"type":"number"}}"#,
            r#"{"type":"array"}"#,
            r#"{"type":"array","items":{"type":["string","integer"]}}"#,
            r#"{"type":"array","items":{"type":["string","null"]}}"#,
            r#"{"type":"array","items":{"enum":[1,2]}}"#,
            r#"{"type":"array","items":{"const":1}}"#,
            r#"{"type":"array","items":{"anyOf":[{"const":"a"},{"const":1}]}}"#,
            r#"{"type":"array","items":{"type":"array","items":{"type":"string"}}}"#,
            r#"{"type":"null"}"#,
            r#"{"type":["null"]}"#,
            r#"{"const":null}"#,
            r#"{"enum":[]}"#,
            r#"{"type":"string","enum":[]}"#,
            r#"{"type":"string","enum":[1]}"#,
            r#"{"type":"string","enum":["a",null]}"#,
            r#"{"type":"string","const":1}"#,
            r#"{"type":"string","oneOf":[{"const":"a"},{"const":1}]}"#,
            r#"{"type":"string","default":5}"#,
            r#"{"type":"boolean","default":"yes"}"#,
            r#"{"type":"integer","default":1.5}"#,
            r#"{"type":"array","items":{"type":"string","enum":[1]}}"#,
            r#"{"type":"array","items":{"type":"string","anyOf":[{"const":1}]}}"#,
            r#"{"enum":[null]}"#,
            r#"{"enum":[{}]}"#,
            r#"{"anyOf":[{"type":"null"}]}"#,
            r#"{"anyOf":[{"type":"null"},{"const":null}]}"#,
            r#"{"anyOf":[{"type":"string"},{"type":"object"}]}"#,
            "{}",
            "true",
        ] {
            refused(InputKind::Elicitation, &with_field(odd), "requestedSchema.properties.f");
        }
        for (params, word) in [
            ("{}", "requestedSchema is missing"),
            (r#"{"message":"m","requestedSchema":[]}"#, "requestedSchema is missing"),
            (r#"{"message":"m","requestedSchema":{"$ref":"https://example.com/x.json"}}"#, "cannot be used"),
            (r#"{"message":"m","requestedSchema":{"type":"string"}}"#, "requestedSchema.type"),
            (r#"{"message":"m","requestedSchema":{"properties":{}}}"#, "requestedSchema.type"),
            (r#"{"message":"m","requestedSchema":{"type":"object"}}"#, "requestedSchema.properties"),
            (r#"{"requestedSchema":{"type":"object","properties":{}}}"#, "message"),
            (r#"{"message":1,"requestedSchema":{"type":"object","properties":{}}}"#, "message"),
            (r#"{"message":"m","mode":"voice"}"#, "mode"),
        ] {
            refused(InputKind::Elicitation, params, word);
        }
        assert!(problem(&Question { kind: InputKind::Elicitation, params: None }).is_some());
    }

    #[test]
    fn a_url_leads_to_the_web_and_has_an_id() {
        let asked = |url: &str| format!(r#"{{"mode":"url","message":"m","elicitationId":"1","url":"{url}"}}"#);
        for fine in ["https://x.example/a?b#c", "http://127.0.0.1:8080", "HTTPS://x", "http://[::1]/"] {
            assert_eq!(said(InputKind::Elicitation, &asked(fine)), None, "{fine}");
        }
        for bad in [
            "javascript:alert(1)",
            "javascript://x/%0aalert(1)",
            "file:///etc/passwd",
            "x.example",
            "https:x",
            "https:///x",
            "https://x y",
            "https://x\\n",
            " https://x",
            "",
        ] {
            refused(InputKind::Elicitation, &asked(bad), "url");
        }
        refused(InputKind::Elicitation, r#"{"mode":"url","message":"m","url":"https://x"}"#, "elicitationId");
        refused(InputKind::Elicitation, r#"{"mode":"url","elicitationId":"1","url":"https://x"}"#, "message");
        refused(InputKind::Elicitation, r#"{"mode":"url","message":"m","elicitationId":"1"}"#, "url");
    }

    #[test]
    fn sampling_has_messages_and_a_bound() {
        for fine in [
            r#"{"messages":[],"maxTokens":1}"#,
            r#"{"messages":[{"role":"user","content":{"type":"text","text":"t"}}],"maxTokens":100.0,"x":1}"#,
            r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use"}]}],"maxTokens":1}"#,
        ] {
            assert_eq!(said(InputKind::Sampling, fine), None, "{fine}");
        }
        for (params, word) in [
            ("{}", "messages"),
            (r#"{"messages":"hello","maxTokens":1}"#, "messages"),
            (r#"{"messages":[1],"maxTokens":1}"#, "role"),
            (r#"{"messages":[{"role":"system","content":{}}],"maxTokens":1}"#, "role"),
            (r#"{"messages":[{"role":"user","content":"t"}],"maxTokens":1}"#, "content"),
            (r#"{"messages":[]}"#, "maxTokens"),
            (r#"{"messages":[],"maxTokens":"1"}"#, "maxTokens"),
            (r#"{"messages":[],"maxTokens":1.5}"#, "maxTokens"),
        ] {
            refused(InputKind::Sampling, params, word);
        }
        assert_eq!(problem(&Question { kind: InputKind::Roots, params: None }), None);
    }
}
