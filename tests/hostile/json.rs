//! JSON text at the edges of the grammar, as text: no value of a parser could hold it.

use proptest::prelude::*;
use proptest::sample::select;

/// White space between tokens, line breaks too.
pub fn space() -> impl Strategy<Value = &'static str> + Clone {
    prop_oneof![6 => Just(""), 2 => Just(" "), 1 => select(vec!["\n", "\r\n", "\r", "\t", " \n\t\r "])]
}

fn number() -> impl Strategy<Value = String> + Clone {
    let hostile = [
        "1e400",
        "-1e400",
        "1.0",
        "-0",
        "-0.0",
        "0e-0",
        "1E+2",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775809",
        "123456789012345678901234567890",
        "0.1000000000000000055511151231257827",
        "5e-324",
        "1e-999999",
    ];
    let hostile = hostile.map(str::to_owned).to_vec();
    prop_oneof![2 => select(hostile), 1 => "-?(0|[1-9][0-9]{0,12})(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,3})?"]
}

/// What is between the quotes of a string.
fn characters() -> impl Strategy<Value = String> + Clone {
    let pieces = [
        "\\u0000",
        "\\ud800",
        "\\uDFFF",
        "\\udc00\\ud800",
        "\\ud83d\\ude00",
        "\\/",
        "\\\\",
        "\\\"",
        "\\n",
        "\\u000A",
        "\\u0041",
        "\u{2028}",
        "\u{7f}",
        "\u{feff}",
        "é",
        "日本",
        "🦀",
        "data: ",
        "{\\\"a\\\":[",
        "]}",
        ",",
        ":",
        "//",
        "a",
        " ",
    ];
    prop::collection::vec(select(pieces.to_vec()), 0..5).prop_map(|pieces| pieces.concat())
}

pub fn string() -> impl Strategy<Value = String> + Clone {
    characters().prop_map(|text| format!("\"{text}\""))
}

/// Any value, nested at most so deep; now and then exactly so deep. Keys may be there twice.
pub fn value(depth: usize) -> BoxedStrategy<String> {
    let literal = select(vec!["true", "false", "null", "[]", "{}"]).prop_map(str::to_owned);
    let leaf = prop_oneof![2 => number(), 2 => string(), 1 => literal];
    let shallow = leaf.prop_recursive(4, 24, 4, |inner| {
        let item =
            (space(), inner.clone(), space()).prop_map(|(before, value, after)| [before, &value, after].concat());
        let items = prop::collection::vec(item, 0..4).prop_map(|items| format!("[{}]", items.join(",")));
        // Few keys, so that some are there twice.
        let key = prop_oneof![1 => Just("\"\"".to_owned()), 1 => Just("\"\\u0061\"".to_owned()), 1 => string()];
        let members = prop::collection::vec(member(key, inner), 0..4);
        prop_oneof![items, members.prop_map(|members| format!("{{{}}}", members.join(",")))]
    });
    (shallow, 0..=depth, any::<bool>())
        .prop_map(move |(value, levels, all)| {
            let free = depth.saturating_sub(levels_of(&value));
            let levels = if all && levels % 4 == 0 { free } else { levels.min(free) };
            let open: String = (0..levels).map(|level| if level % 2 == 0 { "[" } else { "{\"d\":" }).collect();
            let close: String = (0..levels).rev().map(|level| if level % 2 == 0 { "]" } else { "}" }).collect();
            [&open, value.as_str(), &close].concat()
        })
        .boxed()
}

fn member(
    key: impl Strategy<Value = String> + Clone,
    value: impl Strategy<Value = String> + Clone,
) -> impl Strategy<Value = String> + Clone {
    (space(), key, space(), space(), value, space())
        .prop_map(|(before, key, colon, start, value, after)| [before, &key, colon, ":", start, &value, after].concat())
}

/// The members of an object whose keys differ, at least one: where twins are refused.
pub fn members(depth: usize) -> impl Strategy<Value = Vec<String>> {
    let one = (space(), characters(), space(), value(depth), space());
    prop::collection::vec(one, 1..4).prop_map(|members| {
        let numbered = members.into_iter().enumerate();
        numbered
            .map(|(at, (before, key, colon, value, after))| format!("{before}\"{at}{key}\"{colon}:{value}{after}"))
            .collect()
    })
}

pub fn object(members: &[String]) -> String {
    format!("{{{}}}", members.join(","))
}

/// As it goes on: the breaks between tokens are spaces.
pub fn on_one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// How deep arrays and objects are nested in a text that this module made.
fn levels_of(text: &str) -> usize {
    let (mut level, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                level += 1;
                deepest = deepest.max(level);
            }
            b'}' | b']' if !in_string => level -= 1,
            _ => {}
        }
    }
    deepest
}
