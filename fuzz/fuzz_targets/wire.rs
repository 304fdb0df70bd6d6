//! `cargo +nightly fuzz run wire`, from the root of the repository.

#![no_main]

#[path = "../wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::check(bytes));
