//! `holdfast-admin inspect`: what the nodes store for the case of a failure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use holdfast_operator::output::{self, Format};
use holdfast_proto::internal::{Poison, ReplicaStatus};
use holdfast_routing::AdminError;
use serde_json::{Value, json};

use crate::cluster::{Cluster, ClusterArgs};

/// Flags of `holdfast-admin inspect poison`.
#[derive(Debug, Args)]
pub(crate) struct InspectPoisonArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Only shards whose id has this prefix, like locks or locks_03.
    #[arg(long, env = "HOLDFAST_SHARD", default_value = "", value_name = "PREFIX")]
    shard: String,
}

/// What a shard failed at on a node.
pub(crate) struct PoisonRecord {
    pub(crate) node: String,
    poison: Poison,
}

/// The records of each shard that failed somewhere, by group and shard.
pub(crate) type PoisonRecords = BTreeMap<(String, String), Vec<PoisonRecord>>;

/// Prints the record of each shard on each node where it has failed, and whether those of a shard agree.
pub(crate) async fn print_poison(format: Format, args: &InspectPoisonArgs) -> Result<()> {
    let cluster = args.cluster.connect().await?;
    let (records, problems) = cluster.poison_records(&args.shard).await;
    problems.iter().for_each(output::info);
    match format {
        Format::Text => output::print(text(&records).trim_end()),
        Format::Json => rows(&records).into_iter().try_for_each(output::print),
    }
}

impl Cluster {
    /// Returns the records of the shards whose ids have this prefix, and which nodes do not respond.
    pub(crate) async fn poison_records(&self, prefix: &str) -> (PoisonRecords, Vec<AdminError>) {
        let (mut records, mut problems) = (PoisonRecords::new(), Vec::new());
        for (node, said) in self.operations.statuses(&self.config).await {
            match said {
                Ok(said) => add(&mut records, prefix, &node.id, said.replicas),
                Err(error) => problems.push(error),
            }
        }
        (records, problems)
    }
}

fn add(records: &mut PoisonRecords, prefix: &str, node: &str, replicas: Vec<ReplicaStatus>) {
    for replica in replicas.into_iter().filter(|replica| replica.shard.starts_with(prefix)) {
        if let Some(poison) = replica.poison {
            let of_shard = records.entry((replica.group, replica.shard)).or_default();
            of_shard.push(PoisonRecord { node: node.to_owned(), poison });
        }
    }
}

/// Returns true if both failed at the same step of the same entry in the same way. Releases and backtraces may differ.
fn agree(one: &Poison, other: &Poison) -> bool {
    let place = |poison: &Poison| (poison.term, poison.index, poison.step.clone());
    let what = |poison: &Poison| (poison.namespace.clone(), poison.command.clone(), poison.message.clone());
    place(one) == place(other) && what(one) == what(other)
}

fn text(records: &PoisonRecords) -> String {
    if records.is_empty() {
        return "no shard has failed on any node that answers".to_owned();
    }
    let mut text = String::new();
    for ((group, shard), records) in records {
        let nodes: Vec<&str> = records.iter().map(|record| record.node.as_str()).collect();
        let mut rest = records.iter().skip(1);
        let all_agree = records.first().is_some_and(|first| rest.all(|record| agree(&first.poison, &record.poison)));
        let verdict = if all_agree { "" } else { "; THE RECORDS DIFFER" };
        // Writing to a string never fails.
        let _ = writeln!(text, "{shard} of group {group} has failed on {}{verdict}", nodes.join(", "));
        for record in records.iter().take(if all_agree { 1 } else { records.len() }) {
            let _ = writeln!(text, "{}", describe(record));
        }
    }
    text
}

fn describe(record: &PoisonRecord) -> String {
    let PoisonRecord { node, poison } = record;
    let Poison { term, index, step, message, release, .. } = poison;
    let mut text = format!("  {node}: release {release} can't apply entry {index} of term {term}, {step}: {message}");
    let backtrace = poison.backtrace.replace('\n', "\n      ");
    for (name, value) in [("namespace", &poison.namespace), ("command", &poison.command), ("backtrace", &backtrace)] {
        if !value.is_empty() {
            let _ = write!(text, "\n    {name}: {value}");
        }
    }
    text
}

fn rows(records: &PoisonRecords) -> Vec<Value> {
    let row = |group: &str, shard: &str, record: &PoisonRecord| {
        let PoisonRecord { node, poison } = record;
        let Poison { term, index, step, namespace, command, message, backtrace, release } = poison;
        json!({
            "group": group, "shard": shard, "node": node, "term": term, "index": index, "step": step,
            "namespace": namespace, "command": command, "message": message, "backtrace": backtrace,
            "release": release,
        })
    };
    let of_shard = |((group, shard), records): (&(String, String), &Vec<PoisonRecord>)| {
        records.iter().map(|record| row(group, shard, record)).collect::<Vec<_>>()
    };
    records.iter().flat_map(of_shard).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(shard: &str, poison: Option<Poison>) -> ReplicaStatus {
        ReplicaStatus { shard: shard.to_owned(), group: "g1".to_owned(), poison, ..ReplicaStatus::default() }
    }

    fn poison(index: u64, backtrace: &str) -> Option<Poison> {
        Some(Poison {
            term: 2,
            index,
            step: "command 0".to_owned(),
            namespace: "orders".to_owned(),
            command: "Acquire(..)".to_owned(),
            message: "panic at a.rs:1".to_owned(),
            backtrace: backtrace.to_owned(),
            release: "0.1.0".to_owned(),
        })
    }

    fn records(of_second: Option<Poison>) -> PoisonRecords {
        let mut records = PoisonRecords::new();
        add(&mut records, "locks", "nd_1", vec![replica("locks_00", poison(9, "0: apply")), replica("locks_01", None)]);
        add(&mut records, "locks", "nd_2", vec![replica("locks_00", of_second), replica("accounts_00", poison(1, ""))]);
        records
    }

    #[test]
    fn records_that_agree_are_shown_once() {
        let shown = text(&records(poison(9, "1: apply")));
        let expected = "locks_00 of group g1 has failed on nd_1, nd_2\n  nd_1: release 0.1.0 can't apply entry 9 of \
                        term 2, command 0: panic at a.rs:1\n    namespace: orders\n    command: Acquire(..)\n    \
                        backtrace: 0: apply\n";
        assert_eq!(shown, expected);
        assert!(text(&PoisonRecords::new()).contains("no shard has failed"));
    }

    #[test]
    fn records_that_differ_are_all_shown() {
        let shown = text(&records(poison(8, "")));
        assert!(shown.contains("nd_1, nd_2; THE RECORDS DIFFER"), "{shown}");
        assert!(shown.contains("nd_1: release") && shown.contains("nd_2: release"), "{shown}");
        let rows = rows(&records(poison(8, "")));
        let indexes: Vec<&Value> = rows.iter().map(|row| &row["index"]).collect();
        assert_eq!((indexes, &rows[0]["node"]), (vec![&json!(9), &json!(8)], &json!("nd_1")));
    }
}
