//! Which scope each message needs (AUTH-10). To add a method: a line here, without which this does not compile.

use crate::domain::context::AuthContext;
use crate::domain::scope::Scope;
use crate::http::error::Rejection;
use crate::protocol::jsonrpc::Message;
use crate::protocol::{legacy, modern};

/// Looked at once it is known what a message is and before anything in it has a say (HTTP-13).
///
/// # Errors
/// What lacks.
pub(super) fn check(caller: &AuthContext, message: &Message, is_modern: bool) -> Result<(), Rejection> {
    let enough = needed(message, is_modern);
    match enough.first() {
        Some(scope) if !enough.iter().any(|scope| caller.may(*scope)) => Err(Rejection::ScopeMissing { scope: *scope }),
        _ => Ok(()),
    }
}

/// Any of these will do, and every token where there are none. Methods that nobody knows are refused elsewhere.
fn needed(message: &Message, is_modern: bool) -> &'static [Scope] {
    match message {
        Message::Request(request) if is_modern => modern::Method::from_name(&request.method).map_or(&[], of_modern),
        Message::Request(request) => legacy::Method::from_name(&request.method).map_or(&[], of_legacy),
        // It stops a plain call.
        Message::Notification(notification) if notification.method == "notifications/cancelled" => {
            &[Scope::ToolsCall, Scope::TasksWrite]
        }
        Message::Notification(_) => &[],
        // What was asked may be of a task or of a plain call.
        Message::Response(_) => &[Scope::TasksWrite, Scope::ToolsCall],
    }
}

fn of_legacy(method: legacy::Method) -> &'static [Scope] {
    use legacy::Method;
    match method {
        Method::Initialize | Method::Ping | Method::SetLogLevel => &[],
        Method::ToolsList
        | Method::ToolsCall
        | Method::PromptsList
        | Method::PromptsGet
        | Method::ResourcesList
        | Method::ResourceTemplatesList
        | Method::ResourcesRead
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::Complete => &[Scope::ToolsCall],
        Method::TasksGet | Method::TasksResult | Method::TasksList => &[Scope::TasksRead],
        Method::TasksCancel => &[Scope::TasksWrite],
    }
}

fn of_modern(method: modern::Method) -> &'static [Scope] {
    use modern::Method;
    match method {
        Method::Discover => &[],
        Method::ToolsList
        | Method::ToolsCall
        | Method::PromptsList
        | Method::PromptsGet
        | Method::ResourcesList
        | Method::ResourceTemplatesList
        | Method::ResourcesRead
        | Method::Complete => &[Scope::ToolsCall],
        Method::Listen | Method::TasksGet => &[Scope::TasksRead],
        Method::TasksUpdate | Method::TasksCancel => &[Scope::TasksWrite],
    }
}
