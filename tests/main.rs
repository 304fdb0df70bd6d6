//! The integration tests, one binary.

#![expect(clippy::unwrap_used, reason = "a test may panic; clippy exempts only the bodies of test functions")]

mod auth;
mod cli;
mod docs;
mod engine;
mod faults;
mod model;
mod process;
mod store;
mod support;
mod tidy;
mod upstream;
mod walk;
