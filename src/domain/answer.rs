//! What an answer to a question must look like (INPUT-13).
//!
//! Strict about the shape that each kind demands, lenient about members that are not known: those go to the work as they
//! are. Checks run on copies; the text that the work gets is the text that arrived.

use serde_json::{Value, json};

use super::capabilities::params_of;
use super::input::{Answer, InputKind, Question};
use super::json::RawJson;
use super::schema::{self, Fault, Schema};
use super::text::storable;

/// Whether the answer fits its question. A JSON-RPC error always does (INPUT-06).
///
/// # Errors
/// What is wrong with it, naming the member.
pub fn check(question: &Question, answer: &Answer) -> Result<(), String> {
    let Answer::Result(result) = answer else { return Ok(()) };
    let result = schema::distinct_copy(result.as_str())?;
    if !result.is_object() {
        return Err("the result is not an object".to_owned());
    }
    if result.get("_meta").is_some_and(|meta| !meta.is_object()) {
        return Err("_meta is not an object".to_owned());
    }
    match question.kind {
        InputKind::Elicitation => elicited(question, &result),
        InputKind::Sampling => sampled(&result),
        InputKind::Roots => listed(&result),
    }
}

/// What a task's status says while this is asked (LIFE-10), at most `limit` bytes.
#[must_use]
pub fn summary(question: &Question, limit: usize) -> String {
    let params = params_of(question);
    let asked = params.get("message").and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let text = match question.kind {
        InputKind::Elicitation => {
            asked.map_or_else(|| "waiting for input".to_owned(), |text| format!("waiting for input: {text}"))
        }
        InputKind::Sampling => "waiting for a message of the client's model".to_owned(),
        InputKind::Roots => "waiting for the client's roots".to_owned(),
    };
    storable(&text, limit)
}

/// An error of ours in the place of an answer: see [`own_error`].
#[must_use]
pub fn refusal(code: i64, reason: &str, message: &str) -> Answer {
    Answer::Error(own_error(code, reason, message))
}

/// A JSON-RPC error object with a word in `data.reason` that says why.
#[must_use]
pub fn own_error(code: i64, reason: &str, message: &str) -> RawJson {
    RawJson::from_value(&json!({ "code": code, "message": message, "data": { "reason": reason } }))
}

/// The schema of an elicitation's form; `None` if it leads to a URL instead.
pub(super) fn form_schema(question: &Question) -> Result<Option<Schema>, String> {
    let params = params_of(question);
    match params.get("mode").map(Value::as_str) {
        None | Some(Some("form")) => {}
        Some(Some("url")) => return Ok(None),
        Some(_) => return Err("mode must be form or url".to_owned()),
    }
    let requested = params.get("requestedSchema").filter(|requested| requested.is_object());
    let requested = requested.ok_or("requestedSchema is missing or no object")?;
    let compiled = Schema::compile(&requested.to_string());
    compiled.map(Some).map_err(|why| format!("requestedSchema cannot be used: {why}"))
}

fn elicited(question: &Question, result: &Value) -> Result<(), String> {
    let action = text(result, "action")?;
    if !matches!(action, "accept" | "decline" | "cancel") {
        return Err("action must be accept, decline or cancel".to_owned());
    }
    let content = result.get("content").filter(|content| !content.is_null());
    if content.is_some_and(|content| !content.is_object()) {
        return Err("content is not an object".to_owned());
    }
    if action != "accept" {
        return Ok(());
    }
    let Some(schema) = form_schema(question)? else {
        let has_some = content.and_then(Value::as_object).is_some_and(|content| !content.is_empty());
        return if has_some { Err("content has no place in the answer to a URL".to_owned()) } else { Ok(()) };
    };
    let content = content.ok_or("content is missing: an accepted form has it")?;
    let params = params_of(question);
    for (name, value) in content.as_object().into_iter().flatten() {
        // Of a field that was asked for, the schema says whether it may be null.
        let may_be_null = || params["requestedSchema"]["properties"].get(name).is_some();
        if !(is_form_value(value) || value.is_null() && may_be_null()) {
            let shown = storable(name, 60);
            return Err(format!("content.{shown} must be a text, a number, a boolean or a list of texts"));
        }
    }
    schema.check(content).map_err(|fault| match fault {
        Fault::Misfit(why) => format!("content does not fit the requested schema: {why}"),
        Fault::Uncheckable(why) => format!("content cannot be checked: {why}"),
    })
}

fn is_form_value(value: &Value) -> bool {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => true,
        Value::Array(items) => items.iter().all(Value::is_string),
        Value::Null | Value::Object(_) => false,
    }
}

