//! Pure rules: no input or output, no SQL, no HTTP.
//!
//! Knows nothing of the wire, the database or the configuration file. The system clock is read only in
//! [`clock`], randomness is drawn only in [`ids`].

pub mod answer;
pub mod capabilities;
pub mod client_task;
pub mod clock;
pub mod context;
pub mod cursor;
mod distinct;
pub mod event_id;
pub mod ids;
pub mod input;
pub mod json;
pub mod lease;
pub mod log_level;
pub mod mode;
pub mod outcome;
pub mod pieces;
pub mod question;
pub mod queue;
pub mod redact;
pub mod retention;
pub mod round;
pub mod schema;
pub mod scope;
pub mod session;
pub mod task;
pub mod text;
pub mod transition;
pub mod uri_template;
pub mod work;
