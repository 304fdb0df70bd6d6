//! The command line as people and scripts meet it.

mod as_it_is;
mod bench;
mod check;
mod configuration;
mod data;
mod help;
mod serve;
mod servers;

use std::path::Path;

use assert_cmd::Command;

/// The binary in a folder of its own, without any of our variables.
fn taskhold(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskhold"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TASKHOLD")) {
        command.env_remove(name);
    }
    command.current_dir(folder);
    command
}

/// Exit code, standard output, standard error.
fn run(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = taskhold(folder).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}
