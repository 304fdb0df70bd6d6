//! `--help` of every command is complete, and changes only on purpose.

use super::run;

// req: OPS-02
#[test]
fn every_command_explains_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut pending: Vec<Vec<String>> = vec![Vec::new()];
    let mut all = String::new();
    while let Some(command) = pending.pop() {
        let mut arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        arguments.push("--help");
        let (code, stdout, stderr) = run(folder.path(), &arguments);
        assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
        all.push_str(&format!("$ taskhold {}\n{stdout}\n", arguments.join(" ")));
        let subcommands = stdout.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap());
        for line in subcommands.lines().rev() {
            // Deeper indented lines go on explaining the command above them.
            match line.strip_prefix("  ").filter(|line| !line.starts_with(' ')).and_then(|line| line.split(' ').next())
            {
                Some("help") | None => {}
                Some(name) => pending.push([command.clone(), vec![name.to_owned()]].concat()),
            }
        }
    }
    insta::assert_snapshot!("help", all);
}

#[test]
fn the_version_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(folder.path(), &["--version"]);
    assert_eq!((code, stdout.trim()), (0, concat!("taskhold ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn a_command_line_that_cannot_be_used_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["no-such-command"][..],
        &["serve", "--no-such-flag"],
        &["serve", "--auth", "oauth"],
        &["token", "create"],
        &["token", "create", "--name", "a", "--expires", "soon"],
        &["token", "revoke", "not-an-id"],
        &["tasks", "list", "--limit", "0"],
        &[],
    ] {
        let (code, stdout, stderr) = run(folder.path(), arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(!stderr.is_empty(), "{arguments:?}");
    }
}
