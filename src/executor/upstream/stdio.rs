//! A child process that speaks on its standard streams, under its supervisor.
//!
//! Knows nothing of JSON-RPC: it hands out the input and output, keeps the last lines of standard error, and ends the
//! process in the order that MCP asks for: input closed, SIGTERM, SIGKILL.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::control::{Control, Exit, Tail};
use super::lines::{Line, Lines};
use super::supervisor;
use crate::domain::ids::random_bytes;
use crate::domain::text::storable;
use crate::lifecycle::spawn;

/// The variables of our own environment that children get (EXEC-25); everything else they get is configured.
pub const KEPT_VARIABLES: [&str; 6] = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER"];

/// How children are started.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// Our own binary.
    pub supervisor: PathBuf,
    /// Those of [`KEPT_VARIABLES`] that are set.
    pub environment: Vec<(String, String)>,
}

impl Launcher {
    /// Runs the binary that is running now, also after its file was replaced.
    ///
    /// # Errors
    /// If the system does not tell which that is.
    pub fn of_this_binary(environment: Vec<(String, String)>) -> io::Result<Self> {
        let supervisor =
            if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { std::env::current_exe()? };
        Ok(Self { supervisor, environment })
    }
}

/// One child to start.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) command: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
    /// `None` gives it an empty directory of its own, deleted after.
    pub(super) directory: Option<PathBuf>,
}

/// A running child. Dropping it ends it.
pub(super) struct Process {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) control: Control,
}

const TAIL_LINE_BYTES: usize = 2048;
/// How long a child has to end after its input was closed.
const INPUT_GRACE: Duration = Duration::from_secs(2);

impl Process {
    /// Starts the program under a supervisor.
    pub(super) fn start(launcher: &Launcher, program: &Program) -> io::Result<Self> {
        if let Some(directory) = program.directory.as_deref().filter(|directory| !directory.is_dir()) {
            // The error of the system would not say which of its files is missing.
            let why = format!("its working directory {} is not there", directory.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let scratch = program.directory.is_none().then(make_scratch).transpose()?;
        let mut command = Command::new(&launcher.supervisor);
        command.arg0("taskhold").args(["supervise", "--parent", &std::process::id().to_string()]);
        if let Some(scratch) = &scratch {
            command.arg("--scratch").arg(scratch);
        }
        command
            .arg("--")
            .args(&program.command)
            .env_clear()
            .envs(launcher.environment.iter().map(|(name, value)| (name, value)))
            .envs(program.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(directory) = program.directory.as_deref().or(scratch.as_deref()) {
            command.current_dir(directory);
        }
        let spawned = command.spawn().and_then(|mut child| {
            let streams = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
            Ok((child, streams.ok_or_else(|| io::Error::other("a standard stream is missing"))?))
        });
        let (child, ((stdin, stdout), stderr)) = spawned.inspect_err(|_| remove(scratch.as_deref()))?;
        let (control, exited) = Control::new();
        spawn("upstream standard error", keep_tail(stderr, control.tail()));
        let ending = control.ending.clone();
        spawn("upstream process", async move {
            let (status, asked) = attend(child, &ending).await;
            remove(scratch.as_deref());
            // Nobody may be left to hear it.
            let _ = exited.send(Some(Exit { how: describe(status), asked }));
        });
        Ok(Self { stdin, stdout, control })
    }
}

/// Waits for the child's end, and brings it about when asked.
async fn attend(mut child: Child, ending: &CancellationToken) -> (io::Result<ExitStatus>, bool) {
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let (status, asked) = tokio::select! {
        biased;
        status = child.wait() => (status, false),
        () = ending.cancelled() => (end(&mut child, group).await, true),
    };
    // A supervisor that was killed could not end its group.
    if let (Ok(status), Some(group)) = (&status, group)
        && status.signal().is_some()
    {
        let _ = kill_process_group(group, Signal::KILL);
    }
    (status, asked)
}

async fn end(child: &mut Child, supervisor: Option<Pid>) -> io::Result<ExitStatus> {
    if let Ok(status) = timeout(INPUT_GRACE, child.wait()).await {
        return status;
    }
    if let Some(supervisor) = supervisor {
        // Not reaped yet, so the id is still its own. It gives the group its time and then kills it.
        let _ = kill_process(supervisor, Signal::TERM);
        if let Ok(status) = timeout(supervisor::GRACE + INPUT_GRACE, child.wait()).await {
            return status;
        }
        let _ = kill_process_group(supervisor, Signal::KILL);
    }
    child.wait().await
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) if code > 128 => format!("its process was ended by signal {}", code - 128),
            (Some(code @ supervisor::NOT_STARTED), _) => {
                format!("its process ended with exit code {code}: the program is not there or cannot be run")
            }
            (Some(code), _) => format!("its process ended with exit code {code}"),
            (None, Some(signal)) => format!("its supervisor was ended by signal {signal}"),
            (None, None) => "its process ended".to_owned(),
        },
        Err(error) => format!("its process cannot be waited for: {error}"),
    }
}

async fn keep_tail(stderr: ChildStderr, tail: Tail) {
    let mut lines = Lines::new(stderr, TAIL_LINE_BYTES);
    while let Ok(Some(line)) = lines.next().await {
        let line = match line {
            Line::Whole(bytes) => storable(String::from_utf8_lossy(&bytes).trim_end(), TAIL_LINE_BYTES),
            Line::TooLong(long) => format!("(a line of {} bytes)", long.bytes),
        };
        tail.push(line);
    }
}

/// A new empty directory that only we may enter.
fn make_scratch() -> io::Result<PathBuf> {
    let name = data_encoding::HEXLOWER.encode(&random_bytes::<16>());
    let path = std::env::temp_dir().join(format!("taskhold-{name}"));
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

/// The supervisor deletes it at its end; this is for when it could not.
fn remove(scratch: Option<&Path>) {
    if let Some(scratch) = scratch {
        let _ = std::fs::remove_dir_all(scratch);
    }
}
