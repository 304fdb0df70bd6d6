//! The integration tests, one binary.

#![expect(clippy::unwrap_used, reason = "a test may panic; clippy exempts only the bodies of test functions")]
#![expect(clippy::disallowed_methods, reason = "tests spawn their own work and read their own environment")]

mod auth;
mod cli;
mod crash;
mod demo;
mod docs;
mod engine;
mod faults;
mod field;
mod hostile;
mod http;
mod model;
mod peers;
mod process;
mod relay;
mod store;
mod support;
mod tidy;
mod upstream;
mod walk;
