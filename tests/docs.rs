//! Runs what the documents tell a reader to type.
//!
//! Every fenced block of code says in a comment on the line before it how it is checked:
//!
//! * `<!-- run -->`: by bash. All blocks of a page run in order in one shell; each command must succeed.
//! * `<!-- run, shows: TEXT -->`: its output must contain TEXT (white space aside).
//! * `<!-- server -->`: starts a server that later blocks talk to. `<!-- server again -->` kills it with SIGKILL first.
//! * `<!-- run by scripts/interop -->`: there, by the client that it is written for.
//! * `<!-- run by tests/process/behind_nginx.rs -->`: there, by the program that reads it.
//! * `<!-- run by tests/process/roles.rs -->`: there, by a PostgreSQL server of that test's own.
//! * `<!-- not run: WHY -->`.
//!
//! `text` blocks are no code and need no comment; `json` is parsed
//! and `toml` read as the service's configuration, with or without one. The shell finds the
//! binary under test as `taskhold` and behind `cargo run`. The address that the documents name and the token `th_...`
//! are replaced by those that the server printed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use taskhold::config::keys::{KEYS, UPSTREAM_KEYS};
use taskhold::config::{Config, DEFAULT_FILE, Sources};
use tempfile::TempDir;

/// How long one block, or the start of a server, may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where the documents say that the server listens.
const ADDRESS: &str = "127.0.0.1:8080";
/// What stands for the reader's token in the documents.
const TOKEN: &str = "th_...";
const READY: &str = "taskhold is listening on http://";

#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    line: usize,
    language: String,
    check: Check,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Check {
    Run {
        shows: Option<String>,
    },
    Server {
        again: bool,
    },
    /// Checked elsewhere, or not at all for a reason that is given.
    Elsewhere,
    /// Only its syntax, by its language.
    Parsed,
}

/// The blocks of a page, or what is wrong with it.
fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let lines: Vec<&str> = page.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(language) = lines[at].trim_start().strip_prefix("```") else {
            at += 1;
            continue;
        };
        let end = (at + 1..lines.len())
            .find(|&end| lines[end].trim_start() == "```")
            .ok_or_else(|| format!("line {}: the block has no end", at + 1))?;
        let before = at.checked_sub(1).map_or("", |before| lines[before].trim());
        let check = check(language, before).map_err(|why| format!("line {}: {why}", at + 1))?;
        let text = lines[at + 1..end].join("\n");
        found.push(Block { line: at + 1, language: language.to_owned(), check, text });
        at = end + 1;
    }
    Ok(found)
}

fn check(language: &str, before: &str) -> Result<Check, String> {
    let comment = before.strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->")).map(str::trim);
    let is_shell = language == "sh";
    match comment {
        Some("run") if is_shell => Ok(Check::Run { shows: None }),
        Some("server") if is_shell => Ok(Check::Server { again: false }),
        Some("server again") if is_shell => Ok(Check::Server { again: true }),
        Some("run by tests/process/behind_nginx.rs") if language == "nginx" => Ok(Check::Elsewhere),
        Some("run by scripts/interop") if matches!(language, "js" | "python") => Ok(Check::Elsewhere),
        Some("run by tests/process/roles.rs") if language == "sql" => Ok(Check::Elsewhere),
        Some(comment) => {
            let shows = comment.strip_prefix("run, shows:").filter(|text| is_shell && !text.trim().is_empty());
            let reason = comment.strip_prefix("not run:").filter(|reason| !reason.trim().is_empty());
            match (shows, reason) {
                (Some(text), _) => Ok(Check::Run { shows: Some(text.trim().to_owned()) }),
                (None, Some(_)) => Ok(Check::Elsewhere),
                (None, None) => Err(format!("a block of {language:?} cannot be checked as {comment:?}")),
            }
        }
        None if matches!(language, "text" | "json" | "toml") => Ok(Check::Parsed),
        None => Err(format!("a block of {language:?} does not say how it is checked")),
    }
}

/// Reads `json` as JSON, and `toml` as the service would read it.
fn parse(block: &Block) -> Result<(), String> {
    let read = match block.language.as_str() {
        "json" => serde_json::from_str::<serde_json::Value>(&block.text).map(drop).map_err(|error| error.to_string()),
        "toml" => {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(DEFAULT_FILE), &block.text).unwrap();
            let sources = Sources { directory: directory.path().to_owned(), ..Sources::default() };
            Config::load(&sources).map(drop).map_err(|error| error.to_string())
        }
        _ => Ok(()),
    };
    read.map_err(|error| format!("line {}: {error}", block.line))
}

/// A reader at a terminal: one shell, and the servers that it started.
struct Reader {
    shell: Child,
    input: ChildStdin,
    output: Receiver<String>,
    server: Option<Server>,
    folder: TempDir,
}

