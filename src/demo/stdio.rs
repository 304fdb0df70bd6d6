//! The demo server on its standard streams: one client, one message a line, both eras side by side.

use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use super::TaskOptions;
use super::legacy::Session;
use super::modern::{self, Server};
use super::toolbox::Toolbox;
use super::wire::{Incoming, error, error_line, send};
use crate::lifecycle::spawn;

/// Serves standard input and output until the input is closed.
pub(super) async fn serve(toolbox: Arc<dyn Toolbox>, tasks: Option<TaskOptions>) -> anyhow::Result<()> {
    let (out, queue) = mpsc::channel(256);
    let writer = spawn("demo server output", write(queue));
    let session = Session::new(Arc::clone(&toolbox), tasks.clone());
    session.set_own(out.clone());
    let server = Server::new(toolbox, tasks);
    let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
    while let Some(line) = lines.next_segment().await? {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let Some(incoming) = Incoming::read(&line) else {
            send(&out, error_line("null", &error(-32700, "this line is no JSON-RPC message"))).await;
            continue;
        };
        if incoming.method.as_deref() == Some("notifications/cancelled") {
            server.cancelled(incoming.params());
        }
        if modern::speaks(&incoming, None) {
            server.take(&incoming, &out).await;
        } else {
            session.take(&incoming, &out).await;
        }
    }
    server.close();
    session.close();
    writer.abort();
    Ok(())
}

async fn write(mut queue: mpsc::Receiver<String>) {
    let mut out = tokio::io::stdout();
    let mut lines = String::new();
    while let Some(first) = queue.recv().await {
        lines.clear();
        let mut next = Some(first);
        while let Some(line) = next {
            lines.push_str(&line);
            lines.push('\n');
            next = queue.try_recv().ok();
        }
        if out.write_all(lines.as_bytes()).await.is_err() || out.flush().await.is_err() {
            return;
        }
    }
}
