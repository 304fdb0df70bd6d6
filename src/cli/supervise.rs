//! `taskhold supervise`, the small process between the service and each child; not for people.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::executor::upstream::supervisor::{Supervised, supervise};

#[derive(Debug, Args)]
pub(super) struct SuperviseArgs {
    /// The process id of the service
    #[arg(long)]
    parent: u32,
    /// A directory to delete at the end
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl SuperviseArgs {
    pub fn run(self) -> ExitCode {
        let work = Supervised { parent: self.parent, scratch: self.scratch, command: self.command };
        ExitCode::from(u8::try_from(supervise(&work)).unwrap_or(1))
    }
}
