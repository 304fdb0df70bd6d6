//! The executor with real processes: the demo server, and scripts that misbehave.

mod calls;
mod catalog;
pub mod harness;
mod links;
mod processes;
mod session;
