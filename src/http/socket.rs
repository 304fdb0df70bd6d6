//! A connection's socket, which knows whether its peer takes what it is sent.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// Reads and writes as `S` does.
pub(super) struct Socket<S> {
    inner: S,
    sent: watch::Sender<Sent>,
}

/// How a socket's writes went.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sent {
    /// How many found a place. One poll may hold such a write and one that finds none: without the count, whoever looks after
    /// it would see only the second.
    writes: u64,
    /// Whether the last one found none.
    is_full: bool,
}

/// Whether a socket's peer takes what it is sent.
pub(super) struct Taking(watch::Receiver<Sent>);

impl<S> Socket<S> {
    pub(super) fn new(inner: S) -> (Self, Taking) {
        let (sent, taking) = watch::channel(Sent::default());
        (Self { inner, sent }, Taking(taking))
    }

    fn note<T>(&self, written: Poll<T>) -> Poll<T> {
        let is_full = written.is_pending();
        self.sent.send_if_modified(|sent| {
            let now = Sent { writes: sent.writes + u64::from(!is_full), is_full };
            std::mem::replace(sent, now) != now
        });
        written
    }
}

impl Taking {
    /// Becomes ready when the peer has taken nothing for so long although there is something for it, or never.
    pub(super) async fn stalls(&mut self, patience: Duration) {
        loop {
            let Ok(full) = self.0.wait_for(|sent| sent.is_full).await.map(|sent| *sent) else {
                return std::future::pending().await;
            };
            if tokio::time::timeout(patience, self.0.wait_for(|sent| *sent != full)).await.is_err() {
                return;
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_noticed() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let (mut socket, mut taking) = Socket::new(ours);
        assert!(taking.stalls(Duration::ZERO).now_or_never().is_none(), "there is nothing to take");
        let sent = async {
            socket.write_all(&[7; 100]).await.unwrap();
        };
        let read = async {
            theirs.read_exact(&mut [0; 95]).await.unwrap();
        };
        tokio::select! {
            () = taking.stalls(PATIENCE) => panic!("it takes what it is sent"),
            _ = async { tokio::join!(sent, read) } => {}
        }
        assert!(taking.stalls(Duration::ZERO).now_or_never().is_none(), "all that was written has a place");
        let stalls = taking.stalls(Duration::from_millis(10));
        tokio::select! {
            () = async { tokio::time::timeout(PATIENCE, stalls).await.unwrap() } => {}
            written = socket.write_all(&[7; 100]) => panic!("nobody takes it: {written:?}"),
        }
    }
    #[tokio::test]
    async fn a_peer_that_takes_a_little_at_a_time_is_waited_for() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let (mut socket, mut taking) = Socket::new(ours);
        // Far apart: on a busy machine a byte may be late.
        let (patience, pause) = (Duration::from_secs(1), Duration::from_millis(50));
        let sent = async {
            // Each byte that is taken makes room for one, and none for the next.
            socket.write_all(&[7; 60]).await.unwrap();
        };
        let read = async {
            let mut every = tokio::time::interval(pause);
            for _ in 0..50 {
                every.tick().await;
                theirs.read_u8().await.unwrap();
            }
        };
        let began = std::time::Instant::now();
        tokio::select! {
            () = taking.stalls(patience) => panic!("it takes what it is sent"),
            _ = async { tokio::join!(sent, read) } => {}
        }
        assert!(began.elapsed() > 2 * patience, "for longer than a silent one");
    }
}
