//! Starts a node from a backup.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use holdfast_node::NodeOptions;

/// Flags about the initial data of a node.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Restore the backup in this directory first; the data directory must be empty. A data directory that was already
    /// restored from it is used as it is, so that the flag may stay set.
    #[arg(long, env = "HOLDFAST_RESTORE_FROM", value_name = "DIR")]
    restore_from: Option<PathBuf>,
    /// Restore, and exit.
    #[arg(long, env = "HOLDFAST_RESTORE_ONLY", requires = "restore_from")]
    restore_only: bool,
}

impl RestoreArgs {
    /// Restores the backup if requested. Returns true if the program should then exit.
    pub(crate) async fn restore(&self, options: &NodeOptions) -> Result<bool> {
        if let Some(backup) = &self.restore_from {
            holdfast_node::restore(options, backup).await?;
        }
        Ok(self.restore_only)
    }
}
