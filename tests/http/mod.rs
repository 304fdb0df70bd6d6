//! HTTP by persona: the real router, server, engine and database; work is done by the test, call by call.

mod calls;
mod draining;
mod eras;
pub mod harness;
mod inputs;
mod keyed;
mod large;
pub mod modern;
mod negotiation;
mod oauth;
mod plain;
mod proxy;
mod requestor;
mod schema;
mod scopes;
mod streams;
mod tasks;
mod transport;
mod waiting;
