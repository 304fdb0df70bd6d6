//! What running work asks of its caller, and what the caller answers (INPUT).

use super::json::RawJson;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InputKind {
    Elicitation,
    Sampling,
    Roots,
}

impl InputKind {
    pub const ALL: [Self; 3] = [Self::Elicitation, Self::Sampling, Self::Roots];

    /// The method of the request that asks.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Elicitation => "elicitation/create",
            Self::Sampling => "sampling/createMessage",
            Self::Roots => "roots/list",
        }
    }

    /// The number that stands for it in the database. Never renumbered.
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::Elicitation => 0,
            Self::Sampling => 1,
            Self::Roots => 2,
        }
    }

    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    #[must_use]
    pub fn from_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }
}

/// One question of running work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub kind: InputKind,
    /// The request's `params` as they arrived, without what was meant for us alone (`task`, our own progress token,
    /// related-task metadata of the work's server).
    pub params: Option<RawJson>,
}

/// What a caller answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The result object as it arrived.
    Result(RawJson),
    /// The JSON-RPC error object as it arrived, or one of ours.
    Error(RawJson),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_stable_codes_and_methods() {
        assert_eq!(InputKind::ALL.map(InputKind::code), [0, 1, 2]);
        for kind in InputKind::ALL {
            assert_eq!(InputKind::from_code(kind.code()), Some(kind));
            assert_eq!(InputKind::from_method(kind.method()), Some(kind));
        }
        assert_eq!((InputKind::from_code(3), InputKind::from_method("ping")), (None, None));
    }
}
