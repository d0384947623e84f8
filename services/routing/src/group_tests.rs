//! Routes by group, with nodes on real sockets.

use std::sync::Arc;
use std::time::Duration;

use holdfast_cluster::{Application, ClusterConfig, ShardMap};
use holdfast_proto::internal;
use holdfast_testkit::fake_node::{Action, FakeNode, config_of, done_reply, leads, not_leader};
use holdfast_types::limit::{self, Reached};
use holdfast_types::{
    AccountId, AccountsCommand, Command, Incarnation, LocksCommand, NamespaceRef, Owner, Release, ReleaseTarget,
};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fake_cluster::{FakeCluster, fast_options};
use crate::{RetryPolicy, RouteError, RoutedReply, RoutingOptions};

const TERM: u64 = 1;

/// Calls: term, application and key.
type Calls = Arc<Mutex<Vec<(u64, internal::Application, u32)>>>;

/// Makes this replica lead. Returns the calls to all replicas from now on.
fn elect(cluster: &FakeCluster, leader: u64) -> Calls {
    let calls = Calls::default();
    for node in &cluster.nodes {
        let calls = Arc::clone(&calls);
        node.on_call(move |call| {
            calls.lock().push((call.term, call.application(), call.key));
            if call.replica == leader { leads(call, leader, TERM) } else { not_leader(leader, TERM) }
        });
    }
    calls
}

async fn send(
    cluster: &FakeCluster,
    application: Application,
    key: u32,
    within: Duration,
) -> Result<RoutedReply, RouteError> {
    let command = Command::Accounts(AccountsCommand::Delete { id: AccountId(1) });
    let deadline = Instant::now() + within;
    cluster.router.command(application, key, &command, RetryPolicy::LaterTerm, deadline).await
}

async fn done(cluster: &FakeCluster, application: Application, key: u32) {
    let routed = send(cluster, application, key, Duration::from_secs(10)).await.unwrap();
    assert_eq!(routed.reply, done_reply());
}

#[tokio::test]
async fn one_leader_is_found_for_all_shards_of_a_group() {
    let cluster = FakeCluster::start_with_one_group(fast_options()).await;
    let calls = elect(&cluster, 2);
    done(&cluster, Application::Accounts, 0).await;
    done(&cluster, Application::Namespaces, 7).await;
    done(&cluster, Application::Locks, u32::MAX).await;
    let (probes, commands): (Vec<_>, Vec<_>) = calls.lock().iter().copied().partition(|(term, ..)| *term == 0);
    assert!(!probes.is_empty() && probes.iter().all(|probe| *probe == (0, internal::Application::Accounts, 0)));
    let expected = [
        (TERM, internal::Application::Accounts, 0),
        (TERM, internal::Application::Namespaces, 7),
        (TERM, internal::Application::Locks, u32::MAX),
    ];
    assert_eq!(commands, expected);
}

#[tokio::test]
async fn a_shard_that_stands_still_leaves_the_others_of_its_leader_as_they_were() {
    const SURPLUS: usize = 100;
    const ROOM: usize = (limit::MAX_LINK_CALLS - limit::MIN_URGENT_LINK_CALLS) as usize / 2;
    const STUCK: AccountId = AccountId(7);
    let cluster = FakeCluster::start_with_one_group(RoutingOptions::default()).await;
    elect(&cluster, 2);
    done(&cluster, Application::Accounts, 0).await;
    for node in &cluster.nodes {
        node.on_call(|call| match call.replica {
            2 if call.term > 0 && call.application() == internal::Application::Locks => Action::Silent,
            2 => leads(call, 2, TERM),
            _ => not_leader(2, TERM),
        });
    }
    let mut stuck = JoinSet::new();
    for _ in 0..ROOM + SURPLUS {
        let (router, deadline) = (cluster.router.clone(), Instant::now() + Duration::from_secs(60));
        stuck.spawn(async move {
            let command = Command::Accounts(AccountsCommand::Delete { id: STUCK });
            router.command(Application::Locks, 7, &command, RetryPolicy::LaterTerm, deadline).await
        });
    }
    // The surplus is refused at once.
    let reached = Reached { limit: &limit::CALLS_OF_ACCOUNT_TO_SHARD, max: ROOM as u64 };
    for _ in 0..SURPLUS {
        let refused = stuck.join_next().await.unwrap().unwrap().unwrap_err();
        assert_eq!(refused, RouteError::Limited { shard: "locks_00".to_owned(), limit: reached });
    }
    done(&cluster, Application::Accounts, 0).await;
    // The account whose calls are stuck goes on to release what it holds in other shards.
    let namespace = NamespaceRef { account: STUCK, name: "demo".into(), incarnation: Incarnation(1) };
    let (owner, what) = (Owner::Process("a".into()), ReleaseTarget::All);
    let release = Command::Locks(LocksCommand::Release(Release { namespace, owner, what, message: None }));
    let deadline = Instant::now() + Duration::from_secs(10);
    let released = cluster.router.command(Application::Namespaces, 0, &release, RetryPolicy::LaterTerm, deadline).await;
    assert_eq!(released.map(|routed| routed.reply), Ok(done_reply()));
    assert_eq!(stuck.len(), ROOM);
}

