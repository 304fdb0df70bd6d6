//! The real binary, the real demo server, real databases: kills, restarts, two processes on one database.

mod big_results;
mod idle;
mod input;
mod pooler;
mod restart;
mod secrets;
mod stateless;
mod two_nodes;
