//! Reads Rust source as text: modules, and the paths that code names. No parser: the walls need no more.

use std::collections::BTreeSet;

/// A path as it is written in code, from the crate's root (`crate`, `super` and `self` resolved) or from another crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub line: usize,
    pub ours: bool,
    pub path: Vec<String>,
}

/// `src/store/sqlite.rs` is `[store, sqlite]`, `src/store/mod.rs` is `[store]`, `src/lib.rs` is `[]`.
pub fn module_of(file: &str) -> Vec<String> {
    let inner = file.trim_start_matches("src/").trim_end_matches(".rs");
    let mut path: Vec<String> = inner.split('/').map(str::to_owned).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

/// The text up to the file's own test module.
pub fn product(text: &str) -> &str {
    let tail = test_modules(text).into_iter().find(|(_, name)| name.ends_with('{'));
    tail.map_or(text, |(at, _)| &text[..at])
}

/// Where modules that are compiled for tests only are declared, and what follows the word `mod`: `tests {` or `tests;`.
fn test_modules(text: &str) -> Vec<(usize, &str)> {
    const MARK: &str = "#[cfg(test)]\n";
    let at_line_start = |at: &usize| *at == 0 || text[..*at].ends_with('\n');
    let starts = text.match_indices(MARK).map(|(at, _)| at).filter(at_line_start);
    let named = |at: usize| Some((at, text[at + MARK.len()..].strip_prefix("mod ")?.lines().next()?.trim_end()));
    starts.filter_map(named).collect()
}

/// The modules that have a file of their own and are compiled for tests only.
pub fn test_files(sources: &[(String, String)]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for (file, text) in sources {
        for (_, name) in test_modules(text) {
            found.extend(name.strip_suffix(';').map(|name| [module_of(file), vec![name.to_owned()]].concat()));
        }
    }
    found
}

/// Every path of two or more segments, and every `use` of one, with the trees in braces taken apart.
pub fn names(module: &[String], text: &str) -> Vec<Named> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let goes_on =
            at > 0 && (tokens[at - 1].text == "." || (tokens[at - 1].text == "::" && !is_leading(&tokens, at - 1)));
        let starts = tokens[at].is_word()
            && tokens[at].text != "use"
            && !goes_on
            && tokens.get(at + 1).is_some_and(|next| next.text == "::");
        let after_use = at > 0 && tokens[at - 1].text == "use" && tokens[at].is_word();
        let tree_after_use = at > 0 && tokens[at - 1].text == "use" && tokens[at].text == "{";
        if starts || after_use || tree_after_use {
            let mut paths = Vec::new();
            at = tree(&tokens, at, &[], &mut paths).max(at + 1);
            found.extend(paths.into_iter().filter_map(|(line, path)| resolve(module, line, path)));
        } else {
            at += 1;
        }
    }
    found
}

/// Whether the `::` at `at` opens a path (`::sqlx`) instead of going on with one.
fn is_leading(tokens: &[Token], at: usize) -> bool {
    at == 0 || !(tokens[at - 1].is_word() || tokens[at - 1].text == ">") || tokens[at - 1].text == "use"
}

/// Reads `a::b::{c, d::e}` from `at`; answers the index after it.
fn tree(tokens: &[Token], mut at: usize, prefix: &[String], paths: &mut Vec<(usize, Vec<String>)>) -> usize {
    let mut path = prefix.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.line);
    while let Some(token) = tokens.get(at) {
        if token.text == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|token| token.text != "}") {
                let next = tree(tokens, at, &path, paths);
                at = if next == at { at + 1 } else { next };
            }
            return at + 1;
        }
        if !token.is_word() && token.text != "*" {
            break;
        }
        path.push(token.text.clone());
        at += 1;
        if tokens.get(at).is_none_or(|next| next.text != "::") {
            break;
        }
        at += 1;
    }
    if path.len() > prefix.len() {
        paths.push((line, path));
    }
    at
}

fn resolve(module: &[String], line: usize, mut path: Vec<String>) -> Option<Named> {
    let first = path.first()?.clone();
    let base = match first.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module.split_last()?.1.to_vec(),
        "Self" => return None,
        _ => return Some(Named { line, ours: false, path }),
    };
    path.remove(0);
    let mut whole = base;
    for segment in path {
        match segment.as_str() {
            "super" => drop(whole.pop()),
            "self" => {}
            _ => whole.push(segment),
        }
    }
    Some(Named { line, ours: true, path: whole })
}

#[derive(Debug, Clone)]
struct Token {
    line: usize,
    text: String,
}

impl Token {
    fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Words, `::` and single signs; comments, strings and characters are left out.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let start = at;
        match (chars[at], chars.get(at + 1).copied()) {
            ('/', Some('/')) => at = find(&chars, at, |rest| rest[0] == '\n'),
            ('/', Some('*')) => at = find(&chars, at + 2, |rest| rest.starts_with(&['*', '/'])) + 2,
            ('r', Some('"' | '#')) => {
                let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
                if chars.get(at + 1 + hashes) == Some(&'"') {
                    let mut end = vec!['"'];
                    end.resize(hashes + 1, '#');
                    at = find(&chars, at + 2 + hashes, |rest| rest.starts_with(&end)) + end.len();
                } else {
                    at += 1 + hashes; // a raw identifier
                }
            }
            ('"', _) => {
                at += 1;
                while at < chars.len() && chars[at] != '"' {
                    at += if chars[at] == '\\' { 2 } else { 1 };
                }
                at += 1;
            }
            ('\'', Some('\\')) => at = find(&chars, at + 3, |rest| rest[0] == '\'') + 1,
            ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at += 3,
            (':', Some(':')) => {
                at += 2;
                tokens.push(Token { line, text: "::".to_owned() });
            }
            (c, _) if c.is_alphanumeric() || c == '_' => {
                at = find(&chars, at, |rest| !(rest[0].is_alphanumeric() || rest[0] == '_'));
                tokens.push(Token { line, text: chars[start..at].iter().collect() });
            }
            (c, _) => {
                at += 1;
                if !c.is_whitespace() {
                    tokens.push(Token { line, text: c.to_string() });
                }
            }
        }
        line += chars[start..at.min(chars.len())].iter().filter(|&&c| c == '\n').count();
    }
    tokens
}

fn find(chars: &[char], from: usize, matches: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|&at| matches(&chars[at..])).unwrap_or(chars.len())
}