#[tokio::test]
async fn errors_name_the_shard_and_not_its_group() {
    let cluster = FakeCluster::start_with_one_group(fast_options()).await;
    for (application, id) in [(Application::Namespaces, "namespaces_00"), (Application::Locks, "locks_00")] {
        let error = send(&cluster, application, 7, Duration::ZERO).await.unwrap_err();
        assert!(matches!(&error, RouteError::Unavailable { shard, .. } if shard == id), "{error}");
    }
}

#[tokio::test]
async fn shards_of_a_group_that_a_later_config_adds_are_reached() {
    let cluster = FakeCluster::start_with_one_group(fast_options()).await;
    let mut next = config_of(&cluster.nodes);
    next.version = cluster.router.cluster_config().version + 1;
    let map = ShardMap::new(next).unwrap();
    let leader = map.group_of(map.shard_for(Application::Locks, 0)).replicas[0].id;
    assert!(leader > 3, "a replica of another group");
    cluster.router.reconfigure(map);
    elect(&cluster, leader);
    done(&cluster, Application::Locks, 0).await;
}

/// Sets these addresses of the nodes' gateways.
fn set_gateways(config: &mut ClusterConfig, addresses: [Option<&str>; 3]) {
    for (node, address) in config.nodes.iter_mut().zip(addresses) {
        node.gateway_address = address.map(str::to_owned);
    }
}

/// Applies the next version of the config, in which only the addresses of gateways differ.
fn reconfigure_gateways(cluster: &FakeCluster, addresses: [Option<&str>; 3]) {
    let mut next = cluster.router.cluster_config();
    next.version += 1;
    set_gateways(&mut next, addresses);
    cluster.router.reconfigure(ShardMap::new(next).unwrap());
}

/// Returns the address of the gateway of the leader of the accounts shard.
fn leader_gateway(cluster: &FakeCluster) -> Option<String> {
    cluster.router.leader_gateway(Application::Accounts, 0).map(|address| address.to_string())
}

async fn start_with_gateways(addresses: [Option<&str>; 3]) -> FakeCluster {
    let config = |nodes: &[FakeNode]| {
        let mut config = config_of(nodes);
        set_gateways(&mut config, addresses);
        config
    };
    FakeCluster::with_config(fast_options(), config).await
}

#[tokio::test]
async fn the_gateway_of_a_leader_is_known_unless_the_leader_is_unknown_or_suspected() {
    let cluster = start_with_gateways([None, Some("gateway-2:8080"), Some("gateway-3:8080")]).await;
    assert_eq!(leader_gateway(&cluster), None, "no leader is known");
    elect(&cluster, 2);
    done(&cluster, Application::Accounts, 0).await;
    assert_eq!(leader_gateway(&cluster).as_deref(), Some("gateway-2:8080"));
    assert_eq!(cluster.router.leader_gateway(Application::Locks, 0), None, "another group, whose leader is unknown");
    let route = cluster.router.destination(Application::Accounts, 0, None).route;
    route.suspect(route.leader().unwrap());
    assert_eq!(leader_gateway(&cluster), None, "the leader is suspected");
    elect(&cluster, 3);
    done(&cluster, Application::Accounts, 0).await;
    assert_eq!(leader_gateway(&cluster).as_deref(), Some("gateway-3:8080"));
}

#[tokio::test]
async fn a_leader_whose_node_has_no_gateway_names_none() {
    let cluster = start_with_gateways([None, Some("gateway-2:8080"), Some("gateway-3:8080")]).await;
    elect(&cluster, 1);
    done(&cluster, Application::Accounts, 0).await;
    assert_eq!(leader_gateway(&cluster), None);
}

#[tokio::test]
async fn the_gateway_of_a_leader_follows_the_config() {
    let cluster = start_with_gateways([None, Some("gateway-2:8080"), None]).await;
    elect(&cluster, 2);
    done(&cluster, Application::Accounts, 0).await;
    for address in ["gateway-2:9090", "gateway-4:8080"] {
        reconfigure_gateways(&cluster, [None, Some(address), None]);
        assert_eq!(leader_gateway(&cluster).as_deref(), Some(address));
    }
    reconfigure_gateways(&cluster, [None; 3]);
    assert_eq!(leader_gateway(&cluster), None);
}
