//! `subscriptions/listen`: a stream of news, for as long as its client reads it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::response::Response;

use super::{Exchange, tasks};
use crate::domain::ids::StreamId;
use crate::engine::{Delivery, Engine, Item, Listening, Looked, News, Wants};
use crate::http::error::Rejection;
use crate::http::error::modern::Refused;
use crate::http::mcp::answer::{self, Encode, Ending, LetGo, unless};
use crate::http::mcp::sse;
use crate::lifecycle;
use crate::protocol::jsonrpc::{Id, write_result};
use crate::protocol::legacy::notify::List;
use crate::protocol::modern::listen::{Filter, acknowledged, ended, list_changed, resource_updated, task_changed};
use crate::protocol::modern::{TASKS_EXTENSION, errors};

impl Exchange<'_> {
    pub(super) async fn listen(&self) -> Result<Response, Refused> {
        // Whatever else is asked (NOTE-06).
        if Filter::names_tasks(&self.params) && !self.meta.declares_extension(TASKS_EXTENSION) {
            return Err(errors::missing_tasks_extension("news of tasks need the extension for tasks").into());
        }
        let state = &self.front.state;
        let asked = Filter::parse(&self.params, state.engine.most_subscriptions() as usize)?;
        if !self.accepts.events {
            return Ok(Rejection::EventsOnly { method: "subscriptions/listen" }.to_response(Some(&self.id)));
        }
        let mut honoured = self.served(asked);
        let drain = Some(state.drain.clone());
        let mut watch = answer::watch(Arc::clone(&state.auth), &self.caller.auth, self.headers, drain);
        // Upstreams may take their time.
        let opening = state.engine.listen(&self.caller, wanted(&honoured));
        let Listening { stream, tasks, resources } = match unless(&mut watch, opening).await {
            Ok(opened) => opened?,
            Err(LetGo::Draining) => return Ok(Rejection::Draining.to_response(Some(&self.id))),
            Err(LetGo::Unauthorized) => return Ok(Rejection::TokenInvalid.to_response(Some(&self.id))),
        };
        honoured.tasks = honoured.tasks.map(|_| tasks.iter().map(ToString::to_string).collect());
        honoured.updates = honoured.updates.map(|_| resources);
        let (id, engine) = (self.id.clone(), Arc::clone(&state.engine));
        let encoder = Box::new(Encoder { id, engine, keep_alive: state.rules.keep_alive, honoured });
        Ok(sse::response(sse::stream(stream, encoder, watch, true, None).await))
    }

    /// The filter without the kinds of news that there are none of here.
    fn served(&self, asked: Filter) -> Filter {
        let served = self.front.state.engine.shelf().served();
        Filter {
            tools: asked.tools,
            prompts: asked.prompts && served.prompts,
            resources: asked.resources && served.resources,
            updates: asked.updates.filter(|_| served.subscribe),
            tasks: asked.tasks.filter(|_| tasks::are_offered(&self.front, &self.caller.auth)),
        }
    }
}

/// Text that cannot be a task's id is the same as an unknown one.
fn wanted(filter: &Filter) -> Wants {
    let tasks = filter.tasks.iter().flatten().filter_map(|id| id.parse().ok()).collect();
    let resources = filter.updates.clone().unwrap_or_default();
    let news = News { tools: filter.tools, prompts: filter.prompts, resources: filter.resources };
    Wants { news, tasks, resources }
}

struct Encoder {
    id: Id,
    engine: Arc<Engine>,
    keep_alive: Duration,
    honoured: Filter,
}

#[async_trait]
impl Encode for Encoder {
    fn keep_alive(&self) -> Duration {
        self.keep_alive
    }

    fn event_id(&self, _stream: StreamId, _count: i64) -> Option<String> {
        None
    }

    fn opening(&self) -> Option<String> {
        Some(acknowledged(&self.id, &self.honoured))
    }

    fn message(&self, delivery: &Delivery) -> Option<String> {
        let list = match delivery {
            Delivery::ToolsChanged => List::Tools,
            Delivery::PromptsChanged => List::Prompts,
            Delivery::ResourcesChanged => List::Resources,
            Delivery::ResourceUpdated { params } => return Some(resource_updated(&self.id, params)),
            _ => return None,
        };
        Some(list_changed(&self.id, list))
    }

    async fn task(&self, looked: Box<Looked>) -> Option<String> {
        let bytes =
            looked.outcome.as_ref().and_then(|outcome| outcome.json()).map_or(0, crate::domain::json::RawJson::len);
        let (id, engine) = (self.id.clone(), Arc::clone(&self.engine));
        // `None` if it panicked there: the task is left out, as a broken one.
        lifecycle::aside(bytes, move || task_changed(&id, &tasks::detailed(&engine, &looked))).await
    }

    async fn answer(&self, _item: Item) -> Option<Ending> {
        None
    }

    fn drained(&self) -> Option<String> {
        Some(write_result(&self.id, &ended(&self.id)))
    }
}
