//! Pure rules: no input or output, no SQL, no HTTP.
//!
//! Knows nothing of the wire, the database or the configuration file. The system clock is read only in
//! [`clock`], randomness is drawn only in [`ids`].

pub mod clock;
pub mod context;
pub mod cursor;
pub mod ids;
pub mod json;
pub mod lease;
pub mod mode;
pub mod outcome;
pub mod retention;
pub mod session;
pub mod task;
pub mod text;
pub mod transition;
pub mod work;
