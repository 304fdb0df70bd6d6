//! `subscriptions/listen`: what changed goes to those who asked for it, under the id of their request.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::SelectAll;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::{Server, complete};
use crate::demo::wire::{Out, error, error_line, notification, result_line, send, with_meta};

/// Something that changed.
#[derive(Debug, Clone)]
pub(super) enum News {
    /// The list of `tools`, `prompts` or `resources`.
    List(String),
    /// The resource of this URI.
    Resource(String),
}

#[derive(Deserialize)]
struct Params {
    notifications: Filter,
}

/// What a client wants to hear of.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Filter {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: Option<Vec<String>>,
    task_ids: Option<Vec<String>>,
}

/// Whether a server with these capabilities has any news but those of tasks.
pub(super) fn has_news(capabilities: &Value) -> bool {
    ["tools", "prompts", "resources"].iter().any(|kind| changes(capabilities, kind)) || updates(capabilities)
}

/// Whether a request asks for news of tasks.
pub(super) fn names_tasks(params: &str) -> bool {
    serde_json::from_str::<Value>(params).is_ok_and(|params| params["notifications"].get("taskIds").is_some())
}

/// Serves one subscription until the server ends it; whoever asked for it ends it by dropping this.
pub(super) async fn listen(server: &Arc<Server>, id: &str, params: &str, out: &Out) {
    let Ok(Params { notifications: mut filter }) = serde_json::from_str(params) else {
        return send(out, error_line(id, &error(-32602, "notifications must be an object of what to hear of"))).await;
    };
    filter.keep_what_there_is(server);
    let mark = format!(r#"{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
    let tell = async |method: &str, params: &str| send(out, notification(method, &with_meta(params, &mark))).await;
    let mut news = server.news.subscribe();
    let mut tasks = SelectAll::new();
    for task in filter.task_ids.iter().flatten() {
        tasks.extend(server.tasks.as_ref().and_then(|tasks| tasks.find(task)).map(|task| Box::pin(task.states())));
    }
    let honoured = json!({ "notifications": filter.to_json() }).to_string();
    tell("notifications/subscriptions/acknowledged", &honoured).await;
    loop {
        tokio::select! {
            Some(task) = tasks.next() => tell("notifications/tasks", &task).await,
            piece = news.recv() => match piece {
                Ok(News::List(kind)) if filter.wants_list(&kind) => {
                    tell(&format!("notifications/{kind}/list_changed"), "{}").await;
                }
                Ok(News::Resource(uri)) if filter.wants_resource(&uri) => {
                    tell("notifications/resources/updated", &json!({ "uri": uri }).to_string()).await;
                }
                // Whoever reads too slowly misses some.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            },
            () = server.closed.cancelled() => break,
        }
    }
    send(out, result_line(id, &complete(&with_meta("{}", &mark)))).await;
}

impl Server {
    pub(super) fn tell(&self, news: News) {
        // Fails only when nobody listens.
        let _ = self.news.send(news);
    }
}

impl Filter {
    fn keep_what_there_is(&mut self, server: &Server) {
        let capabilities = server.toolbox.capabilities();
        self.tools_list_changed &= changes(&capabilities, "tools");
        self.prompts_list_changed &= changes(&capabilities, "prompts");
        self.resources_list_changed &= changes(&capabilities, "resources");
        self.resource_subscriptions = self.resource_subscriptions.take().filter(|_| updates(&capabilities));
        let there = |id: &String| server.tasks.as_ref().is_some_and(|tasks| tasks.find(id).is_some());
        if let Some(ids) = &mut self.task_ids {
            ids.retain(there);
        }
    }

    fn to_json(&self) -> Value {
        let mut honoured = json!({});
        for (name, wanted) in [
            ("toolsListChanged", self.tools_list_changed),
            ("promptsListChanged", self.prompts_list_changed),
            ("resourcesListChanged", self.resources_list_changed),
        ] {
            if wanted {
                honoured[name] = json!(true);
            }
        }
        for (name, wanted) in [("resourceSubscriptions", &self.resource_subscriptions), ("taskIds", &self.task_ids)] {
            if let Some(wanted) = wanted {
                honoured[name] = json!(wanted);
            }
        }
        honoured
    }

    fn wants_list(&self, kind: &str) -> bool {
        match kind {
            "tools" => self.tools_list_changed,
            "prompts" => self.prompts_list_changed,
            _ => self.resources_list_changed,
        }
    }

    fn wants_resource(&self, uri: &str) -> bool {
        self.resource_subscriptions.iter().flatten().any(|wanted| wanted == uri)
    }
}

fn changes(capabilities: &Value, kind: &str) -> bool {
    capabilities[kind]["listChanged"] == true
}

fn updates(capabilities: &Value) -> bool {
    capabilities["resources"]["subscribe"] == true
}
