//! A client on a bare connection, which takes no more of its answer than it is told to.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::client::Client;

/// The system on its side takes about so much of an answer that it does not read. A few segments of the local interface:
/// a smaller window opens by timers alone.
const BUFFER: u32 = 256 * 1024;
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer whose body is not read yet.
pub struct Unread {
    stream: TcpStream,
    /// Status and headers.
    pub head: String,
    /// What came of the body together with the head.
    begun: usize,
}

impl Unread {
    /// POSTs a message as this client, and reads the answer's head.
    pub async fn post(client: &Client, body: &str) -> Self {
        let address = client.url.strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(BUFFER).unwrap();
        let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: {}\r\n\
             authorization: Bearer {}\r\nmcp-session-id: {}\r\ncontent-length: {}\r\n\r\n",
            client.accept,
            client.token.as_deref().unwrap(),
            client.session.as_deref().unwrap(),
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let (mut read, mut chunk) = (Vec::new(), [0; 1024]);
        let end = loop {
            let count = tokio::time::timeout(PATIENCE, stream.read(&mut chunk)).await.unwrap().unwrap();
            assert_ne!(count, 0, "the connection ended: {}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&chunk[..count]);
            if let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8(read[..end].to_vec()).unwrap();
        Self { stream, head, begun: read.len() - end }
    }

    /// Takes so many bytes of the body at most, and that often; how many there were before it was so long or the connection
    /// ended.
    pub async fn take(&mut self, body: usize, at_once: usize, every: Duration) -> usize {
        let mut pace = tokio::time::interval(every.max(Duration::from_nanos(1)));
        let mut chunk = vec![0; at_once];
        while self.begun < body {
            pace.tick().await;
            let wanted = at_once.min(body - self.begun);
            match tokio::time::timeout(PATIENCE, self.stream.read_exact(&mut chunk[..wanted])).await.unwrap() {
                Ok(_) => self.begun += wanted,
                Err(_) => break,
            }
        }
        self.begun
    }

    /// The length of the body, where the head says it.
    pub fn length(&self) -> usize {
        let line = self.head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        line.parse().unwrap()
    }
}
