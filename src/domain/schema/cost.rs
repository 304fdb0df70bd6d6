//! How much work a check would be, found before it is done (EXEC-24).
//!
//! A schema with references can make a validator do work that doubles with each level of the schema or of the
//! arguments, or recurse until the stack is gone. Counting the same work with a memory of what was counted already is
//! cheap, so that such checks are refused instead of started. Schemas without references need none of this: their work
//! is at most their size times the arguments'.

use std::collections::HashMap;

use serde_json::Value;

/// The largest schema, in bytes, and the most references that it may hold.
const MOST_BYTES: usize = 1 << 20;
const MOST_REFERENCES: usize = 5_000;
/// Steps of one check: a second or less.
const MOST_STEPS: u64 = 5_000_000;
/// Steps inside each other: what a thread's stack holds, with room to spare.
const MOST_NESTED: usize = 1_000;
/// How much is remembered while counting.
const MOST_COUNTED: usize = 1_000_000;

/// A schema with references, ready to estimate checks by it.
pub(super) struct Estimator {
    schema: Value,
    /// JSON pointers of anchors and embedded ids.
    names: HashMap<String, String>,
}

/// The check would take too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuch;

impl Estimator {
    /// `None` if checks by this schema need no estimate.
    ///
    /// # Errors
    /// If the schema is too large to be used at all; the text says why.
    pub(super) fn new(schema: &Value, bytes: usize) -> Result<Option<Self>, String> {
        if bytes > MOST_BYTES {
            return Err(format!("it has {bytes} bytes, more than the limit of {MOST_BYTES}"));
        }
        let mut found = Found::default();
        found.walk(schema, &mut String::new());
        if found.references > MOST_REFERENCES {
            return Err(format!("it has more than {MOST_REFERENCES} references"));
        }
        Ok((found.references > 0).then(|| Self { schema: schema.clone(), names: found.names }))
    }

    /// # Errors
    /// [`TooMuch`] if checking `value` would go beyond the limits.
    pub(super) fn estimate(&self, value: &Value) -> Result<(), TooMuch> {
        let mut count = Count { estimator: self, known: HashMap::new() };
        count.steps(&self.schema, value, 0).map(|_| ())
    }

    /// What a reference means; the whole schema, to be careful, if that is not clear.
    fn resolve(&self, reference: &str) -> &Value {
        let pointer = match reference.strip_prefix('#') {
            Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => Some(pointer),
            name => self.names.get(name.unwrap_or(reference)).map(String::as_str),
        };
        pointer.and_then(|pointer| self.schema.pointer(&pointer.replace("%24", "$"))).unwrap_or(&self.schema)
    }
}

#[derive(Default)]
struct Found {
    references: usize,
    names: HashMap<String, String>,
}

impl Found {
    fn walk(&mut self, schema: &Value, pointer: &mut String) {
        let length = pointer.len();
        let mut visit = |found: &mut Self, key: &str, value: &Value| {
            pointer.push('/');
            pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            found.walk(value, pointer);
            pointer.truncate(length);
        };
        match schema {
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, item)| visit(self, &index.to_string(), item));
            }
            Value::Object(members) => {
                for (key, value) in members {
                    visit(self, key, value);
                }
                for (key, value) in members {
                    match (key.as_str(), value) {
                        ("$ref" | "$dynamicRef" | "$recursiveRef", _) => self.references += 1,
                        ("$id" | "id" | "$anchor" | "$dynamicAnchor", Value::String(name)) => {
                            self.names.insert(name.trim_start_matches('#').to_owned(), pointer.clone());
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

struct Count<'a> {
    estimator: &'a Estimator,
    /// Steps by the places of schema and value; `None` while they are being counted.
    known: HashMap<(usize, usize), Option<u64>>,
}

impl<'a> Count<'a> {
    fn steps(&mut self, schema: &'a Value, value: &'a Value, nested: usize) -> Result<u64, TooMuch> {
        let Value::Object(keywords) = schema else { return Ok(1) };
        if nested > MOST_NESTED || self.known.len() > MOST_COUNTED {
            return Err(TooMuch);
        }
        // The work for one value without parts is that for any other.
        let place =
            (std::ptr::from_ref(schema).addr(), if has_parts(value) { std::ptr::from_ref(value).addr() } else { 0 });
        match self.known.get(&place) {
            Some(Some(steps)) => return Ok(*steps),
            // Around in a circle without a step into the value: validators stop there.
            Some(None) => return Ok(0),
            None => self.known.insert(place, None),
        };
        let mut total: u64 = 1;
        for (keyword, operand) in keywords {
            let more = self.keyword(keywords, keyword, operand, value, nested + 1)?;
            total = total.saturating_add(more);
            if total > MOST_STEPS {
                return Err(TooMuch);
            }
        }
        self.known.insert(place, Some(total));
        Ok(total)
    }

    fn keyword(
        &mut self,
        keywords: &'a serde_json::Map<String, Value>,
        keyword: &str,
        operand: &'a Value,
        value: &'a Value,
        nested: usize,
    ) -> Result<u64, TooMuch> {
        let named = |name: &str| keywords.get("properties").is_some_and(|properties| properties.get(name).is_some());
        let work: Vec<(&Value, &Value)> = match (keyword, operand, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference), _) => {
                let estimator = self.estimator;
                vec![(estimator.resolve(reference), value)]
            }
            ("not" | "if" | "then" | "else", _, _) => vec![(operand, value)],
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas), _) => {
                schemas.iter().map(|schema| (schema, value)).collect()
            }
            ("dependentSchemas" | "dependencies", Value::Object(schemas), Value::Object(_)) => {
                schemas.values().map(|schema| (schema, value)).collect()
            }
            ("properties", Value::Object(schemas), Value::Object(members)) => {
                schemas.iter().filter_map(|(name, schema)| Some((schema, members.get(name)?))).collect()
            }
            ("patternProperties", Value::Object(schemas), Value::Object(members)) => {
                schemas.values().flat_map(|schema| members.values().map(move |member| (schema, member))).collect()
            }
            ("additionalProperties" | "unevaluatedProperties", _, Value::Object(members)) => {
                members.iter().filter(|(name, _)| !named(name)).map(|(_, member)| (operand, member)).collect()
            }
            ("propertyNames", _, Value::Object(members)) => members.keys().map(|_| (operand, &Value::Null)).collect(),
            ("prefixItems" | "items", Value::Array(schemas), Value::Array(items)) => {
                schemas.iter().zip(items).collect()
            }
            ("items" | "additionalItems" | "unevaluatedItems" | "contains", _, Value::Array(items)) => {
                items.iter().map(|item| (operand, item)).collect()
            }
            _ => return Ok(0),
        };
        let mut total: u64 = 0;
        for (schema, value) in work {
            total = total.saturating_add(self.steps(schema, value, nested)?);
        }
        Ok(total)
    }
}

