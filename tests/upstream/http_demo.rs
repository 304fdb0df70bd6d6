//! Calls of a real server by HTTP: the demo server as a process of its own.

use std::process::Stdio;

use taskhold::domain::ids::ContextId;
use taskhold::domain::outcome::Outcome;
use taskhold::executor::upstream::UpstreamConfig;
use taskhold::executor::{Attempt, Event};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::harness::{BINARY, World, error, legacy, text, within};

/// The demo server with its test tools; it ends with the test, however that ends.
pub struct Demo {
    pub url: String,
    pub child: Child,
}

impl Demo {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    pub async fn with(options: &[&str]) -> Self {
        Self::offering(&[&["--test-tools"], options].concat()).await
    }

    /// With other tools.
    pub async fn offering(options: &[&str]) -> Self {
        let mut child = Command::new(BINARY)
            .args(["demo-server", "--http", "127.0.0.1:0", "--stop-with-input"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = within("its URL", lines.next_line()).await.unwrap().unwrap();
        let printed: serde_json::Value = serde_json::from_str(&line).unwrap();
        Self { url: printed["url"].as_str().unwrap().to_owned(), child }
    }

    /// It as an upstream of the legacy era.
    pub fn config(&self, name: &str) -> UpstreamConfig {
        legacy(UpstreamConfig::at(name, &self.url))
    }
}

// req: EXEC-01, EXEC-12
#[tokio::test]
async fn a_real_server_by_url_is_called_like_one_by_command() {
    let demo = Demo::start().await;
    let command = [BINARY, "demo-server", "--test-tools"].map(str::to_owned).into();
    let world = World::new(vec![demo.config("web"), UpstreamConfig::new("local", command)]).await;
    let names = world.tool_names();
    assert!(names.contains(&"echo".to_owned()) && names.contains(&"local__echo".to_owned()), "{names:?}");
    let definition = |name: &str| {
        use taskhold::executor::Catalogue as _;
        world.upstreams.tool(name).unwrap().definition.as_str().to_owned()
    };
    assert_eq!(definition("echo"), definition("local__echo"), "relayed unchanged by both");
    let context = ContextId::new();
    let hostile =
        r#"{"z":1e400,"a":1.0,"big":18446744073709551615,"nul":"\u0000","half":"\ud800","u":"ü\u00fc","":[[]]}"#;
    for tool in ["echo", "local__echo"] {
        let attempt = world.answer(context, tool, hostile).await;
        let Attempt::Answered(Outcome::Result { json, is_error: false }) = &attempt else { panic!("{attempt:?}") };
        assert!(json.as_str().contains(&format!(r#""structuredContent":{hostile},"#)), "{}", json.as_str());
    }
    assert_eq!(error(&world.answer(context, "fail_rpc", r#"{"code":-32011}"#).await)["code"], -32011);
    let mut calls: Vec<_> = (1..=3).map(|n| world.call(context, "prog", &format!(r#"{{"n":{n}}}"#))).collect();
    for (call, n) in calls.iter_mut().zip(1_u32..) {
        for step in 1..=n {
            let event = within("progress", call.heard.events.recv()).await;
            assert!(matches!(event, Some(Event::Progress { progress, .. }) if progress == f64::from(step)));
        }
    }
    for call in calls {
        text(&call.end().await);
    }
    world.upstreams.stop().await;
}

// req: EXEC-02
#[tokio::test]
async fn a_server_that_crashes_loses_its_calls() {
    let mut demo = Demo::start().await;
    let world = World::new(vec![demo.config("web")]).await;
    let context = ContextId::new();
    let running = world.call(context, "sleep", r#"{"ms":60000}"#);
    assert_eq!(text(&world.answer(context, "sleep", r#"{"ms":1}"#).await), "slept 1 ms");
    let Attempt::Lost { .. } = world.answer(context, "crash", "{}").await else { panic!("a crash loses the call") };
    assert!(matches!(running.end().await, Attempt::Lost { .. }));
    within("its end", demo.child.wait()).await.unwrap();
    let Attempt::NotDispatched { detail } = world.answer(context, "sleep", r#"{"ms":1}"#).await else {
        panic!("unsent")
    };
    assert!(detail.contains("cannot be reached"), "{detail}");
    world.upstreams.stop().await;
}

#[tokio::test]
async fn the_demo_server_stops_with_its_input() {
    let mut demo = Demo::start().await;
    drop(demo.child.stdin.take());
    assert!(within("its end", demo.child.wait()).await.unwrap().success());
}
