//! A configuration that cannot be used stops every command before it does anything.

use super::{run, taskhold};

const COMMANDS: &[&[&str]] = &[
    &["serve"],
    &["token", "list"],
    &["token", "create", "--name", "a"],
    &["tasks", "list"],
    &["migrate"],
    &["migrate", "--check"],
];

// req: OPS-02
#[test]
fn every_command_refuses_an_unknown_key_and_touches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("taskhold.toml"), "[server]\nlistn = \"127.0.0.1:0\"\n").unwrap();
    for arguments in COMMANDS {
        let (code, stdout, stderr) = run(folder.path(), arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert_eq!(
            stderr,
            "taskhold: the configuration cannot be used\n  unknown key server.listn (taskhold.toml line 2); allowed in \
             [server]: listen, public_url, allowed_hosts, allowed_origins, drain, drain_delay\n"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no database was made");
}

// req: OPS-02
#[test]
fn an_unknown_variable_is_refused_and_those_of_kubernetes_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str| {
        let output = taskhold(folder.path()).arg("check").env(name, "x").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let refused = check("TASKHOLD_SERVER_LISTN");
    let message = "configuration: to do: unknown variable TASKHOLD_SERVER_LISTN in the environment; allowed: \
                   TASKHOLD_SERVER_LISTEN, ";
    assert!(refused.starts_with(message), "{refused}");
    for ignored in ["TASKHOLD_SERVICE_HOST", "TASKHOLD_PORT", "TASKHOLD_PORT_8080_TCP"] {
        assert!(check(ignored).starts_with("configuration: ok\n"), "{ignored}");
    }
}

// req: OPS-02
#[test]
fn a_flag_wins_over_the_environment_and_no_password_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = taskhold(folder.path());
    command.args(["migrate", "--database-url", "mysql://u:hunter2@h/d"]);
    command.env("TASKHOLD_DATABASE_URL", "sqlite://taskhold.db");
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr.contains(
            "database.url = \"mysql://u:***@h/d\" (--database-url): expected a URL that starts with sqlite:,"
        ),
        "{stderr}"
    );
}

// req: HTTP-02
#[test]
fn serving_others_without_authentication_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, stderr) = run(folder.path(), &["serve", "--auth", "none", "--listen", "0.0.0.0:0"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("server.listen = 0.0.0.0:0 is reached by other machines"), "{stderr}");
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, stderr) = run(folder.path(), &["--config", "nowhere.toml", "token", "list"]);
    assert_eq!(code, 2);
    assert!(
        stderr.starts_with("taskhold: the configuration cannot be used\n  the file nowhere.toml cannot be read: "),
        "{stderr}"
    );
}

// field case: F-GW-12
#[test]
fn an_upstream_on_the_command_line_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    for (upstream, message) in [
        (
            "No=x",
            "--upstream \"No\": expected NAME=COMMAND LINE or NAME=URL, with 1 to 32 of a-z, 0-9 and - as the name",
        ),
        ("a", "--upstream \"a\": expected NAME=COMMAND LINE"),
        ("python3 --key s3cret", "--upstream \"python3\": expected NAME=COMMAND LINE"),
        ("a='x", "--upstream a=...: expected a command line with balanced quotes"),
        ("a=", "--upstream a=...: expected a command line with balanced quotes"),
    ] {
        let (code, _, stderr) = run(folder.path(), &["serve", "--upstream", upstream]);
        assert_eq!(code, 2);
        assert!(stderr.contains(message) && !stderr.contains("s3cret"), "{stderr}");
    }
}
