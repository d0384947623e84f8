//! `holdfast-admin status` and `dev inspect`: nodes, groups, shards, leaders and failed replicas of the cluster.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::output::{self, Format};
use crate::{ServiceArgs, api};

/// Flags of the subcommand.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Only shards whose id has this prefix, like locks or locks_03, and their groups.
    #[arg(long, env = "HOLDFAST_SHARD", default_value = "", value_name = "PREFIX")]
    shard: String,
}

/// Reads the state of the cluster from a gateway, and prints it.
///
/// # Errors
/// If the call fails, or the output cannot be written.
pub async fn run(service: &ServiceArgs, args: &StatusArgs) -> Result<()> {
    let client = api::operator_client(service).await?;
    let cluster = client.get("/v1/cluster").await?;
    match service.output {
        Format::Json => output::print(&cluster),
        Format::Text => output::print(text(&cluster, &args.shard)?.trim_end()),
    }
}

fn text(cluster: &Value, prefix: &str) -> Result<String> {
    let mut text = format!("config version {}\n\n", cluster["config_version"]);
    writeln!(text, "{:<8} {:<22} {:<6} {:>5}  STATE", "NODE", "ADDRESS", "READY", "LEADS")?;
    for node in rows(cluster, "nodes")? {
        let ready = if node["ready"] == true { "yes" } else { "no" };
        let (id, address) = (api::text_field(node, "id")?, api::text_field(node, "address")?);
        let reason = node["not_ready_reason"].as_str().unwrap_or("");
        let leads = node["leads"].to_string();
        writeln!(text, "{}", format!("{id:<8} {address:<22} {ready:<6} {leads:>5}  {reason}").trim_end())?;
    }
    let mut shards = Vec::new();
    for shard in rows(cluster, "shards")? {
        if api::text_field(shard, "id")?.starts_with(prefix) {
            shards.push(shard);
        }
    }
    writeln!(text, "\n{:<8} {:<8} {:>5} {:>6}  BEHIND", "GROUP", "LEADER", "TERM", "SHARDS")?;
    for group in rows(cluster, "groups")? {
        let own: Vec<&Value> = shards.iter().copied().filter(|shard| shard["group"] == group["id"]).collect();
        if prefix.is_empty() || !own.is_empty() {
            writeln!(text, "{}", group_row(group, &own)?.trim_end())?;
        }
    }
    let (lower, upper) = ("FROM", "TO");
    writeln!(
        text,
        "\n{:<14} {:<8} {lower:<8} {upper:<8} {:<8} {:>5} {:>9} {:>8} {:>8}",
        "SHARD", "GROUP", "LEADER", "RULES", "HOLDS", "WAITING", "SESSIONS"
    )?;
    for shard in shards {
        writeln!(text, "{}", shard_row(shard)?)?;
        for replica in rows(shard, "replicas")?.iter().filter(|replica| replica["poison"].is_object()) {
            writeln!(text, "{}", poison(replica)?)?;
        }
    }
    Ok(text)
}

fn group_row(group: &Value, shards: &[&Value]) -> Result<String> {
    let id = api::text_field(group, "id")?;
    let leader = group["leader"].as_str().unwrap_or("none");
    // All shards of a group have its term.
    let term = shards.iter().filter_map(|shard| shard["term"].as_u64()).max();
    let term = term.map_or("?".to_owned(), |term| term.to_string());
    let behind = rows(group, "replicas")?.iter().map(|replica| {
        let node = replica["node"].as_str().unwrap_or("?");
        match replica["lag"].as_u64() {
            Some(entries) => format!("{node}:{entries}"),
            None => format!("{node}:?"),
        }
    });
    let behind = behind.collect::<Vec<_>>().join(" ");
    Ok(format!("{id:<8} {leader:<8} {term:>5} {:>6}  {behind}", shards.len()))
}

fn shard_row(shard: &Value) -> Result<String> {
    let (id, group) = (api::text_field(shard, "id")?, api::text_field(shard, "group")?);
    let leader = shard["leader"].as_str().unwrap_or("none");
    let (lower, upper) = (api::text_field(shard, "lower_bound")?, api::text_field(shard, "upper_bound")?);
    // JSON values ignore the width of a column, texts do not.
    let [holds, waiting, sessions] = ["holds", "waiting", "sessions"].map(|name| shard[name].to_string());
    let rules = shard["rules"].as_u64().map_or("?".to_owned(), |rules| rules.to_string());
    let figures = format!("{rules:>5} {holds:>9} {waiting:>8} {sessions:>8}");
    Ok(format!("{id:<14} {group:<8} {lower:<8} {upper:<8} {leader:<8} {figures}"))
}

