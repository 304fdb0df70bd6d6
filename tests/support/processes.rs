//! Processes found by their parent, never by a name. Reads `/proc`.

use rustix::process::{Pid, Signal, kill_process};

/// A process, told from a later one with the same id by the time of its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    pid: i32,
    started: u64,
}

impl Process {
    /// The children of a process.
    pub fn children_of(parent: i32) -> Vec<Self> {
        let entries = std::fs::read_dir("/proc").expect("/proc is there");
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(Stat::read).filter(|stat| stat.parent == parent).map(|stat| stat.process).collect()
    }

    /// The children of a process, their children, and so on.
    pub fn family_of(parent: i32) -> Vec<Self> {
        let mut family = Self::children_of(parent);
        let mut seen = 0;
        while let Some(member) = family.get(seen).copied() {
            family.extend(Self::children_of(member.pid));
            seen += 1;
        }
        family
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        Stat::read(self.pid).is_some_and(|stat| stat.process == *self && !stat.is_zombie)
    }

    /// Whether it has not ended, or its parent has not looked yet.
    pub fn is_there(&self) -> bool {
        Stat::read(self.pid).is_some_and(|stat| stat.process == *self)
    }

    pub fn parent(&self) -> Option<Self> {
        Some(Stat::read(Stat::read(self.pid)?.parent)?.process)
    }

    pub fn is(&self, pid: i32) -> bool {
        self.pid == pid
    }

    /// SIGKILL. False if it had ended before.
    pub fn kill(&self) -> bool {
        self.signal(Signal::KILL)
    }

    /// False if it had ended before.
    pub fn signal(&self, signal: Signal) -> bool {
        let pid = Pid::from_raw(self.pid).expect("a process id is positive");
        self.is_running() && kill_process(pid, signal).is_ok()
    }
}

struct Stat {
    process: Process,
    parent: i32,
    is_zombie: bool,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold anything; the fields after it are the third and so on.
        let fields: Vec<_> = text.rsplit(')').next()?.split_whitespace().collect();
        let started = fields.get(19)?.parse().ok()?;
        Some(Self {
            process: Process { pid, started },
            parent: fields.get(1)?.parse().ok()?,
            is_zombie: fields[0] == "Z",
        })
    }
}
