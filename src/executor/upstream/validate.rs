//! Arguments against a tool's input schema (EXEC-10, EXEC-24).

use crate::domain::json::RawJson;
use crate::domain::schema::{self, Fault, Schema};
use crate::executor::ArgumentCheck;
use crate::protocol::splice::member;

/// The check of a definition's `inputSchema`. A schema that cannot be used refuses all arguments and says why.
pub(super) fn arguments(definition: &RawJson) -> ArgumentCheck {
    match compile(definition) {
        Ok(schema) => ArgumentCheck::new(move |arguments| check(&schema, arguments)),
        Err(why) => ArgumentCheck::new(move |_| Err(format!("the tool's input schema cannot be used: {why}"))),
    }
}

/// Why a definition's `inputSchema` cannot be used.
pub(super) fn problem(definition: &RawJson) -> Option<String> {
    compile(definition).err()
}

fn compile(definition: &RawJson) -> Result<Schema, String> {
    Schema::compile(member(definition.as_str(), "inputSchema").unwrap_or("{}"))
}

fn check(schema: &Schema, arguments: &RawJson) -> Result<(), String> {
    let copy = schema::copy(arguments.as_str()).map_err(Fault::Uncheckable);
    copy.and_then(|copy| schema.check(&copy)).map_err(|fault| match fault {
        Fault::Uncheckable(why) => format!("the arguments cannot be checked: {why}"),
        Fault::Misfit(why) => format!("the arguments do not fit the tool's input schema: {why}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
