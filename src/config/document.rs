//! `docs/configuration.md`, written from the list of keys.

use std::fmt::Write as _;

use super::keys::{KEYS, Key, TENANT_KEYS, TOOL_KEYS, UPSTREAM_KEYS};

const HEAD: &str = "\
# Configuration

<!-- Made from the list of keys in src/config/keys.rs: `UPDATE_DOCS=1 cargo test configuration_document` writes it. -->

Values come from four places; a later one wins:

1. the file `taskhold.toml` in the working directory, or the one that `--config FILE` names;
2. the file `.env` in the working directory (it is not looked for anywhere else);
3. the environment;
4. flags.

Each key of a section has exactly one variable. A variable that is set to nothing counts as not set. A key, or a variable
that starts with `TASKHOLD_`, that is not listed here is refused; so is a value that is not allowed. Ignored are
`TASKHOLD_SERVICE_*`, `TASKHOLD_PORT` and `TASKHOLD_PORT_*`, which Kubernetes sets for a service of that name, and
`TASKHOLD_TEST_*`.

Durations are texts such as `90s`, `10min` or `1h 30min`, or a number of seconds. Sizes are texts such as `64 KiB` or
`4 MiB`, or a number of bytes. Lists are separated by commas in a variable.

`taskhold.example.toml` and `.env.example` show all of it at once. `taskhold check` reads the configuration and says what is wrong with it.
";

/// The whole document.
#[must_use]
pub fn render() -> String {
    let mut text = HEAD.to_owned();
    let mut section = None;
    for key in KEYS {
        if section != Some(key.section()) {
            section = Some(key.section());
            match key.section() {
                "" => text.push_str("\n## At the top of the file\n"),
                name => put(&mut text, format_args!("\n## `[{name}]`\n")),
            }
        }
        put(&mut text, format_args!("\n### `{}`\n\n{}\n\n", key.path, key.doc));
        put(&mut text, format_args!("- Variable: `{}`\n", key.variable()));
        facts(&mut text, key);
    }
    text.push_str(
        "\n## `[[upstreams]]`\n\nThe MCP servers behind the service, in the order that decides which of two new tools \
         keeps a\ncommon name. `serve --upstream NAME='COMMAND LINE'` or `NAME=URL` adds one. They have no variables.\n",
    );
    entries(&mut text, UPSTREAM_KEYS);
    text.push_str(
        "\n## `[upstreams.tools.TOOL]`\n\nBelow an upstream; TOOL is the upstream's own name for the tool.\n",
    );
    entries(&mut text, TOOL_KEYS);
    text.push_str("\n## `[tenants.NAME]`\n\nNAME is what `taskhold token create --tenant NAME` gave.\n");
    entries(&mut text, TENANT_KEYS);
    text
}

fn entries(text: &mut String, keys: &[Key]) {
    for key in keys {
        put(text, format_args!("\n### `{}`\n\n{}\n\n", key.path, key.doc));
        facts(text, key);
    }
}

fn facts(text: &mut String, key: &Key) {
    put(text, format_args!("- Value: {}\n", key.kind));
    match key.default {
        Some("") => text.push_str("- Default: empty\n"),
        Some(default) => put(text, format_args!("- Default: `{default}`\n")),
        None => text.push_str("- Default: not set\n"),
    }
    if key.secret {
        text.push_str("- Secret: never shown\n");
    }
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("writing to a text cannot fail");
}
