//! What a client declared that it serves, and which questions it may therefore be asked (INPUT-07).

use serde_json::{Value, json};

use super::input::{Answer, InputKind, Question};
use super::json::RawJson;
use super::schema;

const NOT_SERVED: i64 = -32601;
const NOT_DECLARED: i64 = -32602;

/// The declaration of `initialize`, read for what we ask of clients. What is no object counts as not declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCapabilities {
    elicitation: Option<Elicitation>,
    sampling: Option<Sampling>,
    roots: bool,
    /// Declared `tasks.requests` (CAP-08).
    elicitation_tasks: bool,
    sampling_tasks: bool,
    /// Declared `tasks.cancel`.
    cancels_tasks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Elicitation {
    form: bool,
    url: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sampling {
    tools: bool,
    context: bool,
}

impl ClientCapabilities {
    #[must_use]
    pub fn parse(raw: &RawJson) -> Self {
        let declared = schema::copy(raw.as_str()).unwrap_or_default();
        let object = |path: &str| declared.pointer(path).filter(|value| value.is_object());
        let elicitation = object("/elicitation").map(|modes| {
            let url = has_object(modes, "url");
            // Before there were modes an empty object meant forms; it still does.
            Elicitation { form: has_object(modes, "form") || !url, url }
        });
        let sampling = object("/sampling")
            .map(|uses| Sampling { tools: has_object(uses, "tools"), context: has_object(uses, "context") });
        Self {
            elicitation,
            sampling,
            roots: object("/roots").is_some(),
            elicitation_tasks: object("/tasks/requests/elicitation/create").is_some(),
            sampling_tasks: object("/tasks/requests/sampling/createMessage").is_some(),
            cancels_tasks: object("/tasks/cancel").is_some(),
        }
    }

    /// `None` if the client may be asked this. Else the error that such a client gives: -32601 for a kind that it does
    /// not serve, -32602 for a mode or a use that it did not declare.
    #[must_use]
    pub fn lacks(&self, question: &Question) -> Option<Answer> {
        let params = params_of(question);
        let missing = match question.kind {
            InputKind::Elicitation => {
                let Some(elicitation) = self.elicitation else { return Some(not_served(question.kind)) };
                lacking_mode(elicitation, &params)
            }
            InputKind::Sampling => {
                let Some(sampling) = self.sampling else { return Some(not_served(question.kind)) };
                lacking_use(sampling, &params)
            }
            InputKind::Roots => return (!self.roots).then(|| not_served(question.kind)),
        };
        missing.map(|what| error(NOT_DECLARED, &format!("this client did not declare {what}")))
    }

    /// Whether requests of this kind may be sent to the client as tasks of its own (CAP-08).
    #[must_use]
    pub const fn takes_tasks(&self, kind: InputKind) -> bool {
        match kind {
            InputKind::Elicitation => self.elicitation_tasks,
            InputKind::Sampling => self.sampling_tasks,
            InputKind::Roots => false,
        }
    }
}

impl ClientCapabilities {
    /// Whether tasks of the client's can be cancelled.
    #[must_use]
    pub const fn cancels_tasks(&self) -> bool {
        self.cancels_tasks
    }

    /// Whether the client visits URLs.
    #[must_use]
    pub fn visits_urls(&self) -> bool {
        self.elicitation.is_some_and(|elicitation| elicitation.url)
    }

    /// What of this we can carry, as it is declared to an upstream whose every request stands alone (EXEC-18).
    #[must_use]
    pub fn carried(&self) -> RawJson {
        let object = |members: &[(bool, &str)]| {
            let kept =
                members.iter().filter(|(is_declared, _)| *is_declared).map(|(_, name)| format!(r#""{name}":{{}}"#));
            format!("{{{}}}", kept.collect::<Vec<_>>().join(","))
        };
        let elicitation = self.elicitation.map(|modes| object(&[(modes.form, "form"), (modes.url, "url")]));
        let sampling = self.sampling.map(|uses| object(&[(uses.tools, "tools"), (uses.context, "context")]));
        let roots = self.roots.then(|| "{}".to_owned());
        let all = [("elicitation", elicitation), ("sampling", sampling), ("roots", roots)];
        let all = all.into_iter().filter_map(|(name, uses)| Some(format!(r#""{name}":{}"#, uses?)));
        RawJson::trusted(format!("{{{}}}", all.collect::<Vec<_>>().join(",")))
    }

    /// The same of a client whose revision has no tasks.
    #[must_use]
    pub const fn without_tasks(self) -> Self {
        Self { elicitation_tasks: false, sampling_tasks: false, cancels_tasks: false, ..self }
    }
}

/// The question's parameters to look at; an empty object if there are none.
pub(super) fn params_of(question: &Question) -> Value {
    let params = question.params.as_ref().and_then(|params| schema::copy(params.as_str()).ok());
    params.unwrap_or_else(|| json!({}))
}

fn lacking_mode(declared: Elicitation, params: &Value) -> Option<&'static str> {
    match params.get("mode").map(Value::as_str) {
        None | Some(Some("form")) => (!declared.form).then_some("elicitation.form"),
        Some(Some("url")) => (!declared.url).then_some("elicitation.url"),
        // Nobody could declare it: no question at all.
        Some(_) => None,
    }
}

fn lacking_use(declared: Sampling, params: &Value) -> Option<&'static str> {
    let with_tools = ["tools", "toolChoice"].iter().any(|name| params.get(name).is_some()) || talks_of_tools(params);
    let with_context = params.get("includeContext").is_some_and(|context| context != "none");
    if with_tools && !declared.tools {
        Some("sampling.tools")
    } else if with_context && !declared.context {
        Some("sampling.context")
    } else {
        None
    }
}

/// Whether a message of the conversation holds a use of a tool or its result.
fn talks_of_tools(params: &Value) -> bool {
    let messages = params.get("messages").and_then(Value::as_array).into_iter().flatten();
    messages.filter_map(|message| message.get("content")).any(|content| match content {
        Value::Array(blocks) => blocks.iter().any(is_of_tools),
        block => is_of_tools(block),
    })
}

fn is_of_tools(block: &Value) -> bool {
    block.get("type").and_then(Value::as_str).is_some_and(|kind| matches!(kind, "tool_use" | "tool_result"))
}

fn has_object(value: &Value, name: &str) -> bool {
    value.get(name).is_some_and(Value::is_object)
}

fn not_served(kind: InputKind) -> Answer {
    error(NOT_SERVED, &format!("this client does not serve {}", kind.method()))
}

fn error(code: i64, message: &str) -> Answer {
    Answer::Error(RawJson::from_value(&json!({ "code": code, "message": message })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_is_what_was_declared() {
        for (declared, carried) in [
            ("{}", "{}"),
            (
                r#"{"elicitation":{},"roots":{"listChanged":true},"tasks":{}}"#,
                r#"{"elicitation":{"form":{}},"roots":{}}"#,
            ),
            (
                r#"{"sampling":{"context":{},"x":1},"elicitation":{"url":{}},"extensions":{"a/b":{}}}"#,
                r#"{"elicitation":{"url":{}},"sampling":{"context":{}}}"#,
            ),
            (r#"{"sampling":{}}"#, r#"{"sampling":{}}"#),
        ] {
            assert_eq!(ClientCapabilities::parse(&RawJson::trusted(declared)).carried().as_str(), carried);
        }
    }

    fn code(capabilities: &str, kind: InputKind, params: &str) -> Option<i64> {
        let question = Question { kind, params: Some(RawJson::trusted(params)) };
        let lacks = ClientCapabilities::parse(&RawJson::trusted(capabilities)).lacks(&question);
        lacks.map(|answer| match answer {
            Answer::Error(json) => serde_json::from_str::<Value>(json.as_str()).unwrap()["code"].as_i64().unwrap(),
            Answer::Result(_) => panic!("a result where an error is due"),
        })
    }

    // req: INPUT-07 (legacy half)
    #[test]
    fn a_kind_that_is_not_declared_is_method_not_found() {
        for kind in InputKind::ALL {
            for none in ["{}", r#"{"elicitation":null,"sampling":true,"roots":[]}"#, r#"{"experimental":{"roots":{}}}"#]
            {
                assert_eq!(code(none, kind, "{}"), Some(-32601), "{kind:?} {none}");
            }
            assert_eq!(code(r#"{"elicitation":{},"sampling":{},"roots":{}}"#, kind, "{}"), None, "{kind:?}");
        }
    }

    // req: INPUT-07 (legacy half)
    #[test]
    fn an_elicitation_needs_its_mode() {
        let mode = |declared: &str, params: &str| {
            code(&format!(r#"{{"elicitation":{declared}}}"#), InputKind::Elicitation, params)
        };
        let (form, url, other) = (r#"{"mode":"form"}"#, r#"{"mode":"url"}"#, r#"{"mode":"voice"}"#);
        for declared in ["{}", r#"{"form":{}}"#, r#"{"form":{},"x":1}"#] {
            assert_eq!([mode(declared, "{}"), mode(declared, form)], [None, None], "{declared}");
            assert_eq!([mode(declared, url), mode(declared, other)], [Some(-32602), None], "{declared}");
        }
        let both = r#"{"form":{},"url":{}}"#;
        assert_eq!([mode(both, "{}"), mode(both, url), mode(both, r#"{"mode":1}"#)], [None, None, None]);
        let only_url = r#"{"url":{}}"#;
        assert_eq!(
            [mode(only_url, url), mode(only_url, form), mode(only_url, "{}")],
            [None, Some(-32602), Some(-32602)]
        );
    }

    // req: INPUT-07 (legacy half)
    #[test]
    fn sampling_with_tools_or_context_needs_their_declaration() {
        let plain = r#"{"messages":[{"role":"user","content":{"type":"text","text":"tool_use"}}],"maxTokens":1}"#;
        let of_tools = [
            r#"{"tools":[]}"#,
            r#"{"toolChoice":{}}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text"},{"type":"tool_result"}]}]}"#,
            r#"{"messages":[{"role":"assistant","content":{"type":"tool_use"}}]}"#,
        ];
        let of_context = r#"{"includeContext":"thisServer"}"#;
        let ask =
            |declared: &str, params: &str| code(&format!(r#"{{"sampling":{declared}}}"#), InputKind::Sampling, params);
        for params in of_tools {
            assert_eq!([ask("{}", params), ask(r#"{"context":{}}"#, params)], [Some(-32602); 2], "{params}");
            assert_eq!(ask(r#"{"tools":{}}"#, params), None, "{params}");
        }
        assert_eq!([ask("{}", of_context), ask(r#"{"tools":{}}"#, of_context)], [Some(-32602); 2]);
        assert_eq!(ask(r#"{"context":{}}"#, of_context), None);
        assert_eq!([ask("{}", plain), ask("{}", r#"{"includeContext":"none"}"#)], [None, None]);
    }

    // req: CAP-08
    #[test]
    fn requests_are_tasks_only_where_that_was_declared() {
        let takes = |raw: &str| {
            let capabilities = ClientCapabilities::parse(&RawJson::trusted(raw));
            InputKind::ALL.map(|kind| capabilities.takes_tasks(kind))
        };
        assert_eq!(takes(r#"{"elicitation":{},"sampling":{},"tasks":{"requests":{}}}"#), [false, false, false]);
        assert_eq!(takes(r#"{"tasks":{"requests":{"elicitation":{"create":{}}}}}"#), [true, false, false]);
        assert_eq!(takes(r#"{"tasks":{"requests":{"sampling":{"createMessage":{}}}}}"#), [false, true, false]);
        assert_eq!(takes(r#"{"tasks":{"requests":{"elicitation":{},"sampling":true}}}"#), [false, false, false]);
        let all = r#"{"tasks":{"cancel":{},"requests":{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}}}"#;
        let all = ClientCapabilities::parse(&RawJson::trusted(all));
        assert!(all.takes_tasks(InputKind::Sampling) && all.cancels_tasks());
        let older = all.without_tasks();
        assert!(!older.takes_tasks(InputKind::Sampling) && !older.takes_tasks(InputKind::Elicitation));
        assert!(!older.cancels_tasks());
    }

    #[test]
    fn a_declaration_that_no_parser_takes_is_read_all_the_same() {
        let odd = r#"{"x":1e999,"\ud800":"\udc00","roots":{}}"#;
        assert_eq!(code(odd, InputKind::Roots, "{}"), None);
    }
}
