//! All child processes together.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::Result;
use futures::future::join_all;
use holdfast_bootstrap::Secrets;

use super::child::{Child, ChildCommand};
use super::launch_plan::Plan;
use super::log::Log;
use super::signals::Signals;

/// Time for a process to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The processes of a cluster.
pub(super) struct Cluster {
    nodes: Vec<Child>,
    /// `None` if the nodes have gateways.
    gateway: Option<Child>,
}

impl Cluster {
    /// Starts all processes. They get all settings as flags, with absolute paths.
    pub(super) fn start(plan: &Plan, secrets: &Secrets, log: &Log) -> Result<Self> {
        let config_file = plan.config_file();
        let cluster_secret_file = secrets.cluster_secret_file();
        let operator_token_file = secrets.operator_token_file();
        let common: [&OsStr; 7] = [
            "--cluster-config".as_ref(),
            config_file.as_ref(),
            "--cluster-secret-file".as_ref(),
            cluster_secret_file.as_ref(),
            "--operator-token-file".as_ref(),
            operator_token_file.as_ref(),
            "--exit-with-parent".as_ref(),
        ];
        let mut nodes = Vec::new();
        for (index, node) in plan.config.nodes.iter().enumerate() {
            let dir = plan.dir.join(&node.id);
            let own: [&OsStr; 4] = ["--node-id".as_ref(), node.id.as_ref(), "--data-dir".as_ref(), dir.as_ref()];
            let mut arguments = [&own[..], &common].concat();
            if let Some(gateway) = &node.gateway_address {
                arguments.extend([OsStr::new("--gateway-listen"), gateway.as_ref()]);
            }
            // A gateway is ready once its node is.
            let address = node.gateway_address.as_ref().unwrap_or(&node.address);
            nodes.push(Child::start(&node.id, address, &plan.node_program, &arguments, log.for_process(index))?);
        }
        let mut gateway = None;
        if !plan.gateways_in_nodes {
            let listen = plan.listen.to_string();
            let own: [&OsStr; 2] = ["--listen".as_ref(), listen.as_ref()];
            let (arguments, log) = ([&own[..], &common].concat(), log.for_process(nodes.len()));
            gateway = Some(Child::start("gateway", &listen, &plan.gateway_program, &arguments, log)?);
        }
        Ok(Self { nodes, gateway })
    }

    /// Returns the nodes, then the gateway if there is one.
    pub(super) fn all(&self) -> impl Iterator<Item = &Child> {
        self.nodes.iter().chain(&self.gateway)
    }

    /// Returns a node by its id.
    pub(super) fn node(&self, id: &str) -> Option<&Child> {
        self.nodes.iter().find(|node| node.name == id)
    }

    /// Waits until no node runs.
    pub(super) async fn nodes_ended(&self) {
        join_all(self.nodes.iter().map(Child::ended)).await;
    }

    /// Waits until no process runs.
    pub(super) async fn ended(&self) {
        join_all(self.all().map(Child::ended)).await;
    }

    /// Stops the gateway first, so that no client calls any more, then the nodes. Processes that do not stop in time
    /// are killed, as are all processes at the next signal.
    pub(super) async fn stop(&self, log: &Log, signals: &mut Signals) {
        let in_order = async {
            stop(self.gateway.as_slice(), log).await;
            stop(&self.nodes, log).await;
        };
        tokio::select! {
            () = in_order => return,
            signal = signals.next() => log.write_line(format!("{signal} again: killing what still runs")).await,
        }
        self.all().for_each(|child| child.send_command(ChildCommand::Kill));
        self.ended().await;
    }
}

/// Stops some processes concurrently.
async fn stop(children: &[Child], log: &Log) {
    children.iter().for_each(|child| child.send_command(ChildCommand::Terminate));
    let ended = join_all(children.iter().map(Child::ended));
    if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_ok() {
        return;
    }
    for child in children.iter().filter(|child| child.is_running()) {
        log.write_line(format!("{} has not stopped within {STOP_TIMEOUT:?}: killing it", child.name)).await;
        child.send_command(ChildCommand::Kill);
    }
    join_all(children.iter().map(Child::ended)).await;
}
