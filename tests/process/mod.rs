//! The real binary, the real demo server, real databases: kills, restarts, two processes on one database.

mod restart;
mod two_nodes;