/// Describes the entry at which a replica failed. The backtrace is in `--output json`.
fn poison(replica: &Value) -> Result<String> {
    let poison = &replica["poison"];
    let [step, message, release] = ["step", "message", "release"].map(|name| api::text_field(poison, name));
    let (node, term, index) = (api::text_field(replica, "node_id")?, &poison["term"], &poison["index"]);
    let (step, message, release) = (step?, message?, release?);
    let mut text =
        format!("  FAILED on {node}: release {release} can't apply entry {index} of term {term}, {step}: {message}");
    for name in ["namespace", "command"] {
        let value = api::text_field(poison, name)?;
        if !value.is_empty() {
            write!(text, "\n    {name}: {value}")?;
        }
    }
    Ok(text)
}

fn rows<'a>(value: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    value[field]
        .as_array()
        .with_context(|| format!("the service's answer has no list {field:?}; is it of this version?"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_replica_that_has_failed_is_shown_with_what_it_failed_at() {
        let poison = json!({
            "term": 2, "index": 9, "step": "command 0", "namespace": "orders of account 7", "command": "Acquire(..)",
            "message": "panic at a.rs:1", "backtrace": "0: apply", "release": "0.1.0",
        });
        let cluster = json!({
            "config_version": 3, "nodes": [], "groups": [],
            "shards": [{
                "id": "locks_00", "group": "g1", "lower_bound": "00000000", "upper_bound": "ffffffff",
                "leader": null,
                "replicas": [{"node_id": "nd_1", "poison": null}, {"node_id": "nd_2", "poison": poison}],
            }],
        });
        let shown = text(&cluster, "").unwrap();
        let failed = "  FAILED on nd_2: release 0.1.0 can't apply entry 9 of term 2, command 0: panic at a.rs:1\n    \
                      namespace: orders of account 7\n    command: Acquire(..)";
        assert!(shown.contains(failed), "{shown}");
        assert!(!shown.contains("FAILED on nd_1"), "{shown}");
    }

    fn shard(id: &str, group: &str) -> Value {
        json!({
            "id": id, "group": group, "lower_bound": "00000000", "upper_bound": "ffffffff", "leader": "nd_1",
            "term": 2, "rules": 3, "holds": 5, "waiting": 1, "sessions": 0, "replicas": [],
        })
    }

    fn group(id: &str) -> Value {
        let replicas = json!([{"node": "nd_1", "lag": 0}, {"node": "nd_2", "lag": null}]);
        json!({"id": id, "leader": "nd_1", "replicas": replicas, "failed_shards": []})
    }

    #[test]
    fn a_cluster_is_shown_as_tables_with_what_is_not_known_marked() {
        let cluster = json!({
            "config_version": 3,
            "nodes": [
                {"id": "nd_1", "address": "127.0.0.1:7000", "ready": true, "not_ready_reason": null, "leads": 1},
                {"id": "nd_2", "address": "127.0.0.1:7001", "ready": false, "not_ready_reason": "down", "leads": 0},
            ],
            "groups": [group("g1"), group("g2")],
            "shards": [shard("namespaces_00", "g2"), shard("locks_00", "g1"), shard("locks_01", "g2")],
        });
        let shown = text(&cluster, "").unwrap();
        assert!(shown.contains("nd_2     127.0.0.1:7001         no         0  down\n"), "{shown}");
        let groups = "g1       nd_1         2      1  nd_1:0 nd_2:?\ng2       nd_1         2      2  nd_1:0 nd_2:?\n";
        assert!(shown.contains(groups), "{shown}");
        let shard = "locks_00       g1       00000000 ffffffff nd_1         3         5        1        0\n";
        assert!(shown.contains(shard), "{shown}");
        let namespaces = text(&cluster, "namespaces").unwrap();
        assert!(!namespaces.contains("locks_00") && !namespaces.contains("g1"), "{namespaces}");
        assert!(text(&json!({}), "").is_err());
    }
}
