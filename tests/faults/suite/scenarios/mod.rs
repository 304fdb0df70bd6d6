//! What is broken, one topic a file.

mod backends;
mod clocks;
mod links;
mod nodes;
mod sqlite;
mod upstreams;
