//! The upstreams of a configuration.

use std::time::Duration;

use secrecy::ExposeSecret;

use super::Given;
use crate::config::{ToolConfig, UpstreamConfig};
use crate::domain::lease::RestartPolicy;
use crate::domain::mode::TaskMode;

#[test]
fn upstreams_come_from_the_file_and_from_flags() {
    let given = Given::file(
        r#"
        [[upstreams]]
        name = "files"
        command = "npx -y 'a server'"
        cwd = "/srv"
        shared = true
        task = "eager"
        [upstreams.tools."slow tool"]
        task = "always"
        run_limit = "10min"
        slots = 2
        restart = "retry"
        ttl = 7200
        poll_interval = "2s"
        input_timeout = "1min"
        ask_first = true
        immediate_response = "started"
        [[upstreams]]
        name = "other"
        command = ["python3", "-m", "server"]
        "#,
    )
    .upstream("everything=npx -y '@modelcontextprotocol/server everything'");
    let upstreams = given.load().upstreams;
    assert_eq!(
        upstreams.iter().map(|upstream| upstream.name.as_str()).collect::<Vec<_>>(),
        ["files", "other", "everything"]
    );
    assert_eq!(upstreams[0].command, ["npx", "-y", "a server"]);
    assert_eq!(upstreams[1].command, ["python3", "-m", "server"]);
    assert_eq!(upstreams[2].command, ["npx", "-y", "@modelcontextprotocol/server everything"]);
    assert!(upstreams[0].shared && !upstreams[1].shared);
    assert_eq!((upstreams[0].task, upstreams[1].task), (Some(TaskMode::Eager), None));
    assert_eq!(upstreams[2].max_links, upstreams[1].max_links);
    assert_eq!(
        upstreams[0].tools["slow tool"],
        ToolConfig {
            task: Some(TaskMode::Always),
            run_limit: Some(Duration::from_secs(600)),
            slots: Some(2),
            restart: Some(RestartPolicy::Retry),
            ttl: Some(Duration::from_secs(7200)),
            poll_interval: Some(Duration::from_secs(2)),
            grace: None,
            input_timeout: Some(Duration::from_secs(60)),
            ask_first: Some(true),
            immediate_response: Some("started".to_owned()),
        }
    );
}

#[test]
fn upstreams_that_cannot_be_are_refused() {
    for (file, message) in [
        ("[[upstreams]]\ncommand = \"b\"", "upstreams[0].name is missing (taskhold.toml)"),
        (
            "[[upstreams]]\nname = \"a\"",
            "upstreams.a has neither command nor url (taskhold.toml): it needs one of them",
        ),
        (
            "[[upstreams]]\nname = \"A b\"\ncommand = \"b\"",
            "upstreams[0].name = \"A b\" (taskhold.toml line 2): expected 1 to 32 of a-z, 0-9 and -",
        ),
        (
            "[[upstreams]]\nname = \"a\"\ncommand = \"'b\"",
            "upstreams.a.command = \"'b\" (taskhold.toml line 3): expected a command line with balanced quotes",
        ),
        (
            "[[upstreams]]\nname = \"a\"\ncommand = \"b\"\n[[upstreams]]\nname = \"a\"\ncommand = \"c\"",
            "two upstreams have the name \"a\": names are unique",
        ),
        (
            "[[upstreams]]\nname = \"a\"\ncommand = \"b\"\n[upstreams.tools.t]\nrun_limit = \"2h\"",
            "upstreams.a.tools.t.run_limit = 2h is more than runner.hard_run_limit = 1h",
        ),
        (
            "[[upstreams]]\nname = \"a\"\ncommand = \"b\"\n[upstreams.tools]\nt = 1",
            "upstreams.a.tools.t = 1 (taskhold.toml): expected a table",
        ),
        (
            "[[upstreams]]\nname = \"a\"\ncommand = \"b\"\nenv = { X = \"${NO_SUCH}\" }",
            "upstreams.a.env.X: the environment has no variable NO_SUCH, which ${NO_SUCH} names",
        ),
    ] {
        let problem = Given::file(file).problem();
        assert!(problem.starts_with(message), "{problem}");
    }
    let problem = Given::nothing().upstream("no name").problem();
    assert!(problem.starts_with("--upstream \"no\": expected NAME=COMMAND LINE or NAME=URL"), "{problem}");
    let problem = Given::nothing().upstream("a='open").problem();
    assert!(problem.starts_with("--upstream a=...: expected a command line with balanced quotes"), "{problem}");
}

