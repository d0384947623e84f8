//! `holdfast-admin restore`: restores a backup to new nodes on this machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use holdfast_backup::Backup;
use holdfast_cluster::ClusterConfig;
use holdfast_operator::output;
use tokio::process::Command;
use tokio::time::Instant;

/// Flags of `holdfast-admin restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The backup.
    #[arg(long, env = "HOLDFAST_BACKUP_DIR", value_name = "DIR")]
    from: PathBuf,
    /// A directory as `dev cluster up` uses it, with cluster_config.json, cluster.secret and operator.token
    /// (`holdfast-admin secrets` creates both). Each node gets a directory of its own in it, which must be empty.
    #[arg(long, env = "HOLDFAST_DATA_DIR", default_value = "./data/cluster", value_name = "DIR")]
    data_dir: PathBuf,
    /// Only this node; all when absent.
    #[arg(long, env = "HOLDFAST_TARGET_NODE")]
    node_id: Option<String>,
}

/// Restores each node by its own program. Verifies the whole backup first, so that a bad one changes nothing.
pub(crate) async fn restore(args: &RestoreArgs) -> Result<()> {
    let began = Instant::now();
    let backup = Backup::open(&args.from)?;
    backup.verify()?;
    let dir = std::path::absolute(&args.data_dir)?;
    let config = ClusterConfig::load(dir.join("cluster_config.json"))?;
    let wanted = |id: &str| args.node_id.as_deref().is_none_or(|node| node == id);
    let nodes: Vec<&str> = config.nodes.iter().map(|node| node.id.as_str()).filter(|id| wanted(id)).collect();
    ensure!(!nodes.is_empty(), "the config in {} has no such node", dir.display());
    let own = std::env::current_exe().context("this program's own file can't be found")?;
    for (number, node) in nodes.iter().enumerate() {
        restore_node(&own.with_file_name("holdfast-node"), &dir, node, &args.from).await?;
        output::info(format_args!("{} of {} nodes restored", number + 1, nodes.len()));
    }
    output::print(format_args!(
        "backup {} of {} is restored into {} after {:.1} s; start all nodes: `dev cluster up --data-dir {}`",
        backup.manifest().id,
        backup.manifest().made_at,
        dir.display(),
        began.elapsed().as_secs_f64(),
        dir.display()
    ))
}

async fn restore_node(program: &Path, dir: &Path, node: &str, from: &Path) -> Result<()> {
    let ended = Command::new(program)
        .args(["--node-id", node, "--restore-only", "--restore-from"])
        .arg(from)
        .arg("--data-dir")
        .arg(dir.join(node))
        .arg("--cluster-config")
        .arg(dir.join("cluster_config.json"))
        .arg("--cluster-secret-file")
        .arg(dir.join("cluster.secret"))
        .arg("--operator-token-file")
        .arg(dir.join("operator.token"))
        .env("HOLDFAST_LOG", "warn")
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("{} can't be run; build it with `make build`", program.display()))?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{node}: {}", said.trim());
    Ok(())
}
