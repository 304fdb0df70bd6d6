//! What people who run MCP tasks and gateways have reported, each case by the name that a comment gives it
//! (`// field case: NAME`). Cases that a test of a topic already shows are marked there.

mod durability;
mod gateway;
mod lists;
mod tasks;
