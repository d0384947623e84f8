//! What the hosts of a simulation share with the checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use holdfast_auth::{ClusterSecret, OperatorToken};
use holdfast_cluster::{Application, ClusterConfig, ShardMap, shard_key};
use holdfast_core::AccountId;
use holdfast_node::Node;
use holdfast_storage::MemoryDisk;
use parking_lot::Mutex;

use crate::apply_log::ApplyLog;
use crate::history::History;
use crate::host_clocks::{HostClocks, Pause};
use crate::host_state::Hosts;
use crate::lost_messages::LostMessages;
use crate::network::PORT;
use crate::plan::Plan;
use crate::soft_claims::ClaimLog;
use crate::told_log::ToldLog;
use crate::watch_log::WatchLog;

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Groups form, accounts and namespaces are made.
    Setup,
    /// Clients work, faults happen.
    Chaos,
    /// Everything is repaired: each gateway must serve every namespace again.
    Healed,
    /// Clients have stopped.
    Quiet,
}

const PHASES: [Phase; 4] = [Phase::Setup, Phase::Chaos, Phase::Healed, Phase::Quiet];

/// A tenant of the simulated cluster.
#[derive(Debug, Clone)]
pub(crate) struct Tenant {
    pub(crate) account: AccountId,
    /// What follows `Bearer `.
    pub(crate) api_key: String,
}

