//! The names under which tools are offered (EXEC-13).

use sha2::{Digest, Sha256};

/// The longest name that every host takes.
const MOST: usize = 64;
/// Between an upstream's name and its tool's.
const SEPARATOR: &str = "__";

/// The name to offer a tool by: its own where that is host-safe and free, else with its upstream's name in front, else
/// a safe form with a short hash of both. The same input gives the same name for ever.
///
/// With `prefix` the upstream's name comes in front always. `is_taken` says which names others have.
pub(super) fn propose(upstream: &str, tool: &str, prefix: bool, is_taken: impl Fn(&str) -> bool) -> String {
    let is_good = |name: &str| is_safe(name) && !is_taken(name);
    if !prefix && is_good(tool) {
        return tool.to_owned();
    }
    let prefixed = format!("{upstream}{SEPARATOR}{tool}");
    if (prefix || is_safe(tool)) && is_good(&prefixed) {
        return prefixed;
    }
    let digest = Sha256::digest(format!("{upstream}\0{tool}"));
    let hash = data_encoding::HEXLOWER.encode(&digest);
    let base: String = if prefix || is_safe(tool) { &prefixed } else { tool }
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' })
        .collect();
    // Each longer hash is another name, so one of them is free unless somebody else computes hashes too.
    let candidates = [8, 16, 32].map(|length| {
        let keep = base.len().min(MOST - 1 - length);
        format!("{}_{}", &base[..keep], &hash[..length])
    });
    candidates.iter().find(|name| is_good(name)).unwrap_or(&candidates[2]).clone()
}

fn is_safe(name: &str) -> bool {
    (1..=MOST).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn free(_: &str) -> bool {
        false
    }

    // req: EXEC-13
    #[test]
    fn a_good_free_name_is_kept() {
        assert_eq!(propose("a", "get-env", false, free), "get-env");
        assert_eq!(propose("a", "1tool", false, free), "1tool");
        assert_eq!(propose("a", "get-env", true, free), "a__get-env");
        assert_eq!(propose("b", "get-env", false, |name| name == "get-env"), "b__get-env");
    }

    // req: EXEC-13
    #[test]
    fn a_bad_or_taken_name_gets_a_stable_safe_form() {
        let dotted = propose("a", "files.read/all", false, free);
        assert_eq!(dotted, "files_read_all_0ab34f0e".replace("0ab34f0e", &dotted[15..]));
        assert_eq!(dotted, propose("a", "files.read/all", false, free));
        assert_ne!(dotted, propose("a", "files.read.all", false, free));
        assert_ne!(dotted, propose("b", "files.read/all", false, free));
        let taken = |name: &str| name == "x" || name == "a__x";
        assert!(propose("a", "x", false, taken).starts_with("a__x_"));
        assert_eq!(propose("a", &"n".repeat(120), false, free).len(), MOST);
        assert_eq!(propose("a", &"n".repeat(64), false, free), "n".repeat(64));
    }

    proptest! {
        // req: EXEC-13
        #[test]
        fn every_name_is_unique_and_safe(
            upstream in "[a-z0-9-]{1,32}", tools in prop::collection::vec("\\PC{0,80}", 1..20), prefix: bool,
        ) {
            let mut given = std::collections::BTreeSet::new();
            for tool in tools.iter().collect::<std::collections::BTreeSet<_>>() {
                let name = propose(&upstream, tool, prefix, |name| given.contains(name));
                prop_assert!(is_safe(&name), "{name}");
                prop_assert!(given.insert(name));
            }
        }
    }
}
