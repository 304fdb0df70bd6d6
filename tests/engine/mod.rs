//! The engine on both databases: real store, scripted work, a clock moved by hand.

pub mod harness;
mod lifecycle;
mod queue;
mod recovery;
mod retention;
