//! Logs go to standard error: for people on a terminal, as JSON lines otherwise (OPS-08).

use std::io::{BufWriter, IsTerminal as _, Write};

use tracing::Subscriber;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Human,
    Json,
}

/// Lines that may wait for a reader of standard error. With more, whoever logs waits as well: none is lost.
const WAITING_LINES: usize = 16_384;

/// Keeps logging alive; when it is dropped, what was logged has been written.
#[must_use]
#[derive(Debug)]
pub struct Logs {
    _worker: WorkerGuard,
}

/// Starts logging and has panics logged. `filter` was checked when the configuration was read; one that cannot be used
/// all the same counts as `info`. Lines are written by a thread of their own, all that are there at once: a system call for
/// each would cost a request more than its look-up does (docs/performance.md).
pub fn init(filter: &str) -> Logs {
    let format = if std::io::stderr().is_terminal() { Format::Human } else { Format::Json };
    let lines = NonBlockingBuilder::default().lossy(false).buffered_lines_limit(WAITING_LINES).thread_name("logs");
    let (writer, worker) = lines.finish(BufWriter::new(std::io::stderr()));
    // Only tests start a second one in a process; the first stays.
    let _ = subscriber(filter, format, writer).try_init();
    std::panic::set_hook(Box::new(log_panic));
    Logs { _worker: worker }
}

fn subscriber<W>(filter: &str, format: Format, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match format {
        Format::Human => lines.with_target(false).boxed(),
        Format::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines)
}

fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let location = panic.location().map_or_else(String::new, ToString::to_string);
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let message = panic.payload_as_str().unwrap_or("no message");
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(panic.location = location, panic.thread = thread, panic.message = message, "a thread panicked");
    } else {
        // Logging is off or not yet on; a panic is worth a line all the same. If even that fails, nothing is left.
        let _ = writeln!(std::io::stderr(), "thread {thread} panicked at {location}: {message}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(filter: &str, format: Format, work: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        tracing::subscriber::with_default(subscriber(filter, format, move || writer.clone()), work);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    // req: OPS-08
    #[test]
    fn lines_are_json_or_for_people_and_filtered() {
        let work = || {
            tracing::info!(task.id = "t-1", "a task was created");
            tracing::debug!("not of interest");
        };
        let json = logged("info", Format::Json, work);
        assert_eq!(json.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&line["message"], &line["task.id"], &line["level"]),
            (&"a task was created".into(), &"t-1".into(), &"INFO".into())
        );
        let human = logged("debug", Format::Human, work);
        assert_eq!(human.lines().count(), 2);
        assert!(human.contains("INFO") && human.contains("a task was created"), "{human}");
        assert_eq!(logged("off", Format::Json, work), "");
    }
}
