//! What several topics of tests use.

pub mod database;
