//! What a caller may do, where its credential limits that (AUTH-10).

use std::fmt;

/// One permission, by the name that access tokens have it under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// To look at tasks: their status, their results, their list, news of them.
    TasksRead,
    /// To change tasks: cancel them, answer what they ask. It implies [`Self::TasksRead`].
    TasksWrite,
    /// To see and use what the upstreams offer: tools, prompts, resources, completions.
    ToolsCall,
}

impl Scope {
    pub const ALL: [Self; 3] = [Self::TasksRead, Self::TasksWrite, Self::ToolsCall];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TasksRead => "tasks:read",
            Self::TasksWrite => "tasks:write",
            Self::ToolsCall => "tools:call",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }

    /// As access tokens and challenges have several.
    #[must_use]
    pub fn list(scopes: &[Self]) -> String {
        scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ")
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Some scopes, with all that they imply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    pub const ALL: Self = Self(Scope::TasksRead.bit() | Scope::TasksWrite.bit() | Scope::ToolsCall.bit());

    #[must_use]
    pub const fn and(self, scope: Scope) -> Self {
        let implied = match scope {
            Scope::TasksWrite => Scope::TasksRead.bit(),
            Scope::TasksRead | Scope::ToolsCall => 0,
        };
        Self(self.0 | scope.bit() | implied)
    }

    #[must_use]
    pub const fn allow(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        scopes.into_iter().fold(Self::default(), Self::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: AUTH-10
    #[test]
    fn a_broader_scope_counts_for_what_it_implies() {
        let of = |scopes: &[Scope]| -> Vec<Scope> {
            let scopes: Scopes = scopes.iter().copied().collect();
            Scope::ALL.into_iter().filter(|scope| scopes.allow(*scope)).collect()
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[Scope::TasksRead]), [Scope::TasksRead]);
        assert_eq!(of(&[Scope::TasksWrite]), [Scope::TasksRead, Scope::TasksWrite]);
        assert_eq!(of(&[Scope::ToolsCall]), [Scope::ToolsCall]);
        assert_eq!(Scope::ALL.into_iter().collect::<Scopes>(), Scopes::ALL);
    }

    #[test]
    fn scopes_have_names() {
        for scope in Scope::ALL {
            assert_eq!(Scope::from_name(scope.as_str()), Some(scope));
        }
        assert!(["", "tasks", "tasks:*", "Tasks:read"].iter().all(|name| Scope::from_name(name).is_none()));
    }
}
