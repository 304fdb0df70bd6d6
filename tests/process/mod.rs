//! The real binary, the real demo server, real databases: kills, restarts, two processes on one database.

mod big_results;
mod idle;
mod input;
mod paused;
mod restart;
mod secrets;
mod stateless;
mod two_nodes;
