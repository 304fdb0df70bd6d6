//! What breaks around the service, on purpose.

mod failover;
mod link;
mod listening;
mod pool;
mod promotion;
mod questions;
mod rounds;
mod signals;
mod suite;