/// A node's host: its disk outlives its process.
pub(crate) struct NodeSlot {
    pub(crate) disk: MemoryDisk,
    /// The process that runs.
    pub(crate) node: Mutex<Option<Arc<Node>>>,
    /// Why the process has ended by itself.
    pub(crate) exited: Mutex<Option<String>>,
    /// Asks the process to stop in good order.
    pub(crate) stop: Mutex<bool>,
    /// Pauses the process, or its machine, for so many milliseconds.
    pub(crate) pause: Mutex<Option<(Pause, u64)>>,
    /// How often it was started.
    pub(crate) starts: AtomicU64,
    /// Groups whose lease its process held at its last check, with the term, and the time of the check.
    pub(crate) leases: Mutex<(Duration, Vec<(String, u64)>)>,
    pub(crate) clocks: Arc<HostClocks>,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) config: ClusterConfig,
    pub(crate) map: ShardMap,
    pub(crate) secret: ClusterSecret,
    pub(crate) operator: OperatorToken,
    pub(crate) nodes: Vec<NodeSlot>,
    pub(crate) ledger: Arc<ApplyLog>,
    pub(crate) history: History,
    pub(crate) tenants: Mutex<Vec<Tenant>>,
    /// The attacking account, if there is one, and the number of its attacks.
    pub(crate) hostile: Mutex<Option<Tenant>>,
    pub(crate) attacks: AtomicU64,
    /// The messages of a gateway, if they are lost one by one.
    pub(crate) lost: Arc<LostMessages>,
    /// How often each gateway was started.
    pub(crate) gateway_starts: Vec<AtomicU64>,
    /// Gateways that have served everything after the repair.
    pub(crate) served: Mutex<Vec<usize>>,
    /// What clients of connected sessions hold of locks.
    pub(crate) claims: ClaimLog,
    /// What clients of connected sessions were told of requests to release.
    pub(crate) told: ToldLog,
    /// How often the gateway of such clients was to end, in each process of a gateway.
    pub(crate) soft_falls: Vec<AtomicU64>,
    /// Gateways whose clients were granted such a lock after the repair.
    pub(crate) soft_served: Mutex<Vec<usize>>,
    pub(crate) hosts: Hosts,
    pub(crate) watched: WatchLog,
    /// Injected panics that occurred.
    pub(crate) panics: AtomicU64,
    stage: AtomicU8,
    /// Violations, in the order in which they were noticed.
    violations: Mutex<Vec<String>>,
    /// The journal, for people.
    journal: Mutex<Vec<String>>,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Result<Arc<Self>> {
        let address = |number: usize| (node_name(number), format!("{}:{PORT}", node_name(number)));
        let nodes = (0..plan.nodes).map(address).collect();
        let config = ClusterConfig::generate_with_groups(nodes, plan.shards, plan.replicas, plan.groups)?;
        let map = ShardMap::new(config.clone())?;
        let shards = Application::ALL.into_iter().flat_map(|application| map.shards(application));
        let ledger = Arc::new(ApplyLog::new(shards.map(|shard| shard.id.clone())));
        let slot = |number: usize| NodeSlot {
            disk: MemoryDisk::with_store_id(&format!("disk-{}", number + 1)),
            node: Mutex::default(),
            exited: Mutex::default(),
            stop: Mutex::default(),
            pause: Mutex::default(),
            starts: AtomicU64::new(0),
            leases: Mutex::default(),
            clocks: Arc::default(),
        };
        Ok(Arc::new(Self {
            nodes: (0..plan.nodes).map(slot).collect(),
            gateway_starts: (0..plan.gateways).map(|_| AtomicU64::new(0)).collect(),
            claims: ClaimLog::default(),
            told: ToldLog::default(),
            soft_falls: (0..plan.gateways).map(|_| AtomicU64::new(0)).collect(),
            soft_served: Mutex::default(),
            secret: ClusterSecret::from_hex(&format!("{:064x}", plan.seed))?,
            operator: OperatorToken::parse(&format!("hfop_{:043}", plan.seed))?,
            plan,
            config,
            map,
            ledger,
            history: History::default(),
            tenants: Mutex::default(),
            hostile: Mutex::default(),
            attacks: AtomicU64::new(0),
            lost: Arc::default(),
            served: Mutex::default(),
            hosts: Hosts::default(),
            watched: WatchLog::default(),
            panics: AtomicU64::new(0),
            stage: AtomicU8::new(Phase::Setup as u8),
            violations: Mutex::default(),
            journal: Mutex::default(),
        }))
    }

    pub(crate) fn phase(&self) -> Phase {
        PHASES[usize::from(self.stage.load(Ordering::Relaxed))]
    }

    pub(crate) fn set_phase(&self, stage: Phase) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn tenants(&self) -> Vec<Tenant> {
        self.tenants.lock().clone()
    }

    /// Something that must not be.
    pub(crate) fn record_violation(&self, what: impl Into<String>) {
        let what = what.into();
        self.record(format!("VIOLATION {what}"));
        self.violations.lock().push(what);
    }

    /// Everything that must not be and was noticed so far, by whomever.
    pub(crate) fn violations(&self) -> Vec<String> {
        for what in self.ledger.take_violations() {
            self.record_violation(what);
        }
        self.violations.lock().clone()
    }

    /// Adds a line to the journal.
    pub(crate) fn record(&self, what: impl AsRef<str>) {
        let at = now().map_or_else(|| "         -".to_owned(), |at| format!("{:10.3}", at.as_secs_f64()));
        self.journal.lock().push(format!("{at} {}", what.as_ref()));
    }

    /// As [`Self::record`], from outside of all hosts.
    pub(crate) fn record_at(&self, at: Duration, what: impl AsRef<str>) {
        self.journal.lock().push(format!("{:10.3} {}", at.as_secs_f64(), what.as_ref()));
    }

    pub(crate) fn journal(&self) -> Vec<String> {
        self.journal.lock().clone()
    }

    /// Whether a name belongs to the current run of its gateway.
    pub(crate) fn is_current_run(&self, name: &str) -> bool {
        self.gateway_starts
            .iter()
            .enumerate()
            .any(|(number, starts)| name == format!("{}.{}", gateway_name(number), starts.load(Ordering::Relaxed)))
    }

    /// Whether a client belongs to the current run of its gateway.
    pub(crate) fn is_client_of_current_run(&self, client: &str) -> bool {
        let run = client.match_indices('.').nth(1).map_or(client, |(end, _)| &client[..end]);
        self.is_current_run(run)
    }

    /// The locks shard of a namespace.
    pub(crate) fn locks_shard(&self, account: AccountId, namespace: &str) -> &str {
        let key = shard_key(Application::Locks, account.0, namespace);
        &self.map.shard_for(Application::Locks, key).id
    }

    /// The namespaces shard of an account.
    pub(crate) fn namespaces_shard(&self, account: AccountId) -> &str {
        let key = shard_key(Application::Namespaces, account.0, "");
        &self.map.shard_for(Application::Namespaces, key).id
    }
}

/// Simulated time since the beginning; nothing outside of hosts.
pub(crate) fn now() -> Option<Duration> {
    turmoil::sim_elapsed()
}

pub(crate) fn node_name(number: usize) -> String {
    format!("nd_{}", number + 1)
}

pub(crate) fn gateway_name(number: usize) -> String {
    format!("gw_{}", number + 1)
}
