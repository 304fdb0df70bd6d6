//! The same for the stateless era, whose errors have statuses of their own (HTTP-15).

use std::time::Duration;

use axum::http::StatusCode;

use super::{RETRY_AFTER_S, refusal_error, unavailable};
use crate::engine::Refusal;
use crate::protocol::jsonrpc::{ErrorObject, INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::protocol::legacy::InvalidParams;
use crate::protocol::modern::errors::{
    HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION, missing_tasks_extension,
};
use crate::protocol::modern::headers::Mismatch;
use crate::store::StoreError;

/// A request of this era that gets an error instead of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) struct Refused {
    pub(in crate::http) error: ErrorObject,
    pub(in crate::http) status: StatusCode,
    /// Seconds after which it may be asked again.
    pub(in crate::http) retry_after: Option<u64>,
}

impl Refused {
    /// A request that does not say what every request has to (MOD-02).
    pub(in crate::http) fn without_meta(why: InvalidParams) -> Self {
        Self { status: StatusCode::BAD_REQUEST, ..Self::from(why) }
    }

    pub(in crate::http) fn method_not_found() -> Self {
        Self::from(ErrorObject::new(METHOD_NOT_FOUND, "method not found"))
    }

    /// Tokens cannot be checked now (KEEP-11).
    pub(in crate::http) fn unavailable() -> Self {
        Self::from(unavailable()).for_now(StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER_S)
    }

    fn for_now(self, status: StatusCode, retry_after: u64) -> Self {
        Self { status, retry_after: Some(retry_after), ..self }
    }
}

/// The status under which an error travels, by its code.
pub(in crate::http) const fn status_of(code: i64) -> StatusCode {
    match code {
        HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION => StatusCode::BAD_REQUEST,
        METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    }
}

impl From<ErrorObject> for Refused {
    fn from(error: ErrorObject) -> Self {
        Self { status: status_of(error.code), error, retry_after: None }
    }
}

impl From<InvalidParams> for Refused {
    fn from(why: InvalidParams) -> Self {
        Self::from(ErrorObject::from(why))
    }
}

impl From<Mismatch> for Refused {
    fn from(why: Mismatch) -> Self {
        Self::from(ErrorObject::from(why))
    }
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Self {
        let error = refusal_error(refusal);
        match refusal {
            Refusal::UnknownResource(_) => Self::from(ErrorObject { code: INVALID_PARAMS, ..error }),
            Refusal::TaskRequired { tool } => {
                Self::from(missing_tasks_extension(&format!("the tool {tool} runs only as a task")))
            }
            Refusal::LimitReached { retry_after, .. } => {
                Self::from(error).for_now(StatusCode::TOO_MANY_REQUESTS, whole_seconds(*retry_after))
            }
            Refusal::ShuttingDown | Refusal::Store(StoreError::Unavailable(_)) => {
                Self::from(error).for_now(StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER_S)
            }
            _ => Self::from(error),
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::from(&refusal)
    }
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: HTTP-15 (modern half), MOD-05
    #[test]
    fn each_error_travels_under_its_status() {
        let of = |refusal: Refusal| {
            let refused = Refused::from(&refusal);
            (refused.status.as_u16(), refused.error.code, refused.retry_after)
        };
        assert_eq!(of(Refusal::UnknownTask), (200, -32602, None));
        assert_eq!(of(Refusal::UnknownResource("x://1".to_owned())), (200, -32602, None));
        assert_eq!(of(Refusal::TaskRequired { tool: "t".to_owned() }), (400, -32021, None));
        assert_eq!(of(Refusal::ShuttingDown), (503, -32603, Some(1)));
        assert_eq!(of(StoreError::Unavailable("away".into()).into()), (503, -32603, Some(1)));
        assert_eq!(of(StoreError::Refused("disk full".into()).into()), (200, -32603, None));
        let limit = |ms| Refusal::LimitReached { limit: "l", most: 1, retry_after: Duration::from_millis(ms) };
        assert_eq!([of(limit(1500)).2, of(limit(0)).2], [Some(2), Some(1)]);
        assert_eq!(of(limit(1)).0, 429);
        assert_eq!(Refused::method_not_found().status.as_u16(), 404);
        assert_eq!(Refused::without_meta(InvalidParams(String::new())).status.as_u16(), 400);
        assert_eq!(Refused::from(InvalidParams(String::new())).status.as_u16(), 200);
    }
}
