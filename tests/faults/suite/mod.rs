//! Several nodes under load while something breaks: what clients were told must hold.
//!
//! Each scenario starts three node processes behind a load balancer, lets clients of both eras work, breaks something,
//! and has a checker judge all that they saw. `scripts/faults` runs the long form with the release binary;
//! [docs/testing.md](../../../docs/testing.md) says what its lines mean.
//!
//! One more scenario is a function in `scenarios/` that calls `play` with what it breaks.

mod balancer;
mod checker;
mod checker_tests;
mod clients;
mod fleet;
mod following;
mod history;
mod person;
mod report;
mod scenarios;
mod stage;
mod work;
