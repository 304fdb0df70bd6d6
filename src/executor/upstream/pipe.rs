//! Carries a link's messages over a child's standard streams, one a line.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::control::Control;
use super::lines::{Line, Lines};
use super::outgoing::{Kind, Outgoing};
use super::stdio::Process;
use super::table::Table;
use crate::lifecycle::spawn;

/// No more lines are added to one write beyond this, in bytes: what has not left can still be taken back.
const AT_ONCE: usize = 16 << 10;
/// How long after the end of a stream the end of its process is waited for.
const END_SEEN: Duration = Duration::from_secs(1);

/// Begins to write what is queued and to read what comes.
pub(super) fn carry(process: Process, table: Arc<Table>, queued: mpsc::Receiver<Outgoing>) {
    let Process { stdin, stdout, control } = process;
    spawn("upstream input", write(stdin, queued, control.ending.clone()));
    let lines = Lines::new(stdout, table.message_limit());
    spawn("upstream output", read(lines, table, control));
}

/// Writes one message a line until the end is asked for, then closes the input.
async fn write(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Outgoing>, ending: CancellationToken) {
    let work = async {
        let mut lines = Vec::new();
        while let Some(first) = queue.recv().await {
            lines.clear();
            // Few messages are large.
            lines.shrink_to(AT_ONCE);
            let mut next = Some(first);
            // What is queued leaves by one write: each wakes the process.
            while let Some(outgoing) = next {
                add_line(&mut lines, outgoing);
                next = if lines.len() < AT_ONCE { queue.try_recv().ok() } else { None };
            }
            if stdin.write_all(&lines).await.is_err() {
                // Mostly the process has ended, which its reader sees and says better.
                sleep(END_SEEN).await;
                return;
            }
        }
    };
    tokio::select! {
        // One that does not hear us any more is of no use.
        () = work => ending.cancel(),
        () = ending.cancelled() => {}
    }
}

fn add_line(lines: &mut Vec<u8>, Outgoing { text, kind }: Outgoing) {
    let leaves = match kind {
        Kind::Request(departure) => departure.gate.open(),
        // A process has no session from before.
        Kind::Resumed { .. } => false,
        _ => true,
    };
    if leaves {
        lines.extend_from_slice(text.as_bytes());
        lines.push(b'\n');
    }
}

/// Reads until the output ends, and closes the link then.
async fn read(mut lines: Lines<ChildStdout>, table: Arc<Table>, control: Control) {
    loop {
        match lines.next().await {
            Ok(Some(Line::Whole(line))) => table.take(&line, None),
            Ok(Some(Line::TooLong(long))) => table.take_oversize(&long, None),
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(error = %error, "the upstream's output cannot be read");
                break;
            }
        }
    }
    match timeout(END_SEEN, control.exited()).await {
        Ok(exit) => table.close(&exit.how),
        Err(_) => table.close("it closed its output"),
    }
    control.ending.cancel();
}
