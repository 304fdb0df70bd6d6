//! `taskhold migrate`.

use anyhow::{Context as _, bail};
use clap::Args;

use super::output;
use crate::config::Config;
use crate::store;

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// Change nothing; exit with 1 if the tables are not up to date
    #[arg(long)]
    check: bool,
    /// Print one JSON object: database, pending (the migrations that are missing; with --check only it can have any)
    #[arg(long)]
    json: bool,
}

impl MigrateArgs {
    pub async fn run(self, config: &Config) -> anyhow::Result<()> {
        let url = config.database.shown_url();
        let options = config.database.options();
        let pending = if self.check {
            store::check_migrations(&options)
                .await
                .with_context(|| format!("cannot read which migrations the database {url} has"))?
        } else {
            store::migrate(&options).await.with_context(|| format!("cannot bring the database {url} up to date"))?;
            Vec::new()
        };
        if self.json {
            output::json(&serde_json::json!({ "database": url, "pending": pending }))?;
        }
        if !pending.is_empty() {
            bail!("the database {url} lacks the migrations {}: run taskhold migrate", pending.join(", "));
        }
        if !self.json {
            output::complain(&format!("the database {url} is up to date"));
        }
        Ok(())
    }
}
