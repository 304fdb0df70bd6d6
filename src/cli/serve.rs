//! `taskhold serve`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use secrecy::ExposeSecret;

use super::{Common, output};
use crate::app::{self, Ready};
use crate::auth::OauthRules;
use crate::auth::issue::{Issuer, NewToken};
use crate::config::{AuthMode, Config, Overrides};
use crate::domain::context::ContextKey;

/// How long a demo token is good.
const DEMO_TOKEN: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Whether callers show an access token of this installation or of an OAuth issuer, or everybody who reaches the port is
    /// the same caller
    #[arg(long, value_name = "MODE", value_parser = ["token", "oauth", "none"])]
    auth: Option<String>,
    /// Add the demo upstream and print a fresh token (24 h) and a call to paste
    ///
    /// All demo tokens share one context: tasks of an earlier run are still there.
    #[arg(long)]
    demo: bool,
    /// With --demo: offer what the official MCP conformance suite calls instead of the demo's tools
    #[arg(long, requires = "demo")]
    conformance: bool,
    /// Add an MCP server that is started by a command or reached by a URL; may be repeated
    ///
    /// The command line is split as a shell splits words and run without a shell:
    /// --upstream everything='npx -y @modelcontextprotocol/server-everything'
    ///
    /// The server works in an empty directory of its own: name its files in full, as in --upstream mine="python3
    /// $PWD/server.py", or set cwd in taskhold.toml.
    #[arg(long = "upstream", value_name = "NAME=COMMAND LINE")]
    upstreams: Vec<String>,
}

impl ServeArgs {
    pub fn override_into(&self, overrides: &mut Overrides) -> anyhow::Result<()> {
        let listen = self.listen.iter().map(|value| ("--listen", "server.listen", value.clone()));
        let auth = self.auth.iter().map(|value| ("--auth", "auth.mode", value.clone()));
        overrides.flags.extend(listen.chain(auth));
        overrides.upstreams.clone_from(&self.upstreams);
        if self.demo {
            let binary =
                std::env::current_exe().context("cannot tell where this program is, to start the demo server")?;
            let mut command = vec![binary.display().to_string(), "demo-server".to_owned()];
            command.extend(self.conformance.then(|| "--conformance".to_owned()));
            overrides.upstreams.push(format!("demo={}", shell_words::join(command)));
        }
        Ok(())
    }

    pub async fn run(self, config: Config, common: &Common) -> anyhow::Result<()> {
        let again = common.again();
        let mode = config.auth.mode;
        let oauth = app::oauth_rules(&config);
        let base = config.server.public_url.clone();
        let has_upstreams = !config.upstreams.is_empty();
        let announce = async move |ready: Ready| {
            let url = format!("{}/mcp", base.unwrap_or_else(|| local_url(ready.address)));
            if self.demo {
                let call = if self.conformance { CONFORMANCE_CALL } else { DEMO_CALL };
                let text = match mode {
                    AuthMode::Token => demo_text(&url, Some(&demo_token(&ready).await?), call),
                    AuthMode::None => demo_text(&url, None, call),
                    // Only the issuer can make a token.
                    AuthMode::Oauth => format!("URL:   {url}\n"),
                };
                output::complain(&text);
            } else if mode == AuthMode::Token && ready.store.system().all_tokens().await?.is_empty() {
                output::complain(&format!(
                    "There are no access tokens yet, so nobody can call. Create one:\n  taskhold token create --name NAME{again}"
                ));
            }
            if !has_upstreams {
                tracing::warn!(
                    "no upstream is configured, so there are no tools: give --upstream NAME='COMMAND LINE' or NAME=URL, or add \
                     [[upstreams]] to taskhold.toml"
                );
            }
            if mode == AuthMode::None {
                tracing::warn!(
                    "authentication is off: everybody who reaches the port is the same caller and may read, await and \
                     cancel any task whose id they know; tasks are not listed"
                );
            }
            if mode == AuthMode::Oauth {
                let OauthRules { issuer, audience, .. } = &oauth;
                tracing::info!(issuer, audience, "callers show access tokens of this issuer for this audience");
            }
            // Always the address that was bound: who started this with port 0 learns the port here.
            output::complain(&format!("taskhold is listening on {}/mcp", local_url(ready.address)));
            Ok(())
        };
        app::run(config, announce).await
    }
}

