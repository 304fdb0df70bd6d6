//! Lines on their way to standard error. A thread of their own writes them, all that are there at once: a system call for each
//! would cost a short request a good part of its time.

use std::io::{Result, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Bytes that may wait for whoever reads them. With more, who has something to say waits as well: nothing is lost.
const MOST_WAITING: usize = 4 << 20;

/// A way to them; all of its clones lead to the same thread.
#[derive(Debug, Clone)]
pub struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Something was written.
    taken: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Bytes that were ever said, and of these the ones that are out, or could not be written.
    said: u64,
    out: u64,
}

impl Lines {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system gives none.
    pub fn to(target: impl Write + Send + 'static) -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let lines = Self(Arc::clone(&shared));
        thread::Builder::new().name("logs".to_owned()).spawn(move || shared.write(target))?;
        Ok(lines)
    }

    /// Waits until all that was said before is out; false if it takes longer than this.
    pub fn flush(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.0.lock();
        let said = state.said;
        while state.out < said {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.0.taken.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Shared {
    fn write(&self, mut target: impl Write) {
        let mut lines = Vec::new();
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut lines, &mut state.waiting);
            drop(state);
            // There is nowhere to say that this failed.
            let _ = target.write_all(&lines).and_then(|()| target.flush());
            self.lock().out += lines.len() as u64;
            self.taken.notify_all();
            lines.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a whole line by each write.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> Result<usize> {
        let Shared { filled, taken, .. } = &*self.0;
        let mut state = self.0.lock();
        while state.waiting.len() > MOST_WAITING {
            state = taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.extend_from_slice(line);
        state.said += line.len() as u64;
        filled.notify_one();
        Ok(line.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Hands on what it is given; each write waits for a permit.
    struct Gate {
        permits: mpsc::Receiver<Result<()>>,
        written: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.permits.recv().unwrap()?;
            self.written.send(bytes.to_vec()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn gate() -> (Lines, mpsc::Sender<Result<()>>, mpsc::Receiver<Vec<u8>>) {
        let ((permit, permits), (written, read)) = (mpsc::channel(), mpsc::channel());
        (Lines::to(Gate { permits, written }).unwrap(), permit, read)
    }

    // req: OPS-08
    #[test]
    fn what_was_said_meanwhile_is_written_at_once_and_in_order() {
        let (lines, permit, written) = gate();
        for line in ["one\n", "two\n", "three\n"] {
            (&lines).write_all(line.as_bytes()).unwrap();
        }
        assert!(!lines.flush(Duration::from_millis(1)), "nothing is out yet");
        // The first may have left alone.
        for _ in 0..2 {
            permit.send(Ok(())).unwrap();
        }
        assert!(lines.flush(PATIENCE));
        assert_eq!(written.try_iter().collect::<Vec<_>>().concat(), b"one\ntwo\nthree\n");
    }

    #[test]
    fn one_that_cannot_be_written_holds_nobody_up() {
        let (lines, permit, written) = gate();
        permit.send(Err(Error::from(ErrorKind::BrokenPipe))).unwrap();
        (&lines).write_all(b"lost\n").unwrap();
        assert!(lines.flush(PATIENCE));
        permit.send(Ok(())).unwrap();
        (&lines).write_all(b"kept\n").unwrap();
        assert!(lines.flush(PATIENCE));
        assert_eq!(written.try_iter().collect::<Vec<_>>().concat(), b"kept\n");
    }

    #[test]
    fn who_says_more_than_is_read_waits_and_loses_nothing() {
        let (lines, permit, written) = gate();
        let line = vec![b'x'; MOST_WAITING / 2 + 1];
        let talker = thread::spawn({
            let (lines, line) = (lines.clone(), line.clone());
            move || (0..6).for_each(|_| (&lines).write_all(&line).unwrap())
        });
        for _ in 0..6 {
            permit.send(Ok(())).unwrap();
        }
        talker.join().unwrap();
        assert!(lines.flush(PATIENCE));
        assert_eq!(written.try_iter().map(|bytes| bytes.len()).sum::<usize>(), 6 * line.len());
    }
}