fn sampled(result: &Value) -> Result<(), String> {
    if !matches!(text(result, "role")?, "user" | "assistant") {
        return Err("role must be user or assistant".to_owned());
    }
    text(result, "model")?;
    match result.get("content") {
        Some(Value::Array(blocks)) => blocks.iter().try_for_each(block),
        Some(content) => block(content),
        None => Err("content is missing".to_owned()),
    }
}

/// One content block of a sampled message. Types that are not known pass.
fn block(block: &Value) -> Result<(), String> {
    if !block.is_object() {
        return Err("content is neither an object nor a list of objects".to_owned());
    }
    let texts: &[&str] = match text(block, "type").map_err(|why| format!("content: {why}"))? {
        "text" => &["text"],
        "image" | "audio" => &["data", "mimeType"],
        "tool_use" => &["id", "name"],
        "tool_result" => &["toolUseId"],
        _ => &[],
    };
    texts.iter().try_for_each(|name| text(block, name).map(|_| ())).map_err(|why| format!("content: {why}"))
}

fn listed(result: &Value) -> Result<(), String> {
    let roots = result.get("roots").and_then(Value::as_array).ok_or("roots is missing or no list")?;
    for root in roots {
        if !text(root, "uri").map_err(|why| format!("roots: {why}"))?.starts_with("file://") {
            return Err("roots: uri must begin with file://".to_owned());
        }
        if root.get("name").is_some_and(|name| !name.is_string() && !name.is_null()) {
            return Err("roots: name is not a text".to_owned());
        }
    }
    Ok(())
}

