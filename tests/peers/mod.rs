//! Clients that other people have written, as libraries in this process. Those that need an interpreter are in `tests/interop`.

mod rmcp;
