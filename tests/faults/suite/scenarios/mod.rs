//! What is broken, one topic a file.

mod backends;
mod clocks;
mod links;
mod nodes;
mod pooler;
mod postgres;
mod sqlite;
mod upstreams;
