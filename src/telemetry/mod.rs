//! What the process tells about itself.

mod lines;
pub mod logs;