fn local_url(address: SocketAddr) -> String {
    // An unspecified address is everywhere and so also here.
    let ip = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".to_owned(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => "[::1]".to_owned(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    format!("http://{ip}:{}", address.port())
}

async fn demo_token(ready: &Ready) -> anyhow::Result<String> {
    let store = ready.store.system();
    let key = ContextKey { issuer: "demo".to_owned(), subject: "demo".to_owned(), ..ContextKey::default() };
    let context = store.ensure_context(key, ready.clock.now()).await?;
    let issuer = Issuer::open(store, ready.clock.clone()).await?;
    let new = NewToken { name: "demo".to_owned(), context: Some(context), tenant: None, lifetime: Some(DEMO_TOKEN) };
    Ok(issuer.mint(new).await?.token.expose_secret().to_owned())
}

/// The call that `--demo` suggests: members of `params`.
const DEMO_CALL: &str = r#""name":"count_primes","arguments":{"below":20000000}"#;
/// The same where the demo offers what the conformance suite calls.
const CONFORMANCE_CALL: &str = r#""name":"test_tool_with_progress","arguments":{}"#;

/// What `--demo` prints: where, who, and a session with a task to paste into a shell.
fn demo_text(url: &str, token: Option<&str>, call: &str) -> String {
    const HEADERS: &str = "-H 'Content-Type: application/json' -H 'Accept: application/json'";
    let (token_line, auth_line, auth) = match token {
        Some(token) => (
            format!("Token: {token} (good for 24 h)\n"),
            format!("TOKEN={token}\n"),
            " -H \"Authorization: Bearer $TOKEN\"",
        ),
        None => (String::new(), String::new(), ""),
    };
    format!(
        r#"URL:   {url}
{token_line}
A tool that asks you something needs a client that reads event streams; docs/input.md shows one for the shell.
Paste this to start a task, look at it, and wait for its result:

URL={url}
{auth_line}mcp() {{ curl -sS "$URL"{auth} {HEADERS} -H "Mcp-Session-Id: $SESSION" -H 'MCP-Protocol-Version: 2025-11-25' -d "$1"; echo; }}
SESSION=$(curl -sS -o /dev/null -D - "$URL"{auth} {HEADERS} -d '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"curl","version":"1"}}}}}}' | tr -d '\r' | sed -n 's/^mcp-session-id: //ip')
CREATED=$(mcp '{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{{call},"task":{{}}}}}}'); echo "$CREATED"
TASK=$(echo "$CREATED" | sed 's/.*"taskId":"\([^"]*\)".*/\1/')
mcp '{{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{{"taskId":"'$TASK'"}}}}'
mcp '{{"jsonrpc":"2.0","id":4,"method":"tasks/result","params":{{"taskId":"'$TASK'"}}}}'
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_url_can_be_called() {
        for (address, url) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "http://[::1]:80"),
            ("[fe80::1]:80", "http://[fe80::1]:80"),
        ] {
            assert_eq!(local_url(address.parse().unwrap()), url);
        }
    }

    #[test]
    fn the_demo_text_is_a_shell_script_below_its_first_lines() {
        for (token, call) in [(Some("th_a_b_c"), DEMO_CALL), (None, DEMO_CALL), (None, CONFORMANCE_CALL)] {
            let text = demo_text("http://127.0.0.1:1/mcp", token, call);
            let (_, script) = text.split_once(":\n\n").unwrap();
            let checked = std::process::Command::new("sh").args(["-n", "-c", script]).status().unwrap();
            assert!(checked.success(), "{script}");
            assert_eq!(text.contains("Authorization"), token.is_some());
            for json in script.split('\'').filter(|part| part.starts_with('{') && part.ends_with('}')) {
                serde_json::from_str::<serde_json::Value>(json).unwrap();
            }
        }
    }
}
