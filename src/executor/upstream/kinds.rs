//! The lists that an upstream has, and how each is read.

/// What a row of the catalogue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Tool,
    Prompt,
    Resource,
    Template,
    /// The upstream's `capabilities`: one row, so that what it serves is known before it is up.
    Capabilities,
}

impl Kind {
    /// Those that are read by a list request.
    pub(super) const LISTS: [Self; 4] = [Self::Tool, Self::Prompt, Self::Resource, Self::Template];

    /// As it is stored.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::Template => "template",
            Self::Capabilities => "capabilities",
        }
    }

    /// The request that lists it, and the member of the result that holds the list.
    pub(super) const fn list(self) -> (&'static str, &'static str) {
        match self {
            Self::Tool | Self::Capabilities => ("tools/list", "tools"),
            Self::Prompt => ("prompts/list", "prompts"),
            Self::Resource => ("resources/list", "resources"),
            Self::Template => ("resources/templates/list", "resourceTemplates"),
        }
    }

    /// The capability that a server with this list declares.
    pub(super) const fn capability(self) -> &'static str {
        match self {
            Self::Tool | Self::Capabilities => "tools",
            Self::Prompt => "prompts",
            Self::Resource | Self::Template => "resources",
        }
    }

    /// The member of a definition that names it.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Tool | Self::Prompt | Self::Capabilities => "name",
            Self::Resource => "uri",
            Self::Template => "uriTemplate",
        }
    }

    /// Whether clients use a name of ours for it; else it keeps the upstream's.
    pub(super) const fn is_named(self) -> bool {
        matches!(self, Self::Tool | Self::Prompt)
    }
}