#[test]
fn an_upstream_by_url_has_its_headers_and_token_from_our_environment() {
    let given = Given::file(
        r#"
        [[upstreams]]
        name = "remote"
        url = "https://user:hunter2@mcp.example.com/mcp?key=hunter2"
        headers = { "X-Key" = "k-${KEY}", plain = "a b" }
        bearer_env = "TOKEN"
        "#,
    )
    .variable("KEY", "hunter2")
    .variable("TOKEN", "hunter2")
    .upstream("other=http://127.0.0.1:1/mcp");
    let config = given.load();
    let [remote, other] = &config.upstreams[..] else { panic!("two upstreams") };
    let url = |upstream: &UpstreamConfig| upstream.url.as_ref().unwrap().expose_secret().to_owned();
    assert_eq!(url(remote), "https://user:hunter2@mcp.example.com/mcp?key=hunter2");
    assert_eq!(url(other), "http://127.0.0.1:1/mcp");
    let headers: Vec<_> = remote.headers.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect();
    assert_eq!(headers, [("authorization", "Bearer hunter2"), ("plain", "a b"), ("x-key", "k-hunter2")]);
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn an_upstream_by_url_that_cannot_be_is_refused_and_shows_no_secret() {
    let entry = |rest: &str| format!("[[upstreams]]\nname = \"a\"\n{rest}");
    for (rest, message) in [
        (
            "url = \"http://h/\"\ncommand = \"b\"",
            "upstreams.a.url does not go with upstreams.a.command (taskhold.toml)",
        ),
        ("url = \"http://h/\"\ncwd = \".\"", "upstreams.a.cwd does not go with upstreams.a.url (taskhold.toml)"),
        ("command = \"b\"\nheaders = { a = \"hunter2\" }", "upstreams.a.headers does not go with upstreams.a.command"),
        ("url = \"ftp://u:hunter2@h/\"", "upstreams.a.url = (not shown) (taskhold.toml line 3): expected a URL"),
        ("url = \"http://h/#hunter2\"", "upstreams.a.url = (not shown) (taskhold.toml line 3): expected a URL"),
        (
            "url = \"http://h/\"\nheaders = { Host = \"hunter2\" }",
            "upstreams.a.headers.Host is set by the service itself",
        ),
        (
            "url = \"http://h/\"\nheaders = { \"a b\" = \"x\" }",
            "upstreams.a.headers has the name \"a b\", which no header",
        ),
        ("url = \"http://h/\"\nheaders = { a = \"hunter2\\n\" }", "upstreams.a.headers.a has a line break"),
        ("url = \"http://h/\"\nheaders = { a = \"1\", A = \"2\" }", "upstreams.a.headers.a is there twice"),
        (
            "url = \"http://h/\"\nheaders = { a = \"${NO}\" }",
            "upstreams.a.headers.a: the environment has no variable NO",
        ),
        ("url = \"http://h/\"\nbearer_env = \"NO\"", "upstreams.a.bearer_env = \"NO\": the environment has no such"),
        ("url = \"http://h/\"\nbearer_env = \"BAD\"", "upstreams.a.bearer_env = \"BAD\": what that variable holds"),
        (
            "url = \"http://h/\"\nbearer_env = \"GOOD\"\nheaders = { Authorization = \"hunter2\" }",
            "upstreams.a.bearer_env does not go with an authorization header",
        ),
    ] {
        let given = Given::file(&entry(rest)).variable("BAD", "hunter2 \n").variable("GOOD", "hunter2");
        let problem = given.problem();
        assert!(problem.starts_with(message) && !problem.contains("hunter2"), "{problem}");
    }
    let problem = Given::nothing().upstream("a=http://").problem();
    assert!(problem.starts_with("--upstream a=...: expected a URL"), "{problem}");
}
