//! Which questions a revision of the protocol knows.

use crate::domain::input::InputKind;
use crate::domain::json::RawJson;
use crate::protocol::jsonrpc::{ErrorObject, INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::protocol::scan::string_value;
use crate::protocol::splice::member;

/// A link of an older revision has declared only what that revision knows.
pub(super) fn not_in_revision(revision: &str, kind: InputKind, params: Option<&RawJson>) -> Result<(), ErrorObject> {
    let has = |name| params.is_some_and(|params| member(params.as_str(), name).is_some());
    let is_url = || elicitation_mode(params).is_some_and(|mode| mode != "form");
    let unknown = |what: &str| format!("protocol version {revision} has no {what}");
    match kind {
        InputKind::Elicitation if revision < "2025-06-18" => {
            Err(ErrorObject::new(METHOD_NOT_FOUND, unknown(kind.method())))
        }
        InputKind::Elicitation if revision < "2025-11-25" && is_url() => {
            Err(ErrorObject::new(INVALID_PARAMS, unknown("elicitation mode but form")))
        }
        InputKind::Sampling if revision < "2025-11-25" && (has("tools") || has("toolChoice")) => {
            Err(ErrorObject::new(INVALID_PARAMS, unknown("tools in sampling")))
        }
        _ => Ok(()),
    }
}

fn elicitation_mode(params: Option<&RawJson>) -> Option<String> {
    Some(string_value(member(params?.as_str(), "mode")?)?.into_owned())
}
