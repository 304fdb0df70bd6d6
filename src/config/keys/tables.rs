//! The keys of the tables that may be repeated: upstreams, their tools, tenants.

use std::time::Duration;

use super::{CENTURY, DAY, Key, SECOND, duration};
use crate::config::value::Kind;
use crate::executor::upstream::Protocol;

/// The keys of an entry of `[[upstreams]]`. Only the file and `--upstream` give upstreams.
pub const UPSTREAM_KEYS: &[Key] = &[
    Key::unset("name", Kind::UpstreamName, "Required and unique."),
    Key::unset(
        "command",
        Kind::Command,
        "The command that starts the MCP server on its standard streams. A text is split as a shell splits words and run \
         without a shell; a list is taken as it is. An upstream has either this or `url`.",
    ),
    Key::unset(
        "url",
        Kind::Endpoint,
        "The URL of an MCP server that speaks Streamable HTTP, such as `https://mcp.example.com/mcp`. It is logged \
         without user info and query.",
    )
    .secret(),
    Key::unset(
        "headers",
        Kind::TextTable,
        "What each request to `url` carries besides MCP's own headers. `${NAME}` takes a variable of ours (`$${` is a \
         plain `${`). Values are never shown. Headers of callers are never passed on.",
    )
    .secret(),
    Key::unset(
        "bearer_env",
        Kind::Text,
        "The variable of ours that holds the token for `url`, sent as `Authorization: Bearer`.",
    ),
    Key::unset(
        "env",
        Kind::TextTable,
        "What the server finds in its environment besides `PATH`, `HOME`, `LANG`, `TERM`, `TMPDIR` and `USER`. \
         `${NAME}` takes a variable of ours (`$${` is a plain `${`). Values are never shown.",
    )
    .secret(),
    Key::unset(
        "cwd",
        Kind::Text,
        "The server's working directory, such as `.` for that of the service; an empty one of its own when not set. Relative \
         paths among the command's arguments mean this directory.",
    ),
    Key::new(
        "protocol",
        Kind::Choice(&Protocol::WORDS),
        "auto",
        "The revision that it speaks: `2026-07-28`, or `2025-11-25`, which stands for older ones, too. `auto` asks it.",
    ),
    Key::new(
        "shared",
        Kind::Flag,
        "false",
        "Whether all callers share one running server, or one session with it. Only for servers that keep nothing between calls.",
    ),
    Key::new("prefix", Kind::Flag, "false", "Whether its tools are offered as `NAME__TOOL`."),
    Key::new(
        "max_links",
        Kind::Count { min: 1, max: 10_000 },
        "32",
        "The most running servers of this upstream, or sessions with it, at a time.",
    ),
    Key::unset(
        "task",
        Kind::TaskMode,
        "Whether calls of its tools are tasks; each tool's own hint decides when not set, else `optional`.",
    ),
    Key::unset(
        "grace",
        duration(Duration::ZERO, DAY),
        "How long calls of its `optional` tools may run before they become tasks; `tasks.grace` when not set.",
    ),
];

/// The keys of `[upstreams.tools.TOOL]`, TOOL being the upstream's own name for it.
pub const TOOL_KEYS: &[Key] = &[
    Key::unset("task", Kind::TaskMode, "Whether calls of this tool are tasks."),
    Key::unset(
        "run_limit",
        duration(SECOND, CENTURY),
        "How long one attempt may run; at most `runner.hard_run_limit`. `runner.run_limit` when not set.",
    ),
    Key::unset(
        "slots",
        Kind::Count { min: 1, max: 1_000_000 },
        "The most of its tasks that run at once, on all nodes together; more wait in the queue and hold no other tool's tasks \
         up. Tasks made before it is set are not counted. Unlimited when not set.",
    ),
    Key::unset(
        "restart",
        Kind::Choice(&["retry", "fail"]),
        "What follows when a crash leaves a call's outcome unknown: `retry` runs it again, `fail` ends the task. When \
         not set, tools that say they are read-only or idempotent are retried.",
    ),
    Key::unset("ttl", duration(SECOND, CENTURY), "The time to live of its tasks where the caller asks for none."),
    Key::unset(
        "poll_interval",
        duration(Duration::from_millis(1), Duration::from_secs(3600)),
        "How often clients are asked to poll its tasks.",
    ),
    Key::unset(
        "grace",
        duration(Duration::ZERO, DAY),
        "How long a call of it may run before it becomes a task; its upstream's `grace` when not set.",
    ),
    Key::unset(
        "input_timeout",
        duration(Duration::from_millis(1), CENTURY),
        "How long its tasks wait for each answer; `tasks.input_timeout` when not set.",
    ),
    Key::unset(
        "ask_first",
        Kind::Flag,
        "Whether clients of revision 2026-07-28 are asked what a call of an `eager` or `always` tool asks within its `grace` \
         before it becomes a task. When not set, the tool's own hint decides.",
    ),
    Key::unset(
        "immediate_response",
        Kind::Text,
        "What the model of a client of revision 2025-11-25 is told at once when a call of it becomes a task.",
    ),
];

/// The keys of `[tenants.NAME]`, NAME being what `taskhold token create --tenant` gave.
pub const TENANT_KEYS: &[Key] = &[
    Key::new("tasks", Kind::Flag, "true", "Whether calls of this tenant can be tasks."),
    Key::unset(
        "slots",
        Kind::Count { min: 1, max: 1_000_000 },
        "The most tasks of all its callers that run at once, on all nodes together; more wait in the queue. Tasks made before \
         it is set are not counted. Unlimited when not set.",
    ),
    Key::unset(
        "queued",
        Kind::Count { min: 1, max: 10_000_000 },
        "The most tasks of all its callers that wait for a slot; one more is refused. It may be overrun by what other nodes \
         make within a second. Unlimited when not set.",
    ),
];
