//! What passes through besides tools: prompts, resources, completions, logging, subscriptions.

mod calls;
mod listen;
mod lists;
mod streams;
mod subscriptions;

use std::path::Path;

use taskhold::executor::upstream::UpstreamConfig;

use crate::upstream::harness::{BINARY, legacy, script};

/// The demo server with prompts, resources and the rest, in the legacy era.
pub fn library(name: &str) -> UpstreamConfig {
    legacy(UpstreamConfig::new(name, [BINARY, "demo-server", "--conformance"].map(str::to_owned).into()))
}

/// A server that writes every line it reads to `log` and answers each request with what `$ANSWERS` has for its method, or
/// with `{}`; a method whose answer is `never` gets none.
pub fn recording(name: &str, log: &Path, capabilities: &str, answers: &[(&str, &str)]) -> UpstreamConfig {
    let cases: String = answers
        .iter()
        .map(|(method, answer)| match *answer {
            "never" => format!(r#"*'"method":"{method}"'*) ;; "#),
            answer => format!(r#"*'"method":"{method}"'*) say '{answer}' ;; "#),
        })
        .collect();
    let program = format!(
        r#"say() {{ printf '{{"jsonrpc":"2.0","id":%s,%s}}\n' "$id" "$1"; }}
while IFS= read -r line; do
  printf '%s\n' "$line" >> '{log}'
  id=$(printf '%s\n' "$line" | sed -n 's/^{{"jsonrpc":"2.0","id":\([0-9]*\).*/\1/p')
  [ -n "$id" ] || continue
  case "$line" in
    *'"method":"initialize"'*) say '"result":{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{"name":"s","version":"1"}}}}' ;;
    {cases}
    *) say '"result":{{}}' ;;
  esac
done"#,
        log = log.display(),
    );
    script(name, &program)
}

/// What a recording server has read of one method: the params, in their order.
pub fn heard(log: &Path, method: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    messages.filter(|message| message["method"] == method).map(|message| message["params"].clone()).collect()
}
