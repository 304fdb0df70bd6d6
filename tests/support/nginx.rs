//! A real nginx.

use std::process::Stdio;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::server::lasting_address;
use crate::http::harness::until;

pub struct Nginx {
    child: Child,
    pub address: String,
    folder: TempDir,
}

impl Nginx {
    /// With the `server`s and the like that are to listen at the address that is given.
    pub async fn start(servers: impl FnOnce(&str) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = lasting_address();
        let at = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {at}/{name};"))
            .concat();
        let configuration = format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log; events {{}}\n\
             http {{ access_log off; {temporary}\n{}\n}}\n",
            servers(&address)
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, configuration).unwrap();
        // Where Debian has it, which may not be on the path of whoever runs the tests.
        let program =
            ["/usr/sbin/nginx"].into_iter().find(|path| std::path::Path::new(path).exists()).unwrap_or("nginx");
        let child = Command::new(program)
            .args(["-c", &file.display().to_string(), "-p", &folder.path().display().to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("nginx is installed");
        let nginx = Self { child, address, folder };
        until("nginx listens", async || TcpStream::connect(&nginx.address).await.is_ok()).await;
        nginx
    }

    /// The service's endpoint behind it.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// What it complained of.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}
