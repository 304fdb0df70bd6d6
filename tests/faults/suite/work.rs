//! Calls that tell their results apart: each has a mark of its own, which its result has to carry wherever that can be.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A call, and what it has to give.
#[derive(Debug, Clone)]
pub struct Work {
    /// Nobody else's: the context and a number.
    pub mark: String,
    pub context: usize,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read-only, at once.
    Echo,
    /// Read-only, lasts so many milliseconds.
    Sleep(u64),
    /// Not to be repeated; leaves a line in its file each time it runs, then lasts so long.
    Charge(u64),
    /// Not to be repeated; asks its caller one question.
    Ask,
    /// A tool error.
    FailTool,
    /// A JSON-RPC error.
    FailRpc(i64),
}

impl Work {
    /// What `tools/call` is given.
    pub fn params(&self, charges: &Path) -> Value {
        let mark = &self.mark;
        let (name, arguments) = match self.kind {
            Kind::Echo => ("echo", json!({ "mark": mark })),
            Kind::Sleep(ms) => ("sleep", json!({ "ms": ms, "mark": mark })),
            Kind::Charge(ms) => ("charge", json!({ "file": self.file(charges), "ms": ms })),
            Kind::Ask => ("ask", json!({ "n": 1, "mark": mark })),
            Kind::FailTool => ("fail_tool", json!({ "message": mark })),
            Kind::FailRpc(code) => ("fail_rpc", json!({ "code": code, "mark": mark })),
        };
        json!({ "name": name, "arguments": arguments })
    }

    /// What its caller answers when it asks.
    pub fn answer(&self) -> Value {
        json!({ "action": "accept", "content": { "answer": self.mark } })
    }

    /// Whether this, a result or an error, is what the call gives when nothing breaks.
    pub fn gives(&self, outcome: &Value) -> bool {
        let (result, error) = (&outcome["result"], &outcome["error"]);
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        match self.kind {
            Kind::Echo => result["structuredContent"]["mark"] == *self.mark,
            Kind::Sleep(ms) => text == format!("slept {ms} ms"),
            Kind::Charge(_) => text == "charged",
            Kind::Ask => text.contains(&format!("{:?}", self.mark)) && result["isError"] != true,
            Kind::FailTool => result["isError"] == true && text == self.mark,
            Kind::FailRpc(code) => error["code"] == code && error["data"]["tool"] == "fail_rpc",
        }
    }

    /// Whether it may run more than once.
    pub fn may_be_repeated(&self) -> bool {
        !matches!(self.kind, Kind::Charge(_) | Kind::Ask)
    }

    /// How often it ran, where that can be counted.
    pub fn runs(&self, charges: &Path) -> Option<usize> {
        let Kind::Charge(_) = self.kind else { return None };
        Some(std::fs::read_to_string(self.file(charges)).map_or(0, |lines| lines.lines().count()))
    }

    fn file(&self, charges: &Path) -> PathBuf {
        charges.join(&self.mark)
    }
}
