//! Printing: data to standard output, words to standard error.

use std::io::{self, Write as _};

use serde::Serialize;

/// One line of data.
pub(super) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    ignore_closed(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// One JSON value as data.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(&serde_json::to_string_pretty(value)?)?)
}

/// Words for people. When even standard error is gone there is nobody to tell.
pub(super) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// An aligned table with a heading. The last column is as wide as it likes.
pub(super) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> io::Result<()> {
    line(&render(heading, rows))
}

fn render<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = std::iter::once(heading.map(str::to_owned))
        .chain(rows.iter().map(|row| row.each_ref().map(|c| plain(c))))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Text of users on one line, without anything that steers a terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `taskhold tasks list | head` is no error.
fn ignore_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_cannot_steer_a_terminal() {
        let rows = [["a", "wörking", "x\u{1b}[2J\ny"], ["long", "b", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(
            render(["ID", "STATUS", "MESSAGE"], &rows),
            "\
            ID    STATUS   MESSAGE\n\
            a     wörking  x [2J y\n\
            long  b"
        );
    }
}