struct Server {
    child: Child,
    address: String,
    token: Option<String>,
}

impl Reader {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        shim(folder.path(), "taskhold", "");
        shim(folder.path(), "cargo", "[[ $1 == run ]] || exit 1\nwhile [[ $1 != -- ]]; do shift; done\nshift\n");
        let mut shell = bash(folder.path()).arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = shell.stdin.take().unwrap();
        writeln!(input, "exec 2>&1; set -euo pipefail").unwrap();
        let output = lines(shell.stdout.take().unwrap());
        Self { shell, input, output, server: None, folder }
    }

    /// Types a block and answers what it printed.
    fn run(&mut self, text: &str) -> Result<String, String> {
        const END: &str = "--the-block-ended--";
        let broken = |error: std::io::Error| format!("the shell is gone: {error}");
        writeln!(self.input, "{}\necho; echo {END}", self.fill_in(text)).map_err(broken)?;
        let mut output = String::new();
        loop {
            match self.output.recv_timeout(PATIENCE) {
                Ok(line) if line == END => return Ok(output),
                Ok(line) => output.extend([line.as_str(), "\n"]),
                Err(error) => return Err(format!("it did not succeed ({error}):\n{output}")),
            }
        }
    }

    /// Starts a server as the block says, at the address of the last one if there was one.
    fn serve(&mut self, text: &str, again: bool) -> Result<(), String> {
        let last = self.server.take();
        if again != last.is_some() {
            return Err("\"server again\" is for the second one, \"server\" for the first".to_owned());
        }
        let address = last.map_or_else(|| "127.0.0.1:0".to_owned(), |mut server| server.kill());
        let mut child = bash(self.folder.path())
            .args(["-c", &format!("exec {text}")])
            .env("TASKHOLD_SERVER_LISTEN", address)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = lines(child.stderr.take().unwrap());
        let mut server = Server { child, address: String::new(), token: None };
        let mut log = String::new();
        while server.address.is_empty() {
            let line = stderr.recv_timeout(PATIENCE).map_err(|error| {
                server.kill();
                format!("the server did not start ({error}):\n{log}")
            })?;
            if let Some(token) = token_in(&line) {
                server.token = Some(token.to_owned());
            }
            if let Some((_, rest)) = line.split_once(READY) {
                rest.split(['/', '"', ' ']).next().unwrap_or_default().clone_into(&mut server.address);
            }
            log.extend([line.as_str(), "\n"]);
        }
        // Keeps reading, so that the server never waits for room in its pipe.
        std::thread::spawn(move || stderr.into_iter().for_each(drop));
        self.server = Some(server);
        Ok(())
    }

    fn fill_in(&self, text: &str) -> String {
        let Some(server) = &self.server else { return text.to_owned() };
        let text = text.replace(ADDRESS, &server.address);
        server.token.as_ref().map_or(text.clone(), |token| text.replace(TOKEN, token))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            server.kill();
        }
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

impl Server {
    /// Ends it as a crash would; answers its address.
    fn kill(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.address.clone()
    }
}

/// A command of the reader's that is the binary under test once `before` has had its way with the arguments.
fn shim(folder: &Path, name: &str, before: &str) {
    let path = folder.join(name);
    let mut file = File::create(&path).unwrap();
    write!(file, "#!/bin/bash\n{before}exec '{}' \"$@\"\n", env!("CARGO_BIN_EXE_taskhold")).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o755)).unwrap();
}

fn bash(folder: &Path) -> Command {
    let mut bash = Command::new("bash");
    bash.current_dir(folder)
        .env_clear()
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", folder.display()))
        .env("HOME", folder)
        .env("LANG", "C.UTF-8");
    bash
}

fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// A token of ours in a line: 26, 52 and 13 characters after `th_`, never a part of a longer word such as `auth_mode`.
fn token_in(line: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    line.split(|c: char| !is_part(c)).find(|word| word.starts_with("th_") && word.len() >= 40)
}

fn read_page(page: &str) -> Result<(), String> {
    let mut reader = Reader::new();
    for block in blocks(page)? {
        let at = |why: String| format!("line {}: {why}\n{}", block.line, block.text);
        match &block.check {
            Check::Run { shows } => {
                let output = reader.run(&block.text).map_err(at)?;
                if let Some(text) = shows
                    && !without_space(&output).contains(&without_space(text))
                {
                    return Err(at(format!("{text:?} is not in the output:\n{output}")));
                }
            }
            Check::Server { again } => reader.serve(&block.text, *again).map_err(at)?,
            Check::Elsewhere | Check::Parsed => parse(&block)?,
        }
    }
    Ok(())
}

