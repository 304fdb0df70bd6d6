//! Lists: tools, prompts, resources, templates; each by pages, in its stable order (MOD-07).

use axum::response::Response;

use super::Exchange;
use crate::domain::json::RawJson;
use crate::engine::Refusal;
use crate::http::error::modern::Refused;
use crate::protocol::legacy::relay::prompt_definition;
use crate::protocol::legacy::tasks::cursor;
use crate::protocol::modern::page::page;
use crate::protocol::modern::{Method, results};

impl Exchange<'_> {
    pub(super) fn tools_list(&self) -> Result<Response, Refused> {
        let tools = self.front.state.engine.tools();
        self.page(
            "tools",
            &tools,
            |tool| &tool.exposed,
            |tool| results::tool_definition(&tool.definition, &tool.exposed),
        )
    }

    /// One of the other lists; unknown where no upstream has it.
    pub(super) fn list(&self) -> Result<Response, Refused> {
        let shelf = self.front.state.engine.shelf();
        let served = shelf.served();
        match self.method {
            Method::PromptsList if served.prompts => self.page(
                "prompts",
                shelf.prompts(),
                |prompt| &prompt.exposed,
                |prompt| prompt_definition(&prompt.definition, &prompt.exposed),
            ),
            Method::ResourcesList if served.resources => self.page(
                "resources",
                shelf.resources(),
                |resource| &resource.uri,
                |resource| resource.definition.clone(),
            ),
            Method::ResourceTemplatesList if served.resources => self.page(
                "resourceTemplates",
                shelf.templates(),
                |template| &template.template,
                |template| template.definition.clone(),
            ),
            _ => Err(Refused::method_not_found()),
        }
    }

    fn page<T>(
        &self,
        name: &str,
        all: &[T],
        key: impl Fn(&T) -> &str,
        shown: impl Fn(&T) -> RawJson,
    ) -> Result<Response, Refused> {
        let cursor = cursor(Some(&self.params))?;
        let page = page(all, cursor.as_deref(), key);
        let page = page.ok_or_else(|| Refused::from(Refusal::BadCursor))?;
        let shown: Vec<_> = page.items.iter().map(shown).collect();
        Ok(self.answer(&results::list(name, shown.iter(), page.next.as_deref())))
    }
}
