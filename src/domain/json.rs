//! JSON that is carried, not interpreted.

use std::fmt;
use std::sync::Arc;

/// One JSON value as the text that arrived, on one line; cheap to clone.
///
/// Number tokens, unknown keys, key order and escapes survive because nothing ever parses the text into
/// values. `Debug` shows the length only: arguments and results must not reach a log.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RawJson(Arc<str>);

impl RawJson {
    /// Takes text that is known to be one JSON value without line breaks: what the scanner accepted, what
    /// the store kept, or what a serializer of ours wrote.
    #[must_use]
    pub fn trusted(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        debug_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok() || text.len() > 1 << 16);
        debug_assert!(!text.contains(['\n', '\r']));
        Self(text)
    }

    /// Writes a value of ours as JSON.
    #[must_use]
    pub fn from_value(value: &serde_json::Value) -> Self {
        Self(value.to_string().into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text itself, shared, not copied.
    #[must_use]
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawJson({} bytes)", self.0.len())
    }
}
