//! `holdfast-admin cluster finalize`: the last step of an upgrade. From then on, shards use the rules of the new
//! release, and a downgrade is impossible.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use holdfast_operator::output;
use holdfast_proto::internal::StatusAnswer;

use crate::cluster::{Cluster, ClusterArgs};

/// How long the shards may take to adopt the rules.
const RAISE_TIMEOUT: Duration = Duration::from_secs(60);

/// Flags of `holdfast-admin cluster finalize`.
#[derive(Debug, Args)]
pub(crate) struct FinalizeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The rules that shards may use; the latest that every node supports when absent.
    #[arg(long, env = "HOLDFAST_RULES", value_name = "NUMBER")]
    rules: Option<u16>,
}

/// Allows the rules that all nodes support, and waits until every shard uses them.
pub(crate) async fn finalize(args: &FinalizeArgs) -> Result<()> {
    let mut cluster = args.cluster.connect().await?;
    let latest = cluster.latest_rules().await?;
    let rules = args.rules.unwrap_or(latest);
    ensure!(rules <= latest, "some nodes know rules up to {latest} only: start all nodes with the new release first");
    if cluster.config.rules != Some(rules) {
        let next = cluster.config.allow_rules(rules)?;
        cluster.push_config(next).await?;
    }
    cluster.wait_until_rules(rules, RAISE_TIMEOUT).await?;
    output::print(format_args!(
        "all shards use rules {rules}: releases that do not know them can't be started any more"
    ))
}

impl Cluster {
    /// Returns the highest rules that every node of the config supports.
    async fn latest_rules(&self) -> Result<u16> {
        let mut latest = u16::MAX;
        for (node, said) in self.operations.statuses(&self.config).await {
            let said = said.with_context(|| format!("every node must say which rules it knows; start {}", node.id))?;
            latest = latest.min(highest_rules(&node.id, &said)?);
        }
        Ok(latest)
    }
}

fn highest_rules(node: &str, said: &StatusAnswer) -> Result<u16> {
    match u16::try_from(said.highest_rules) {
        Ok(highest @ 1..) => Ok(highest),
        _ => bail!("node {node} runs a release that does not say which rules it knows: start it with the new one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_report_its_rules_is_named() {
        let said = |highest_rules| StatusAnswer { highest_rules, ..StatusAnswer::default() };
        assert_eq!(highest_rules("nd_1", &said(2)).unwrap(), 2);
        assert!(highest_rules("nd_1", &said(0)).unwrap_err().to_string().contains("nd_1"));
    }
}
