//! The real binary, the real demo server, real databases: kills, restarts, two processes on one database.

mod behind_nginx;
mod big_results;
mod idle;
mod input;
mod oauth;
mod paused;
mod pooler;
mod restart;
mod roles;
mod roll;
mod secrets;
mod starts;
mod stateless;
mod two_nodes;
mod upgrade;
