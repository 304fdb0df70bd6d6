//! The errors of this era, and how errors from elsewhere are told in it (MOD-16).

use crate::domain::json::RawJson;
use crate::protocol::jsonrpc::{ErrorObject, INVALID_PARAMS, RESOURCE_NOT_FOUND, error_code, upstream_error};
use crate::protocol::scan::string_value;
use crate::protocol::splice::{member, members, quoted, replace_member};

use super::headers::Mismatch;
use super::{TASKS_EXTENSION, supported_versions};
use crate::domain::text::storable;

/// A header does not say what the body says.
pub const HEADER_MISMATCH: i64 = -32020;
/// The client did not declare what the request needs.
pub const MISSING_CAPABILITY: i64 = -32021;
/// The version of the request is not served.
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// The numbers that this revision keeps for itself.
const RESERVED: std::ops::RangeInclusive<i64> = -32099..=-32020;

impl From<Mismatch> for ErrorObject {
    fn from(mismatch: Mismatch) -> Self {
        Self::new(HEADER_MISMATCH, mismatch.to_string())
    }
}

/// MOD-04.
#[must_use]
pub fn unsupported_version(requested: &str) -> ErrorObject {
    let requested_text = storable(requested, 128);
    let supported: Vec<_> = supported_versions(Some(requested)).map(quoted).collect();
    let data = format!(r#"{{"supported":[{}],"requested":{}}}"#, supported.join(","), quoted(&requested_text));
    let message = format!("unsupported protocol version {requested_text:?}");
    ErrorObject::new(UNSUPPORTED_VERSION, message).with_data(RawJson::trusted(data))
}

/// MOD-15. `required` is what the client would have to declare, in the form of its capabilities.
#[must_use]
pub fn missing_capability(message: &str, required: &RawJson) -> ErrorObject {
    let data = format!(r#"{{"requiredCapabilities":{}}}"#, required.as_str());
    ErrorObject::new(MISSING_CAPABILITY, message).with_data(RawJson::trusted(data))
}

/// The same of the extension for tasks (EXT-02, EXT-09).
#[must_use]
pub fn missing_tasks_extension(message: &str) -> ErrorObject {
    let required = format!(r#"{{"extensions":{{"{TASKS_EXTENSION}":{{}}}}}}"#);
    missing_capability(message, &RawJson::trusted(required))
}

/// An error that came from elsewhere, an upstream or the store, as this era tells it (MOD-16).
#[must_use]
pub fn relayed(error: &RawJson) -> RawJson {
    match error_code(error) {
        Some(RESOURCE_NOT_FOUND) => replace_member(error, "code", &INVALID_PARAMS.to_string()),
        Some(code) if RESERVED.contains(&code) => upstream_error(error),
        _ => error.clone(),
    }
}

/// The same for the client whose own request got it, with what it declared: that an upstream needs something which this client
/// lacks is about this request (MOD-15).
#[must_use]
pub fn relayed_to(error: &RawJson, declared: &RawJson) -> RawJson {
    let required = || member(member(error.as_str(), "data")?, "requiredCapabilities");
    if error_code(error) == Some(MISSING_CAPABILITY)
        && required().is_some_and(|required| lacks(declared.as_str(), required))
    {
        return error.clone();
    }
    relayed(error)
}

/// Whether an object of capabilities that is required has one which is not declared.
fn lacks(declared: &str, required: &str) -> bool {
    members(required).any(|needed| {
        let written = format!("\"{}\"", needed.key);
        let name = string_value(&written).unwrap_or_default();
        let found = member(declared, &name).filter(|raw| raw.starts_with('{'));
        // Before there were modes an empty object meant forms; it still does.
        let found = found.map(|raw| if name == "elicitation" && raw.len() <= 2 { r#"{"form":{}}"# } else { raw });
        found.is_none_or(|found| needed.value.starts_with('{') && lacks(found, needed.value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Of MOD-16 the numbers that go as others.
    #[test]
    fn numbers_of_this_era_are_about_the_clients_own_request() {
        let told = |text: &str| relayed(&RawJson::trusted(text)).as_str().to_owned();
        for code in [-32020, -32021, -32022, -32042, -32099] {
            let error = format!(r#"{{"code":{code},"message":"no\u0000","data":{{"n":1e400}}}}"#);
            let expected = format!(
                r#"{{"code":-32603,"message":"no\u0000","data":{{"reason":"upstream_error","error":{error}}}}}"#
            );
            assert_eq!(told(&error), expected);
        }
        assert_eq!(
            told(r#"{"code":-32002,"message":"no","data":{"uri":"x://1"}}"#),
            r#"{"code":-32602,"message":"no","data":{"uri":"x://1"}}"#
        );
        for same in [
            r#"{"code":-32019,"message":"m"}"#,
            r#"{"code":-32100,"message":"m","data":1.0}"#,
            r#"{"code":99999999999999999999,"message":"m"}"#,
        ] {
            assert_eq!(told(same), same);
        }
    }

    // Of MOD-15 what a modern upstream says.
    #[test]
    fn what_an_upstream_lacks_of_this_client_is_about_its_request() {
        let told = |required: &str, declared: &str| {
            let error = format!(r#"{{"code":-32021,"message":"m","data":{{"requiredCapabilities":{required}}}}}"#);
            let told = relayed_to(&RawJson::trusted(&*error), &RawJson::trusted(declared));
            let is_same = told.as_str() == error;
            assert!(is_same || told.as_str().starts_with(r#"{"code":-32603,"#), "{}", told.as_str());
            is_same
        };
        assert!(told(r#"{"sampling":{}}"#, "{}") && told(r#"{"sampling":{}}"#, r#"{"sampling":null}"#));
        assert!(told(r#"{"elicitation":{"url":{}}}"#, r#"{"elicitation":{}}"#));
        assert!(told(r#"{"extensions":{"a/b":{}}}"#, r#"{"extensions":{"a/c":{}}}"#));
        assert!(!told(r#"{"elicitation":{"form":{}}}"#, r#"{"elicitation":{}}"#), "it is declared: ours is the lack");
        assert!(!told(r#"{"roots":{}}"#, r#"{"roots":{"listChanged":true}}"#) && !told("{}", "{}"));
        let bare = RawJson::trusted(r#"{"code":-32021,"message":"m"}"#);
        assert_eq!(relayed_to(&bare, &bare), relayed(&bare));
        let other = RawJson::trusted(r#"{"code":-32020,"message":"m","data":{"requiredCapabilities":{"roots":{}}}}"#);
        assert_eq!(relayed_to(&other, &RawJson::trusted("{}")), relayed(&other));
    }

    // req: MOD-04
    #[test]
    fn what_is_served_is_told() {
        let error = unsupported_version("2025-11-25");
        assert_eq!(error.data.unwrap().as_str(), r#"{"supported":["2026-07-28"],"requested":"2025-11-25"}"#);
        let error = unsupported_version("v\"9");
        assert_eq!(
            error.data.unwrap().as_str(),
            r#"{"supported":["2026-07-28","2025-11-25","2025-06-18"],"requested":"v\"9"}"#
        );
    }

    #[test]
    fn what_would_have_to_be_declared_is_told() {
        let error = missing_tasks_extension("m");
        assert_eq!(
            (error.code, error.data.unwrap().as_str()),
            (-32021, r#"{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#)
        );
    }
}
