//! The stateless era by persona: each clause of the base protocol, against the served application.

mod calls;
mod envelope;
mod headers;
pub mod listen;
mod listen_to_tasks;
mod lists;
mod passed;
mod rounds;
mod streams;
mod tasks;
