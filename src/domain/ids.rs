//! Identifiers and secrets. The only place that draws randomness.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id with 122 bits from the operating system's generator.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "a random value is no default")]
            #[expect(clippy::disallowed_methods, reason = "the home of randomness")]
            pub fn new() -> Self {
                Self(Uuid::new_v4())
            }

            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            #[must_use]
            pub const fn as_uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            /// Accepts exactly the form that `Display` writes: 36 characters, lower case, hyphenated.
            fn from_str(text: &str) -> Result<Self, NotAnId> {
                let uuid = Uuid::try_parse(text).map_err(|_| NotAnId)?;
                let mut buffer = Uuid::encode_buffer();
                if *uuid.hyphenated().encode_lower(&mut buffer) == *text {
                    Ok(Self(uuid))
                } else {
                    Err(NotAnId)
                }
            }
        }
    };
}

id! {
    /// A task's id, as clients see it (LIFE-05).
    TaskId
}
id! {
    /// An authorization context: what tasks are bound to. Never shown to clients.
    ContextId
}
id! {
    /// One start of one process. Each start is a new node.
    NodeId
}
id! {
    /// The fencing token of one claim of one task: every write of that attempt matches it.
    LeaseToken
}
id! {
    /// A legacy session, as clients see it in `Mcp-Session-Id`.
    SessionId
}
id! {
    /// The public id of an access token.
    TokenId
}
id! {
    /// One question of running work. Its text is the key under which modern clients see it: never used twice.
    InputId
}
id! {
    /// The JSON-RPC id of one request of ours to a legacy client (INPUT-14): unguessable, never used twice.
    DeliveryId
}
id! {
    /// One stream to a legacy client, resumed or not (HTTP-09).
    StreamId
}

/// The text is no id in canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id: expected 36 characters, lower-case hexadecimal with hyphens")]
pub struct NotAnId;

/// `N` bytes from the operating system's generator, for keys and token secrets.
///
/// # Panics
/// If the operating system has no randomness: nothing safe can be done then.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the home of randomness")]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_is_an_id() {
        let id = TaskId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in [
            id.to_string().to_uppercase(),
            id.as_uuid().simple().to_string(),
            id.as_uuid().urn().to_string(),
            format!("{id} "),
            String::new(),
            "x".repeat(10_000),
        ] {
            assert_eq!(text.parse::<TaskId>(), Err(NotAnId), "{text}");
        }
    }

    // req: LIFE-05
    #[test]
    fn task_ids_have_122_random_bits() {
        let mut ones = [0_u32; 128];
        let mut seen = std::collections::HashSet::new();
        for _ in 0..4096 {
            let id = TaskId::new();
            assert!(seen.insert(id));
            let bits = id.as_uuid().as_u128();
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += u32::from(bits >> bit & 1 == 1);
            }
        }
        let free = ones.iter().filter(|&&count| (1700..2400).contains(&count)).count();
        assert_eq!(free, 122, "all bits but version and variant vary freely");
    }
}
