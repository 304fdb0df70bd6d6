//! Child processes: what they get, and that none of them is left.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use taskhold::domain::ids::ContextId;
use taskhold::executor::upstream::UpstreamConfig;

use super::harness::{BINARY, World, is_running, pid_in, script, settings, test_tools, text, until};

// req: EXEC-25
#[tokio::test]
async fn a_child_gets_a_cleared_environment_and_a_directory_of_its_own() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let out = file.path().display();
    let dump = format!("{{ pwd; ls -A | wc -l; env; }} > {out}; exec {BINARY} demo-server --test-tools");
    let env = vec![("GIVEN".to_owned(), "yes $HOME".to_owned())];
    let mut settings = settings();
    settings.launcher.environment.retain(|(name, _)| name != "USER");
    let world = World::with(settings, vec![UpstreamConfig { env, ..script("u", &dump) }]).await;
    let dump = std::fs::read_to_string(file.path()).unwrap();
    let mut lines = dump.lines();
    let directory = std::path::PathBuf::from(lines.next().unwrap());
    assert!(directory.is_dir() && directory != std::env::current_dir().unwrap(), "{}", directory.display());
    assert_eq!(lines.next().unwrap().trim(), "0", "it is empty");
    let shells_own = ["PWD", "OLDPWD", "SHLVL", "_"];
    for line in lines {
        let name = line.split('=').next().unwrap();
        let allowed = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "GIVEN"];
        assert!(allowed.contains(&name) || shells_own.contains(&name), "{line}");
    }
    assert!(dump.contains("GIVEN=yes $HOME"));
    world.upstreams.stop().await;
    assert!(!directory.exists(), "deleted after");
}

// req: EXEC-14
#[tokio::test]
async fn a_stop_leaves_no_process_of_the_group() {
    let pids = tempfile::tempdir().unwrap();
    let dir = pids.path().display();
    // One grandchild ignores SIGTERM, one has left the group.
    let demo = format!(
        "(trap '' TERM; sleep 600 & echo $! > {dir}/stubborn; wait) & setsid sh -c 'echo $$ > {dir}/away; exec sleep 600' &
         echo $$ > {dir}/leader; exec {BINARY} demo-server --test-tools"
    );
    let world = World::new(vec![script("u", &demo)]).await;
    let mut family = Vec::new();
    for name in ["stubborn", "away", "leader"] {
        family.push(pid_in(&pids.path().join(name)).await);
    }
    assert!(family.iter().all(|&pid| is_running(pid)));
    world.upstreams.stop().await;
    assert!(family.iter().all(|&pid| !is_running(pid)), "{family:?}");
}

// req: EXEC-14
#[tokio::test]
async fn a_killed_service_leaves_no_process_of_the_group() {
    let pids = tempfile::tempdir().unwrap();
    let (service, child, grandchild) =
        (pids.path().join("service"), pids.path().join("child"), pids.path().join("grandchild"));
    let work = format!(
        "trap '' TERM; sleep 600 & echo $! > {}; echo $$ > {}; while true; do wait; sleep 1; done",
        grandchild.display(),
        child.display()
    );
    // A shell stands for the service: it starts the supervisor, then waits to be killed.
    let mut shell = Command::new("sh")
        .args(["-c", &format!(r#""$0" supervise --parent $$ -- sh -c "$1" & echo $! > {}; wait"#, service.display())])
        .args([BINARY, &work])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let family = [pid_in(&service).await, pid_in(&child).await, pid_in(&grandchild).await];
    assert!(family.iter().all(|&pid| is_running(pid)));
    shell.kill().unwrap();
    shell.wait().unwrap();
    until("the whole group to end", || family.iter().all(|&pid| !is_running(pid))).await;
}

#[tokio::test]
async fn the_end_of_a_killed_supervisor_ends_its_group() {
    let pids = tempfile::tempdir().unwrap();
    let dir = pids.path().display();
    let demo = format!("echo $PPID > {dir}/supervisor; echo $$ > {dir}/leader; exec {BINARY} demo-server --test-tools");
    let world = World::new(vec![UpstreamConfig { shared: true, ..script("u", &demo) }]).await;
    assert_eq!(text(&world.answer(ContextId::new(), "sleep", r#"{"ms":1}"#).await), "slept 1 ms");
    let (supervisor, leader) =
        (pid_in(&pids.path().join("supervisor")).await, pid_in(&pids.path().join("leader")).await);
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    until("the group to end", || !is_running(leader)).await;
    world.upstreams.stop().await;
}

#[test]
fn a_supervisor_hands_on_the_exit_code_and_the_streams() {
    let me = std::process::id().to_string();
    let supervise = |script: &str| {
        let mut child = Command::new(BINARY)
            .args(["supervise", "--parent", &me, "--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"in\n").unwrap();
        child.wait_with_output().unwrap()
    };
    let ended = supervise("read line; echo out $line; echo err >&2; exit 42");
    assert_eq!(ended.status.code(), Some(42));
    assert_eq!((&ended.stdout[..], &ended.stderr[..]), (&b"out in\n"[..], &b"err\n"[..]));
    assert_eq!(supervise("kill -9 $$").status.code(), Some(128 + 9));
    let missing = Command::new(BINARY).args(["supervise", "--parent", &me, "--", "/no/such/program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot start /no/such/program"));
    let orphan = Command::new(BINARY).args(["supervise", "--parent", "1", "--", "echo", "ran"]).output().unwrap();
    assert_eq!((orphan.status.code(), orphan.stdout.len()), (Some(1), 0), "nobody to serve");
}

// req: EXEC-25
#[tokio::test]
async fn the_last_lines_of_standard_error_are_kept() {
    let noisy = format!("for i in $(seq 1 150); do echo line $i >&2; done; exec {BINARY} demo-server --test-tools");
    let world = World::new(vec![script("u", &noisy)]).await;
    until("the last line", || world.upstreams.status()[0].1.stderr.last().is_some_and(|line| line == "line 150")).await;
    let (_, status) = world.upstreams.status().remove(0);
    assert_eq!((status.stderr.len(), status.stderr[0].as_str()), (100, "line 51"));
    assert!(status.connected && status.tools >= 11);
    world.upstreams.stop().await;
    let crashing = World::new(vec![script("c", "echo 'no license' >&2; exit 4"), test_tools("demo")]).await;
    let (_, status) = crashing.upstreams.status().remove(0);
    assert_eq!(status.stderr, ["no license"]);
    assert!(status.problem.unwrap().contains("exit code 4"));
    crashing.upstreams.stop().await;
}
