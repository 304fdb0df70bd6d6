//! Logs go to standard error: for people on a terminal, as JSON lines otherwise (OPS-08).

use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use super::lines::Lines;

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Human,
    Json,
}

/// How long the end of a process waits for whoever reads its log.
const LAST_LINES: Duration = Duration::from_secs(3);

/// Keeps logging alive; dropped, it waits until what was logged is written, for [`LAST_LINES`] at most.
#[must_use]
#[derive(Debug)]
pub struct Logs(Option<Lines>);

impl Drop for Logs {
    fn drop(&mut self) {
        if let Some(lines) = &self.0 {
            lines.flush(LAST_LINES);
        }
    }
}

/// Starts logging and has panics logged. `filter` was checked when the configuration was read; one that cannot be used
/// all the same counts as `info`.
pub fn init(filter: &str) -> Logs {
    let format = if std::io::stderr().is_terminal() { Format::Human } else { Format::Json };
    let lines = Lines::to(std::io::stderr()).ok();
    // Only tests start a second one in a process; the first stays.
    let _ = match lines.clone() {
        Some(lines) => subscriber(filter, format, lines).try_init(),
        None => subscriber(filter, format, std::io::stderr).try_init(),
    };
    let of_panics = lines.clone();
    std::panic::set_hook(Box::new(move |panic| {
        log_panic(panic);
        // The process may end right after it.
        if let Some(lines) = &of_panics {
            lines.flush(LAST_LINES);
        }
    }));
    Logs(lines)
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
