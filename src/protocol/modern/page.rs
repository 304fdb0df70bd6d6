//! Lists in pages (MOD-07): a cursor names the last item that was shown, so that any node can go on.

use data_encoding::BASE64URL_NOPAD;

/// Items on a page.
pub const MOST: usize = 200;

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<'a, T> {
    pub items: &'a [T],
    /// Present exactly when there is more.
    pub next: Option<String>,
}

/// The page after `cursor`, by the `key` of each item, which is its alone. `None` if no item has what the cursor names: it is
/// none of ours, or the list has changed since.
pub fn page<'a, T>(all: &'a [T], cursor: Option<&str>, key: impl Fn(&T) -> &str) -> Option<Page<'a, T>> {
    let from = match cursor {
        None => 0,
        Some(cursor) => {
            let last = BASE64URL_NOPAD.decode(cursor.as_bytes()).ok()?;
            all.iter().position(|item| key(item).as_bytes() == last)? + 1
        }
    };
    let (items, rest) = all.get(from..)?.split_at((all.len() - from).min(MOST));
    let next = items.last().filter(|_| !rest.is_empty());
    Some(Page { items, next: next.map(|item| BASE64URL_NOPAD.encode(key(item).as_bytes())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: MOD-07
    #[test]
    fn every_item_is_on_one_page() {
        let all: Vec<String> = (0..2 * MOST + 1).map(|number| format!("item {number} é")).collect();
        let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = page(&all, cursor.as_deref(), String::as_str).unwrap();
            seen.extend_from_slice(page.items);
            pages += 1;
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!((pages, seen), (3, all.clone()));
        assert_eq!(page(&all[..MOST], None, String::as_str).unwrap().next, None, "a full page may be the last");
        for unknown in ["", "x", "!", &BASE64URL_NOPAD.encode(b"item")] {
            assert_eq!(page(&all, Some(unknown), String::as_str), None, "{unknown}");
        }
        let none: [String; 0] = [];
        assert_eq!(page(&none, None, String::as_str), Some(Page { items: &none[..], next: None }));
    }
}
