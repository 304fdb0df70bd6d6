//! The wire: JSON-RPC, the scanner, splicing, the types of each protocol era.
//!
//! Knows the domain and nothing else: no HTTP, no store, no engine. JSON of users passes through as text. To add a
//! protocol revision: a folder here and a file in `http/mcp/`.

pub mod jsonrpc;
pub mod legacy;
pub mod modern;
pub mod number;
pub mod outline;
pub mod scan;
pub mod splice;
pub mod sse;
