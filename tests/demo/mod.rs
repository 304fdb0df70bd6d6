//! The demo server as clients of the modern era find it. What it is for, a counterpart of our own links, is tested in `upstream`.

mod client;
mod http;
mod questions;
mod schema;
mod stdio;
mod tasks;