fn has_parts(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn estimate(schema: &Value, value: &Value) -> Result<(), TooMuch> {
        Estimator::new(schema, 0).unwrap().expect("it has references").estimate(value)
    }

    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!(1), |inner, _| json!({ "c": inner }))
    }

    // req: EXEC-24
    #[test]
    fn work_that_doubles_is_refused_and_ordinary_work_is_not() {
        let mut definitions = serde_json::Map::new();
        for level in 0..40 {
            let next = json!({ "$ref": format!("#/$defs/a{}", level + 1) });
            definitions.insert(format!("a{level}"), json!({ "allOf": [next, next] }));
        }
        definitions.insert("a40".to_owned(), json!({ "type": "object" }));
        assert_eq!(estimate(&json!({ "$ref": "#/$defs/a0", "$defs": definitions }), &json!({})), Err(TooMuch));

        let twice = json!({ "allOf": [{ "$ref": "#t" }, { "$ref": "#/$defs/t" }] });
        let doubling = json!({ "$ref": "#t", "$defs": { "t": { "$anchor": "t", "properties": { "c": twice } } } });
        assert_eq!(estimate(&doubling, &nested(8)), Ok(()));
        assert_eq!(estimate(&doubling, &nested(60)), Err(TooMuch));

        let tree = json!({
            "$defs": { "t": {
                "properties": { "c": { "$ref": "#/$defs/t" }, "d": { "$ref": "#/$defs/t" } },
                "additionalProperties": { "$ref": "#/$defs/t" },
            } },
            "$ref": "#/$defs/t",
        });
        assert_eq!(estimate(&tree, &nested(120)), Ok(()));
        let wide = json!({ "items": { "$ref": "#/$defs/n" }, "$defs": { "n": { "type": "number" } } });
        assert_eq!(estimate(&wide, &Value::from(vec![1; 500_000])), Ok(()));
    }

    // req: EXEC-24
    #[test]
    fn what_would_use_up_the_stack_is_refused() {
        let chain = |length: usize| {
            let mut definitions = serde_json::Map::new();
            for link in 0..length {
                definitions.insert(format!("a{link}"), json!({ "$ref": format!("#/$defs/a{}", link + 1) }));
            }
            definitions.insert(format!("a{length}"), json!({ "properties": { "c": { "$ref": "#/$defs/a0" } } }));
            json!({ "$ref": "#/$defs/a0", "$defs": definitions })
        };
        assert_eq!(estimate(&chain(400), &json!({})), Ok(()));
        assert_eq!(estimate(&chain(3_000), &json!({})), Err(TooMuch));
        assert_eq!(estimate(&chain(100), &nested(100)), Err(TooMuch));
        assert!(Estimator::new(&chain(6_000), 0).is_err());
        assert!(Estimator::new(&json!({}), 2 << 20).is_err());
        assert!(Estimator::new(&json!({ "type": "object" }), 20).unwrap().is_none());
    }

    #[test]
    fn circles_end() {
        for schema in [
            json!({ "$ref": "#" }),
            json!({ "allOf": [{ "$ref": "#" }, { "$ref": "missing" }] }),
            json!({ "$recursiveAnchor": true, "items": { "$recursiveRef": "#" } }),
        ] {
            assert_eq!(estimate(&schema, &json!([[[1]]])), Ok(()), "{schema}");
        }
    }
}
