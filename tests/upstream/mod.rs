//! The executor with real processes: the demo server, and scripts that misbehave.

mod asks;
mod calls;
pub mod catalog;
pub mod harness;
mod http_calls;
pub mod http_demo;
mod http_session;
mod links;
mod modern;
mod processes;
mod session;
mod task_answers;
mod tasks;