fn without_space(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Every page that a reader is meant to read, as its path from the root.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = Vec::new();
    let mut folders = vec![root.join("docs")];
    pages.extend(fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { pages.push(path) }
        }
    }
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// The blocks of SQL of a page, in their order.
pub fn sql_of(name: &str) -> Vec<String> {
    let blocks = blocks(&page(name)).unwrap().into_iter();
    blocks.filter(|block| block.language == "sql").map(|block| block.text).collect()
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

#[test]
fn every_page_says_how_its_code_is_checked() {
    let mut faults = Vec::new();
    for path in pages() {
        let found = blocks(&fs::read_to_string(&path).unwrap()).and_then(|blocks| blocks.iter().try_for_each(parse));
        faults.extend(found.err().map(|why| format!("{}: {why}", path.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

// req: OPS-01
#[test]
fn the_first_task_of_the_readme_works() {
    let readme = page("README.md");
    let run = blocks(&readme).unwrap().iter().filter(|block| matches!(block.check, Check::Run { .. })).count();
    assert!(run >= 5, "only {run} blocks of the README are run");
    read_page(&readme).unwrap_or_else(|why| panic!("README.md: {why}"));
}

// req: OPS-07
#[test]
fn the_limits_in_the_readme_are_the_defaults() {
    let readme = page("README.md");
    let table = readme.split("## Limits").nth(1).unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut named = Vec::new();
    for row in rows {
        let [_, _, value, names, _] = row.split('|').collect::<Vec<_>>()[..] else { panic!("not a row: {row}") };
        for name in names.split('`').skip(1).step_by(2) {
            let all = KEYS.iter().chain(UPSTREAM_KEYS);
            let key = all.into_iter().find(|key| key.path == name).unwrap_or_else(|| panic!("there is no key {name}"));
            let default = without_space(key.default.unwrap());
            assert!(without_space(value).replace(',', "").contains(&default), "{name} is {default}, not {value}");
            named.push(name);
        }
    }
    for name in ["tasks.max_ttl", "runner.slots", "limits.streams"] {
        assert!(named.contains(&name), "the README does not say how to change {name}");
    }
}

#[test]
fn what_the_other_pages_tell_to_type_works() {
    for path in pages().into_iter().filter(|path| !path.ends_with("README.md")) {
        let text = fs::read_to_string(&path).unwrap();
        if blocks(&text).unwrap().iter().any(|block| matches!(block.check, Check::Run { .. } | Check::Server { .. })) {
            read_page(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        }
    }
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for path in pages() {
        let text = fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") && !path.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

// --- the checks find what they are for ---------------------------------------------------------------------------

#[test]
fn a_block_that_does_not_say_how_it_is_checked_is_found() {
    assert!(blocks("```sh\nls\n```").is_err());
    assert!(blocks("<!-- run -->\n\n```sh\nls\n```").is_err());
    assert!(blocks("```\nls\n```").is_err());
    assert!(blocks("<!-- run -->\n```js\nx\n```").is_err());
    assert!(blocks("<!-- not run: -->\n```sh\nls\n```").is_err());
    assert!(blocks("<!-- runs -->\n```sh\nls\n```").is_err());
    assert!(blocks("<!-- run -->\n```sh\nls").is_err());
    assert_eq!(blocks("<!-- not run: it is long -->\n```sh\nls\n```").unwrap()[0].check, Check::Elsewhere);
    let shown = blocks("a\n<!-- run, shows: b -->\n```sh\necho b\n```").unwrap();
    assert_eq!(shown[0].check, Check::Run { shows: Some("b".to_owned()) });
    assert_eq!((shown[0].line, shown[0].text.as_str()), (3, "echo b"));
}

#[test]
fn broken_json_and_toml_are_found() {
    let fault = |text: &str| parse(&blocks(text).unwrap()[0]).is_err();
    assert!(fault("```json\n{\"a\": }\n```"));
    assert!(fault("```toml\na = = 1\n```"));
    assert!(!fault("```json\n{\"a\": 1}\n```"));
    assert!(fault("```toml\n[tasks]\nmax_tll = \"1h\"\n```"));
    assert!(!fault("```toml\n[tasks]\nmax_ttl = \"2h\"\n```"));
}

#[test]
fn a_command_that_fails_is_found() {
    assert_eq!(read_page("<!-- run, shows: a b -->\n```sh\nA='a  b'\necho \"$A\"\n```"), Ok(()));
    assert!(read_page("<!-- run -->\n```sh\nfalse\necho on\n```").is_err());
    assert!(read_page("<!-- run -->\n```sh\nfalse | true\n```").is_err());
    assert!(read_page("<!-- run -->\n```sh\nA=1\n```\n<!-- run, shows: 2 -->\n```sh\necho $A\n```").is_err());
    assert!(read_page("<!-- server -->\n```sh\ntrue\n```").is_err());
}
