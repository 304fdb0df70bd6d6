//! The real binary, the real demo server, real databases: kills, restarts, two processes on one database.

mod idle;
mod restart;
mod secrets;
mod two_nodes;
