//! What every request passes before its handler, one file per check.

pub(super) mod access_log;
pub(super) mod auth;
pub(super) mod body;
pub(super) mod media;
pub(super) mod origin;
