//! What the process tells about itself.

pub mod logs;
