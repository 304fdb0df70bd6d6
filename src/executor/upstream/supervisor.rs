//! The small process between the service and each child: it ends the child's process group when the service is gone.
//!
//! Our own binary, run as the hidden command `supervise`. The standard streams are handed through untouched. The end
//! comes when the child exits, when the service asks (SIGTERM) or when the service is gone: SIGTERM to the group, three
//! seconds, SIGKILL to whatever is left, also to processes that left the group. Knows nothing of MCP.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

/// How long the group has to end by itself.
pub const GRACE: Duration = Duration::from_secs(3);

/// The exit code when the program could not be started; shells have the same.
pub const NOT_STARTED: i32 = 127;

/// What to supervise.
#[derive(Debug, Clone)]
pub struct Supervised {
    /// The process id of the service, which must be our parent.
    pub parent: u32,
    /// A directory to delete at the end.
    pub scratch: Option<PathBuf>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Runs the command to its end; answers the exit code: the child's, 128 plus the signal that ended it, 127 if it could
/// not be started, 1 if there is nobody to serve.
#[must_use]
pub fn supervise(work: &Supervised) -> i32 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let code = match runtime {
        Ok(runtime) => runtime.block_on(watch(work)).unwrap_or_else(|error| complain("cannot supervise", &error, 1)),
        Err(error) => complain("cannot supervise", &error, 1),
    };
    remove_scratch(work);
    code
}

async fn watch(work: &Supervised) -> std::io::Result<i32> {
    let mut asked = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let mut children = signal(SignalKind::child())?;
    let parent_gone = parent_gone(work.parent);
    tokio::pin!(parent_gone);
    // Fails only when we lead a session already, and then we lead a group too.
    let _ = rustix::process::setpgid(None, None);
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    if !is_parent(work.parent) {
        return Ok(1);
    }
    let Some((program, arguments)) = work.command.split_first() else { return Ok(NOT_STARTED) };
    let child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child.id(),
        Err(error) => return Ok(complain(&format!("cannot start {}", program.display()), &error, NOT_STARTED)),
    };
    leave_streams();
    let mut family = Family { child, code: None };
    let [terminate, interrupt, hangup] = &mut asked;
    let (Ok(terminate), Ok(interrupt), Ok(hangup)) = (terminate, interrupt, hangup) else {
        return Err(std::io::Error::other("signal handlers cannot be set"));
    };
    while family.reap() && family.code.is_none() {
        tokio::select! {
            _ = children.recv() => {}
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => break,
            () = &mut parent_gone => break,
        }
    }
    end_group(&mut family, &mut children, work).await;
    Ok(family.code.unwrap_or(128 + 15))
}

/// Once the child has the standard streams, only it may hold them: the service sees by their end that it closed them.
/// Standard error stays for what goes wrong here.
fn leave_streams() {
    let nothing = std::fs::File::options().read(true).write(true).open("/dev/null");
    let left = nothing.and_then(|nothing| {
        rustix::stdio::dup2_stdin(&nothing)?;
        Ok(rustix::stdio::dup2_stdout(&nothing)?)
    });
    if let Err(error) = left {
        eprintln!("cannot leave the standard streams to the child: {error}");
    }
}

/// What is left of the child and its descendants.
struct Family {
    child: u32,
    code: Option<i32>,
}

impl Family {
    /// Reaps whatever has ended; false when no process is left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == self.child => {
                    self.code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

async fn end_group(family: &mut Family, children: &mut tokio::signal::unix::Signal, work: &Supervised) {
    if !family.reap() {
        return;
    }
    // Reaches ourselves too, where it is one more request to end.
    let _ = kill_process_group(getpid(), Signal::TERM);
    let deadline = Instant::now() + GRACE;
    while family.reap() {
        tokio::select! {
            _ = children.recv() => {}
            () = sleep_until(deadline) => break,
        }
    }
    // Descendants whose parent dies become our children, so that repeating this reaches them all.
    while family.reap() {
        if !kill_children() {
            remove_scratch(work);
            let _ = kill_process_group(getpid(), Signal::KILL);
        }
        children.recv().await;
    }
}

/// SIGKILL to each child; false where the system does not tell who they are.
fn kill_children() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return false };
    let mut known = false;
    for thread in threads.flatten() {
        let Ok(pids) = std::fs::read_to_string(thread.path().join("children")) else { continue };
        known = true;
        for pid in pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    known
}

/// Completes when the service is gone.
async fn parent_gone(parent: u32) {
    #[cfg(target_os = "linux")]
    if let Some(pid) = i32::try_from(parent).ok().and_then(Pid::from_raw)
        && let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
    {
        let (gone, seen) = tokio::sync::oneshot::channel();
        // A thread of its own, which the exit of this process ends: registering a descriptor with the runtime is unsafe.
        std::thread::spawn(move || {
            use rustix::event::{PollFd, PollFlags, poll};
            while poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None) == Err(rustix::io::Errno::INTR) {}
            gone.send(())
        });
        if seen.await.is_ok() {
            return;
        }
    }
    let mut second = tokio::time::interval(Duration::from_secs(1));
    while is_parent(parent) {
        second.tick().await;
    }
}

fn is_parent(parent: u32) -> bool {
    getppid().is_some_and(|pid| pid.as_raw_nonzero().get().unsigned_abs() == parent)
}

fn remove_scratch(work: &Supervised) {
    if let Some(scratch) = &work.scratch {
        // It may hold what is not ours to delete; then it stays.
        let _ = std::fs::remove_dir_all(scratch);
    }
}

/// Standard error is the upstream's, whose last lines the service shows.
fn complain(what: &str, error: &std::io::Error, code: i32) -> i32 {
    eprintln!("{what}: {error}");
    code
}
