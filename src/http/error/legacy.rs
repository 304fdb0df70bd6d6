//! The same for the handshake era, whose errors travel at HTTP 200: all but what says nothing of the request (KEEP-10).

use super::refusal_error;
use crate::engine::Refusal;
use crate::protocol::jsonrpc::ErrorObject;
use crate::protocol::legacy::InvalidParams;

/// A request of this era that gets no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) enum Refused {
    Error(ErrorObject),
    /// This node takes no new work. Nothing was begun: the same request may go to another node, and a proxy can see that.
    Draining,
}

impl From<ErrorObject> for Refused {
    fn from(error: ErrorObject) -> Self {
        Self::Error(error)
    }
}

impl From<InvalidParams> for Refused {
    fn from(why: InvalidParams) -> Self {
        Self::Error(why.into())
    }
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::ShuttingDown => Self::Draining,
            _ => Self::Error(refusal_error(refusal)),
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::from(&refusal)
    }
}
