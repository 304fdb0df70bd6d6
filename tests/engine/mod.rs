//! The engine on both databases: real store, scripted work, a clock moved by hand.

pub mod directed;
pub mod harness;
mod hints;
mod input;
mod keyed;
mod lifecycle;
mod listening;
mod passed;
pub mod places;
pub mod queue;
mod readers;
mod recovery;
mod resumed;
mod retention;
pub mod rounds;
