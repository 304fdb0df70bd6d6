//! URI templates (RFC 6570), as far as it takes to tell whether a URI can come from one.

/// Longer URIs match nothing: the work is the product of both lengths.
const MOST_URI: usize = 8192;

/// A template, ready to be matched against URIs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UriTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    /// What an expression may expand to.
    Hole(Hole),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hole {
    /// The byte that comes first if anything does.
    first: Option<u8>,
    /// Bytes that cannot be in it.
    without: &'static [u8],
    may_be_empty: bool,
}

impl UriTemplate {
    /// `None` if a brace is open at its end.
    #[must_use]
    pub fn parse(template: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((literal, tail)) = rest.split_once('{') {
            let (expression, tail) = tail.split_once('}')?;
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            parts.push(Part::Hole(Hole::of(expression)));
            rest = tail;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.to_owned()));
        }
        Some(Self(parts))
    }

    /// Whether some values of its variables give this URI.
    #[must_use]
    pub fn matches(&self, uri: &str) -> bool {
        let bytes = uri.as_bytes();
        if bytes.len() > MOST_URI {
            return false;
        }
        // Where the parts so far may end.
        let mut ends = vec![false; bytes.len() + 1];
        ends[0] = true;
        for part in &self.0 {
            ends = match part {
                Part::Literal(literal) => after_literal(&ends, bytes, literal.as_bytes()),
                Part::Hole(hole) => hole.after(&ends, bytes),
            };
        }
        ends[bytes.len()]
    }
}

impl Hole {
    fn of(expression: &str) -> Self {
        let any = |first| Self { first, without: b"", may_be_empty: true };
        match expression.as_bytes().first() {
            Some(b'+') => any(None),
            Some(b'#') => any(Some(b'#')),
            Some(b'/') => Self { first: Some(b'/'), without: b"?#", may_be_empty: true },
            Some(b'.') => Self { first: Some(b'.'), without: b"/?#", may_be_empty: true },
            Some(b';') => Self { first: Some(b';'), without: b"/?#", may_be_empty: true },
            Some(b'?') => Self { first: Some(b'?'), without: b"#", may_be_empty: true },
            Some(b'&') => Self { first: Some(b'&'), without: b"#", may_be_empty: true },
            _ => Self { first: None, without: b"/?#", may_be_empty: false },
        }
    }

    fn after(&self, ends: &[bool], bytes: &[u8]) -> Vec<bool> {
        let mut after = vec![false; ends.len()];
        // Whether an expansion is under way at this place.
        let mut open = false;
        for at in 0..ends.len() {
            after[at] = open || (ends[at] && self.may_be_empty);
            let Some(&byte) = bytes.get(at) else { break };
            let goes_on = open && !self.without.contains(&byte);
            let begins = ends[at]
                && match self.first {
                    Some(first) => byte == first,
                    None => !self.without.contains(&byte),
                };
            open = goes_on || begins;
        }
        after
    }
}

fn after_literal(ends: &[bool], bytes: &[u8], literal: &[u8]) -> Vec<bool> {
    let mut after = vec![false; ends.len()];
    for at in (0..ends.len()).filter(|&at| ends[at]) {
        if bytes[at..].starts_with(literal) {
            after[at + literal.len()] = true;
        }
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_matches_what_the_template_can_expand_to() {
        let matches = |template: &str, uri: &str| UriTemplate::parse(template).unwrap().matches(uri);
        for (template, uri) in [
            ("test://template/{id}/data", "test://template/7/data"),
            ("test://template/{id}/data", "test://template/a%2Fb/data"),
            ("x://{a}-{b}", "x://1-2-3"),
            ("file:///{+path}", "file:///a/b/c.txt"),
            ("x://y{/a,b}", "x://y/1/2"),
            ("x://y{/a}", "x://y"),
            ("x://y{?q,r}", "x://y?q=1&r=2"),
            ("x://y{?q}", "x://y"),
            ("x://y?a=1{&q}", "x://y?a=1&q=2"),
            ("x://y{.ext}", "x://y.txt"),
            ("x://y{#part}", "x://y#a/b"),
            ("x://plain", "x://plain"),
            ("{+all}", "x://z"),
        ] {
            assert!(matches(template, uri), "{template} {uri}");
        }
        for (template, uri) in [
            ("test://template/{id}/data", "test://template//data"),
            ("test://template/{id}/data", "test://template/a/b/data"),
            ("test://template/{id}/data", "test://template/7/data2"),
            ("x://y{/a}", "x://yz"),
            ("x://y{?q}", "x://y&q=1"),
            ("x://plain", "x://plain2"),
            ("x://{a}", "x://"),
        ] {
            assert!(!matches(template, uri), "{template} {uri}");
        }
        assert_eq!(UriTemplate::parse("x://{a"), None);
        assert!(!matches("{+all}", &"x".repeat(MOST_URI + 1)));
    }
}