fn text<'a>(object: &'a Value, name: &str) -> Result<&'a str, String> {
    object.get(name).and_then(Value::as_str).ok_or_else(|| format!("{name} is missing or no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(kind: InputKind, params: &str) -> Question {
        Question { kind, params: Some(RawJson::trusted(params)) }
    }

    fn verdict(question: &Question, result: &str) -> Result<(), String> {
        check(question, &Answer::Result(RawJson::trusted(result)))
    }

    #[track_caller]
    fn refused(question: &Question, result: &str, word: &str) {
        let why = verdict(question, result).unwrap_err();
        assert!(why.contains(word) && why.len() < 1200, "{result}: {why}");
    }

    fn form() -> Question {
        let schema = r#"{"type":"object","properties":{"n":{"type":"integer","maximum":9},"s":{"type":"string"},"l":{"type":"array","items":{"enum":["a","b"]}}},"required":["n"]}"#;
        question(InputKind::Elicitation, &format!(r#"{{"message":"How many?","requestedSchema":{schema}}}"#))
    }

    // req: INPUT-13 (legacy half)
    #[test]
    fn a_form_is_checked_by_its_schema() {
        let form = form();
        for fine in [
            r#"{"action":"accept","content":{"n":3}}"#,
            r#"{"action":"accept","content":{"n":3,"s":"\ud800","l":["a"],"more":true},"x":1e999,"_meta":{}}"#,
            r#"{"action":"decline"}"#,
            r#"{"action":"cancel","content":null}"#,
            r#"{"action":"decline","content":{"n":"whatever"}}"#,
        ] {
            assert_eq!(verdict(&form, fine), Ok(()), "{fine}");
        }
        for (bad, word) in [
            ("{}", "action"),
            (r#"{"action":"yes"}"#, "accept, decline or cancel"),
            (r#"{"action":"accept"}"#, "content is missing"),
            (r#"{"action":"accept","content":null}"#, "content is missing"),
            (r#"{"action":"decline","content":[]}"#, "content is not an object"),
            (r#"{"action":"accept","content":{}}"#, "\"n\" is a required"),
            (r#"{"action":"accept","content":{"n":10}}"#, "/n"),
            (r#"{"action":"accept","content":{"n":"3"}}"#, "/n"),
            (r#"{"action":"accept","content":{"n":3,"l":["c"]}}"#, "/l/0"),
            (r#"{"action":"accept","content":{"n":3,"o":{"p":1}}}"#, "content.o must be"),
            (r#"{"action":"accept","content":{"n":3,"o":[1]}}"#, "content.o must be"),
            (r#"{"action":"accept","content":{"n":null}}"#, "/n"),
            (r#"{"action":"accept","content":{"n":3,"l":[null]}}"#, "content.l must be"),
            (r#"{"action":"accept","content":{"n":3,"more":null}}"#, "content.more must be"),
            (r#"{"action":"accept","content":{"n":3},"_meta":1}"#, "_meta"),
            (r#"{"action":"accept","content":{"n":"x","n":3}}"#, "\"n\" is there twice"),
            (r#"{"action":"accept","content":{"n":3},"x":[{"a":1,"\u0061":1}]}"#, "\"a\" is there twice"),
            (r#"{"action":"decline","action":"accept","content":{"n":3}}"#, "\"action\" is there twice"),
            ("[]", "not an object"),
            ("7", "not an object"),
        ] {
            refused(&form, bad, word);
        }
    }

    // req: INPUT-13 (legacy half)
    #[test]
    fn a_field_that_may_be_null_is_answered_by_null() {
        for field in [
            r#"{"anyOf":[{"type":"string"},{"type":"null"}],"default":null}"#,
            r#"{"type":["integer","null"]}"#,
            r#"{"enum":["a",null]}"#,
            r#"{"anyOf":[{"type":"array","items":{"type":"string"}},{"const":null}]}"#,
        ] {
            let schema = format!(r#"{{"type":"object","properties":{{"f":{field}}},"required":["f"]}}"#);
            let form = question(InputKind::Elicitation, &format!(r#"{{"message":"m","requestedSchema":{schema}}}"#));
            assert_eq!(crate::domain::question::problem(&form), None, "{field}");
            assert_eq!(verdict(&form, r#"{"action":"accept","content":{"f":null}}"#), Ok(()), "{field}");
            refused(&form, r#"{"action":"accept","content":{}}"#, "\"f\" is a required");
        }
    }

    // req: INPUT-13 (legacy half)
    #[test]
    fn a_url_is_answered_without_content_or_with_an_empty_one() {
        let url =
            question(InputKind::Elicitation, r#"{"mode":"url","message":"m","url":"https://x","elicitationId":"1"}"#);
        assert_eq!(verdict(&url, r#"{"action":"accept"}"#), Ok(()));
        assert_eq!(verdict(&url, r#"{"action":"accept","content":{}}"#), Ok(()));
        refused(&url, r#"{"action":"accept","content":{"secret":"x"}}"#, "no place");
    }

    // req: INPUT-13 (legacy half)
    #[test]
    fn a_sampled_message_has_role_model_and_content() {
        let sampling = question(InputKind::Sampling, "{}");
        let with = |content: &str| format!(r#"{{"role":"assistant","model":"m","content":{content}}}"#);
        for fine in [
            r#"{"type":"text","text":"t","x":1}"#,
            r#"{"type":"image","data":"AA==","mimeType":"image/png"}"#,
            r#"[{"type":"tool_use","id":"1","name":"n","input":{}},{"type":"tool_result","toolUseId":"1","content":[]}]"#,
            "[]",
            r#"{"type":"hologram"}"#,
        ] {
            assert_eq!(verdict(&sampling, &with(fine)), Ok(()), "{fine}");
        }
        for bad in [
            "1",
            "null",
            "[1]",
            "{}",
            r#"{"type":"text"}"#,
            r#"{"type":"audio","data":""}"#,
            r#"[{"type":"text","text":1}]"#,
        ] {
            refused(&sampling, &with(bad), "content");
        }
        refused(&sampling, r#"{"model":"m","content":[]}"#, "role");
        refused(&sampling, r#"{"role":"system","model":"m","content":[]}"#, "role");
        refused(&sampling, r#"{"role":"user","content":[]}"#, "model");
        refused(&sampling, r#"{"role":"user","model":"m"}"#, "content");
    }

    // req: INPUT-13 (legacy half)
    #[test]
    fn roots_are_uris_of_files() {
        let roots = question(InputKind::Roots, "{}");
        for fine in [r#"{"roots":[]}"#, r#"{"roots":[{"uri":"file:///a","name":"A"},{"uri":"file:///b","x":1}]}"#] {
            assert_eq!(verdict(&roots, fine), Ok(()), "{fine}");
        }
        for bad in [
            "{}",
            r#"{"roots":{}}"#,
            r#"{"roots":["file:///a"]}"#,
            r#"{"roots":[{"uri":"https://a"}]}"#,
            r#"{"roots":[{"uri":1}]}"#,
            r#"{"roots":[{"uri":"file:///a","name":1}]}"#,
        ] {
            refused(&roots, bad, "roots");
        }
    }

    // req: INPUT-06
    #[test]
    fn an_error_fits_every_question() {
        for kind in InputKind::ALL {
            let error = Answer::Error(RawJson::trusted(r#"{"code":-1,"message":"no"}"#));
            assert_eq!(check(&question(kind, "{}"), &error), Ok(()));
        }
    }

    // req: LIFE-10
    #[test]
    fn the_status_says_what_is_asked() {
        assert_eq!(summary(&form(), 512), "waiting for input: How many?");
        let long = question(InputKind::Elicitation, &format!(r#"{{"message":"{}\u0000"}}"#, "é".repeat(600)));
        assert!(summary(&long, 512).len() <= 512 && summary(&long, 512).ends_with('…'));
        assert_eq!(summary(&question(InputKind::Elicitation, "{}"), 512), "waiting for input");
        assert_eq!(summary(&question(InputKind::Roots, "{}"), 512), "waiting for the client's roots");
    }
}
