//! `{arg}` and `{input.KEY.path}` in a fixture's texts.

use serde_json::Value;

/// What placeholders may name: the call's arguments, and the answers so far under `input`.
pub(super) struct Names<'a> {
    pub(super) arguments: &'a Value,
    pub(super) answers: &'a Value,
}

/// The template with every placeholder of its strings replaced; one that names nothing becomes empty.
pub(super) fn fill(template: &Value, names: &Names<'_>) -> Value {
    match template {
        Value::String(text) => Value::String(fill_text(text, names)),
        Value::Array(items) => items.iter().map(|item| fill(item, names)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| (name.clone(), fill(value, names)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

fn fill_text(text: &str, names: &Names<'_>) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, tail) = rest.split_at(open);
        filled.push_str(before);
        let name = tail[1..].split('}').next().filter(|name| tail.len() > name.len() + 1 && is_name(name));
        let taken = if let Some(name) = name {
            filled.push_str(&look_up(name, names));
            name.len() + 2
        } else {
            filled.push('{');
            1
        };
        rest = &tail[taken..];
    }
    filled + rest
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn look_up(name: &str, names: &Names<'_>) -> String {
    let value = match name.strip_prefix("input.") {
        Some(path) => path.split('.').try_fold(names.answers, |value, step| value.get(step)),
        None => names.arguments.get(name),
    };
    match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_and_answers_are_filled_in() {
        let names = Names {
            arguments: &json!({ "name": "Ann", "n": 3 }),
            answers: &json!({ "input-a": { "content": { "ok": true } } }),
        };
        let template = json!({ "text": "{name}, {n}: {input.input-a.content.ok} {missing}{not a name} {", "k": [1] });
        assert_eq!(fill(&template, &names), json!({ "text": "Ann, 3: true {not a name} {", "k": [1] }));
    }
}
