//! Beginning with a backup.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use holdfast_node::NodeOptions;

/// Flags about what a node begins with.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Begin with the backup in this directory; the data directory must be empty. One that was restored from it already
    /// is gone on with, so that the flag may stay set.
    #[arg(long, env = "HOLDFAST_RESTORE_FROM", value_name = "DIR")]
    restore_from: Option<PathBuf>,
    /// Restore, and end.
    #[arg(long, env = "HOLDFAST_RESTORE_ONLY", requires = "restore_from")]
    restore_only: bool,
}

impl RestoreArgs {
    /// Restores if that is wanted. True when that was all.
    pub(crate) async fn restore(&self, options: &NodeOptions) -> Result<bool> {
        if let Some(backup) = &self.restore_from {
            holdfast_node::restore(options, backup).await?;
        }
        Ok(self.restore_only)
    }
}
