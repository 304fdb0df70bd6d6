//! The HTTP headers that repeat parts of a request: each must say what the message says.

use std::borrow::Cow;

use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::refusal::Refusal;

/// A request's headers: names in lower case, and values.
#[derive(Debug, Default)]
pub(in crate::demo) struct Headers(pub(in crate::demo) Vec<(String, String)>);

impl Headers {
    /// The version header against that of `_meta`.
    pub(super) fn check_version(&self, version: &str) -> Result<(), Refusal> {
        self.check("MCP-Protocol-Version", Some(version))
    }

    /// The headers that a request is routed by; `definition` is that of the called tool.
    pub(super) fn check_routing(&self, method: &str, params: &str, definition: Option<&str>) -> Result<(), Refusal> {
        #[derive(Deserialize, Default)]
        #[serde(default, rename_all = "camelCase")]
        struct Named {
            name: Option<String>,
            uri: Option<String>,
            task_id: Option<String>,
            arguments: Map<String, Value>,
        }
        self.check("Mcp-Method", Some(method))?;
        let named: Named = serde_json::from_str(params).unwrap_or_default();
        match method {
            "tools/call" | "prompts/get" => self.check("Mcp-Name", named.name.as_deref())?,
            "resources/read" => self.check("Mcp-Name", named.uri.as_deref())?,
            // Some clients leave it out.
            "tasks/get" | "tasks/update" | "tasks/cancel" if self.one("Mcp-Name")?.is_some() => {
                self.check("Mcp-Name", named.task_id.as_deref())?;
            }
            _ => {}
        }
        let Some(definition) = definition.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
            return Ok(());
        };
        self.check_arguments(&definition["inputSchema"], Some(&Value::Object(named.arguments)))
    }

    /// The arguments whose schema has `x-mcp-header`; those without a value have no header.
    fn check_arguments(&self, schema: &Value, value: Option<&Value>) -> Result<(), Refusal> {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let value = value.and_then(|value| value.get(name)).filter(|value| !value.is_null());
            if let Some(header) = schema["x-mcp-header"].as_str() {
                let header = format!("Mcp-Param-{header}");
                let said = self.one(&header)?;
                let same = match (&said, value) {
                    (None, None) => true,
                    (Some(said), Some(Value::String(value))) => said == value,
                    (Some(said), Some(Value::Number(value))) => said.parse().ok() == value.as_f64(),
                    (Some(said), Some(value)) => *said == value.to_string(),
                    _ => false,
                };
                if !same {
                    return Err(Refusal::header(&header));
                }
            }
            self.check_arguments(schema, value)?;
        }
        Ok(())
    }

    fn check(&self, name: &str, value: Option<&str>) -> Result<(), Refusal> {
        if self.one(name)?.as_deref() == value { Ok(()) } else { Err(Refusal::header(name)) }
    }

    /// The decoded value of a header that may be there once.
    fn one(&self, name: &str) -> Result<Option<Cow<'_, str>>, Refusal> {
        let mut values = self.0.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let (Some((_, value)), None) = (values.next(), values.next()) else {
            return if self.0.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                Err(Refusal::header(&format!("{name} is repeated")))
            } else {
                Ok(None)
            };
        };
        decode(value.trim_matches([' ', '\t']))
            .map(Some)
            .ok_or_else(|| Refusal::header(&format!("{name} is undecodable")))
    }
}

/// What `=?base64?...?=` stands for; anything else stands for itself.
fn decode(value: &str) -> Option<Cow<'_, str>> {
    if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte) || byte == b'\t') {
        return None;
    }
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(BASE64.decode(encoded.as_bytes()).ok()?).ok().map(Cow::Owned),
        None => Some(Cow::Borrowed(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: &str = r#"{"name":"t","inputSchema":{"type":"object","properties":{
        "value":{"type":"string","x-mcp-header":"Value"},
        "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}}}"#;

    fn call(arguments: &str, headers: &[(&str, &str)]) -> bool {
        let mut all = vec![("mcp-method", "tools/call"), ("mcp-name", "t")];
        all.extend(headers);
        let headers = Headers(all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
        headers.check_routing("tools/call", &format!(r#"{{"name":"t","arguments":{arguments}}}"#), Some(TOOL)).is_ok()
    }

    #[test]
    fn annotated_arguments_stand_in_headers() {
        for (arguments, headers, expected) in [
            ("{}", &[][..], true),
            (r#"{"value":null}"#, &[], true),
            (r#"{"value":"x"}"#, &[], false),
            (r#"{"value":"x"}"#, &[("mcp-param-value", "x")], true),
            (r#"{"value":"x"}"#, &[("mcp-param-value", "x"), ("mcp-param-value", "x")], false),
            (r#"{"value":"x"}"#, &[("mcp-param-value", "X")], false),
            (r#"{"value":"ü"}"#, &[("mcp-param-value", "=?base64?w7w=?=")], true),
            (r#"{"value":"ü"}"#, &[("mcp-param-value", "=?base64?w7w?=")], false),
            (r#"{"value":"=?base64?w7w="}"#, &[("mcp-param-value", "=?base64?w7w=")], true),
            ("{}", &[("mcp-param-value", "x")], false),
            (r#"{"deep":{"n":7}}"#, &[("mcp-param-n", "7")], true),
            (r#"{"deep":{"n":7}}"#, &[("mcp-param-n", "7.0")], true),
            (r#"{"deep":{"n":7}}"#, &[("mcp-param-n", "8")], false),
            (r#"{"deep":{}}"#, &[("mcp-param-other", "8")], true),
        ] {
            assert_eq!(call(arguments, headers), expected, "{arguments} {headers:?}");
        }
    }
}
