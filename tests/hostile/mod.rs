//! What the worst clients and upstreams send: JSON at the edges of the grammar, bytes that are no message, and callers
//! who ask for what is not theirs.

mod bad_input;
mod fidelity;
mod flood;
mod isolation;
mod json;
mod stateless;
#[path = "../../fuzz/wire.rs"]
mod wire;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// Runs a property so many times.
fn check<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    if let Err(failure) = TestRunner::new(config).run(strategy, test) {
        panic!("{failure}");
    }
}

/// The target of `fuzz/` on bytes that a generator makes, for those who have no fuzzer.
#[test]
fn no_bytes_upset_the_readers_of_the_wire() {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        json::value(20).prop_map(String::into_bytes),
        (json::value(4), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(text, at, byte)| {
            let mut bytes = text.into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        }),
    ];
    check(10_000, &bytes, |bytes| {
        wire::check(&bytes);
        Ok(())
    });
}
