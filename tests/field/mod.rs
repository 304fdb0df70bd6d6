//! What people who run MCP tasks and gateways have reported, each case by the name that a comment gives it
//! (`// field case: NAME`). Cases that a test of a topic already shows are marked there.

mod catalogue;
mod durability;
mod eras;
mod gateway;
mod input;
mod lists;
mod nodes;
mod queue;
mod remotes;
mod stateless;
mod tasks;
