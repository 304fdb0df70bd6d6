//! What is broken, one topic a file.

mod nodes;
