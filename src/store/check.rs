//! What would stand in the way of a start, or of serving well, as far as the database goes. Looking changes nothing.
//!
//! To add one more thing to look at: a function in the database's own file that adds a [`Finding`], which says what was found
//! and, where that is not good, what to do next.

use std::fmt::Display;

use super::options::{DatabaseOptions, Target};
use super::{check_postgres, check_sqlite};

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub what: String,
    pub ok: bool,
    /// What was found, or what to do.
    pub detail: String,
}

/// What was found of a database.
#[derive(Debug)]
pub struct Checked {
    pub findings: Vec<Finding>,
    /// Whether its tables are up to date and can be worked with.
    pub usable: bool,
}

/// Looks at the database as a start would meet it. `shown` names it to people; `migrates` says whether a start brings its
/// tables up to date.
pub async fn check(options: &DatabaseOptions, shown: &str, migrates: bool) -> Checked {
    let mut report = Report { shown: shown.to_owned(), migrates, findings: Vec::new() };
    let usable = match options.target() {
        Ok(Target::Sqlite(path)) => check_sqlite::check(&path, &mut report).await,
        Ok(Target::Postgres(targets)) => check_postgres::check(options, &targets, &mut report).await,
        Err(error) => {
            report.bad_database(error);
            false
        }
    };
    Checked { findings: report.findings, usable }
}

const DATABASE: &str = "database";

/// What was found so far.
pub(super) struct Report {
    pub shown: String,
    pub migrates: bool,
    findings: Vec<Finding>,
}

impl Report {
    pub fn good(&mut self, what: impl Into<String>, detail: impl Into<String>) {
        self.findings.push(Finding { what: what.into(), ok: true, detail: detail.into() });
    }

    pub fn bad(&mut self, what: impl Into<String>, detail: impl Display) {
        self.findings.push(Finding { what: what.into(), ok: false, detail: detail.to_string() });
    }

    /// Unless something else was found of it.
    pub fn good_database(&mut self) {
        if self.findings.iter().any(|finding| finding.what == DATABASE) {
            return;
        }
        self.good(DATABASE, self.shown.clone());
    }

    pub fn bad_database(&mut self, problem: impl Display) {
        self.bad(DATABASE, format!("{}: {problem}", self.shown));
    }

    /// What is to be said of migrations that are missing, and of those whose text is not the one that ran. `obstacle` is why
    /// they could not be run as things are.
    pub fn migrations(&mut self, pending: &[String], changed: &[(String, String)], obstacle: Option<&str>) {
        let missing = pending.join(", ");
        match (pending, self.migrates, obstacle) {
            ([], _, _) if changed.is_empty() => self.good("migrations", ""),
            ([], _, _) => {}
            (_, true, None) => self.good("migrations", format!("{missing} will run at the next start")),
            (_, false, None) => self.bad("migrations", format!("run taskhold migrate, for {missing}")),
            (_, _, Some(why)) => {
                let todo = "run taskhold migrate as a role that may (docs/databases.md, Roles)";
                self.bad("migrations", format!("{missing}: {why}: {todo}"));
            }
        }
        for (migration, checksum) in changed {
            let then = if pending.is_empty() {
                "a start runs, and the next migration will be refused"
            } else {
                "a start is refused"
            };
            self.bad(
                format!("migration {migration}"),
                format!(
                    "it was run with another text than it has in this binary, whose checksum is {checksum}: {then}; \
                     docs/databases.md says what to do"
                ),
            );
        }
    }
}
