//! What the official conformance suite calls, in both eras.

use std::sync::atomic::Ordering;

use anyhow::Context as _;
use async_trait::async_trait;
use serde_json::{Value, json};

use super::fixtures::Fixtures;
use super::shelf;
use super::toolbox::{Caller, Era, Mode, Reply, Toolbox};

/// Its tools, in the order in which the suite wants them listed.
const TOOLS: &str = include_str!("conformance.json");

pub(super) struct Conformance {
    tools: Fixtures,
}

impl Conformance {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { tools: Fixtures::parse(TOOLS).context("the built-in fixtures are broken")? })
    }
}

#[async_trait]
impl Toolbox for Conformance {
    fn definitions(&self) -> Vec<String> {
        self.tools.definitions()
    }

    async fn call(&self, name: &str, arguments: &str, caller: &dyn Caller) -> Option<Reply> {
        self.tools.call(name, arguments, caller).await
    }

    fn capabilities(&self) -> Value {
        json!({
            "tools": { "listChanged": true },
            "prompts": { "listChanged": true },
            "resources": { "subscribe": true },
            "completions": {},
            "logging": {},
        })
    }

    fn request(&self, era: Era, method: &str, params: &str) -> Option<Reply> {
        let with_fleeting = self.tools.changes.prompts.load(Ordering::Relaxed) % 2 == 1;
        shelf::answer(era, method, params, with_fleeting)
    }

    fn mode(&self, name: &str, arguments: &str) -> Mode {
        self.tools.mode(name, arguments)
    }

    fn asks_first(&self, name: &str) -> bool {
        self.tools.asks_first(name)
    }
}
