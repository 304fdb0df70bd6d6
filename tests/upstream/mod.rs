//! The executor with real processes: the demo server, and scripts that misbehave.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail there")]

mod calls;
mod catalog;
mod catalog_store;
mod harness;
mod links;
mod processes;
