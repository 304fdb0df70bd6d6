//! One line a request (OPS-08): never a header, an argument or a result.

use std::time::Instant;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

use crate::domain::ids::ContextId;
use crate::http::Route;

/// What a handler adds to its request's line.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::http) struct Served {
    /// One of the methods that are served; others are not named.
    pub method: Option<&'static str>,
    pub context: Option<ContextId>,
    /// The caller's trace (MOD-13).
    pub trace: Option<u128>,
}

pub(in crate::http) async fn write(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let http_method = request.method().clone();
    let asked = request.uri().path();
    let route = Route::ALL.into_iter().find(|route| route.path() == asked);
    let path = route.map_or("(other)", Route::path);
    let response = next.run(request).await;
    let served = response.extensions().get::<Served>().copied().unwrap_or_default();
    let status = response.status().as_u16();
    let context = served.context.map(tracing::field::display);
    let trace = served.trace.map(|id| tracing::field::display(format!("{id:032x}")));
    let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    // Probes come every few seconds and say nothing.
    if route.is_some_and(|route| !route.is_open()) {
        tracing::info!(
            http.method = %http_method, http.path = path, http.status = status, rpc.method = served.method,
            auth.context = context, trace.id = trace, duration_ms, "request answered"
        );
    } else {
        tracing::debug!(
            http.method = %http_method, http.path = path, http.status = status, duration_ms, "request answered"
        );
    }
    response
}
