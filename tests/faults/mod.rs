//! What breaks around the service, on purpose.

mod link;
mod pool;
