//! `taskhold migrate`.

use anyhow::{Context as _, bail};
use clap::Args;

use super::output;
use crate::config::Config;
use crate::store;

/// Several processes may do this at once: one works, the others wait for it.
#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// Change nothing; exit with 1 if the tables are not up to date
    #[arg(long)]
    check: bool,
}

impl MigrateArgs {
    pub async fn run(self, config: &Config) -> anyhow::Result<()> {
        let url = config.database.shown_url();
        let options = config.database.options();
        if self.check {
            let pending = store::check_migrations(&options)
                .await
                .with_context(|| format!("cannot read which migrations the database {url} has"))?;
            if !pending.is_empty() {
                bail!("the database {url} lacks the migrations {}: run taskhold migrate", pending.join(", "));
            }
            output::complain(&format!("the database {url} is up to date"));
            return Ok(());
        }
        store::migrate(&options).await.with_context(|| format!("cannot bring the database {url} up to date"))?;
        output::complain(&format!("the database {url} is up to date"));
        Ok(())
    }
}
