//! One connection to an upstream: a raw JSON-RPC client, whatever carries its messages.
//!
//! What an answer means is decided by the request that was sent, on raw JSON: results and errors are carried as text. What the
//! upstream says of its own accord goes to the link's inbox. Knows nothing of tools; of tasks only that the result of a
//! request may name one.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::control::Control;
use super::inbox::OpenCall;
use super::modern::{REVISION, Resources};
use super::requests::{NoReply, Outbound, Reply};
use super::table::Table;
use crate::domain::ids::ContextId;
use crate::domain::json::RawJson;
use crate::executor::Host;
use crate::protocol::splice::member;

/// What is declared to every upstream. The catalogue's link declares the same, since lists may depend on it.
pub(super) const CAPABILITIES: &str =
    r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{},"context":{}},"roots":{}}"#;

/// An open connection. Dropping it ends the upstream's process or session.
pub(super) struct Link {
    table: Arc<Table>,
    control: Control,
    /// The upstream's `capabilities`, an object.
    pub(super) capabilities: RawJson,
    /// The protocol revision that was agreed on.
    pub(super) revision: String,
    /// Names the upstream's process, if it is ours: with it ends what it runs.
    process: Option<String>,
    /// What of its resources is followed, where that is no request of its own.
    pub(super) resources: Resources,
}

impl Link {
    /// One over which nothing is agreed on so far.
    pub(super) fn new(table: Arc<Table>, control: Control, process: Option<String>) -> Self {
        let capabilities = RawJson::trusted("{}");
        Self { table, control, capabilities, revision: String::new(), process, resources: Resources::default() }
    }

    /// Notes what the upstream declares, and the revision that is spoken.
    pub(super) fn agree(&mut self, capabilities: RawJson, revision: &str) {
        self.capabilities = capabilities;
        revision.clone_into(&mut self.revision);
    }

    pub(super) const fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Whether each request stands alone.
    pub(super) fn is_modern(&self) -> bool {
        self.revision == REVISION
    }

    /// Whether a process of ours is at the other end.
    pub(super) const fn is_process(&self) -> bool {
        self.process.is_some()
    }

    /// A number that is the request's id and its progress token.
    pub(super) fn next_number(&self) -> u64 {
        self.table.next_number()
    }

    /// Opens a call: what the upstream says of it goes to its host. Its first request has the call's number.
    pub(super) fn open_call(&self, context: ContextId, host: Arc<dyn Host>) -> OpenCall {
        self.table.inbox().open(self.next_number(), context, host)
    }

    /// Notes that a task of the upstream runs the call; `id` is the raw text of its id.
    pub(super) fn runs_as(&self, call: &OpenCall, id: &RawJson) {
        self.table.inbox().runs_as(call.number(), id);
    }

    /// What a task of the upstream lives in.
    pub(super) fn session(&self) -> Option<String> {
        self.process.clone().or_else(|| self.table.session())
    }

    /// Sends a request whose answer nobody waits for, unless the upstream has not read for long.
    pub(super) fn request_only(&self, method: &str, params: &RawJson) {
        self.table.request_only(method, params);
    }

    /// Sends a request and waits for its answer. When `stop` is cancelled, or the future dropped, the upstream is told
    /// and a late answer ignored.
    pub(super) async fn request(&self, request: Outbound<'_>, stop: &CancellationToken) -> Result<Reply, NoReply> {
        self.table.request(request, stop).await
    }

    /// The session has a task that goes on without us: until that has ended, the session is not ended with the link.
    pub(super) fn leave_task(&self, id: &RawJson) {
        self.table.leave_task(id.as_str());
    }

    pub(super) fn task_ended(&self, id: &RawJson) {
        self.table.task_ended(id.as_str());
    }

    /// Whether the upstream has said that it does not know the session any more.
    pub(super) fn is_session_over(&self) -> bool {
        self.table.is_session_over()
    }

    /// Completes when the link can carry no more requests.
    pub(super) async fn closed(&self) {
        self.table.closed().cancelled().await;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.table.closed().is_cancelled()
    }

    /// Why it closed.
    pub(super) fn why_closed(&self) -> String {
        self.table.why_closed()
    }

    /// The upstream's name in the configuration.
    pub(super) fn upstream(&self) -> &str {
        self.table.inbox().upstream()
    }

    /// Completes when the upstream has said that one of its lists changed.
    pub(super) async fn lists_changed(&self) {
        self.table.lists_changed().await;
    }

    /// What is behind it; holding this does not keep the link.
    pub(super) fn control(&self) -> Control {
        self.control.clone()
    }

    /// Begins the end of the process (input closed, then signals) or of the session.
    pub(super) fn end(&self) {
        self.table.close("it was ended by this service");
        self.control.ending.cancel();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

/// The raw id of the task in a result of a request that asked for one.
pub(super) fn task_id(result: &RawJson) -> Option<RawJson> {
    let id = member(member(result.as_str(), "task")?, "taskId")?;
    (id.starts_with('"') && id.len() > 2).then(|| RawJson::trusted(id))
}
