//! Taskhold: one binary that makes the tools of any MCP server durable tasks.
//!
//! The map, from the wire inwards; an arrow means "may use":
//!
//! ```text
//! http -> engine -> store, executor (traits) -> domain
//! protocol -> domain
//! app (composition root) -> everything
//! ```
//!
//! * [`domain`]: pure rules: ids, time, status and its transitions, outcome, retention, cursors.
//! * [`protocol`]: the wire: JSON-RPC, the scanner, splicing, the types of each protocol era.
//! * [`store`]: persistence; the only place that knows SQL.
//! * [`engine`]: the use cases; every change of a task goes through it.
//! * [`executor`]: where work runs: upstream MCP servers.
//! * [`demo`]: the demo upstream, an MCP server that the binary brings along.
//! * [`bench`]: the load generator, a client of any MCP server with tasks.
//! * [`auth`]: who is calling.
//! * [`http`]: routes, middleware, the handlers of each era; the only place that knows axum.
//! * [`config`], [`cli`], [`telemetry`], [`lifecycle`], [`app`]: how the parts become a program.
//!
//! `ARCHITECTURE.md` explains why; `tests/tidy.rs` fails when a wall is broken.

pub mod app;
pub mod auth;
pub mod bench;
pub mod cli;
pub mod config;
pub mod demo;
pub mod domain;
pub mod engine;
pub mod executor;
pub mod http;
pub mod lifecycle;
pub mod protocol;
pub mod store;
pub mod telemetry;
