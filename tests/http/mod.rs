//! HTTP by persona: the real router, server, engine and database; work is done by the test, call by call.

mod calls;
pub mod harness;
mod negotiation;
mod schema;
mod tasks;
mod transport;
mod waiting;
