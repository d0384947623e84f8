//! By which rules groups begin, how these are raised, and what becomes of a replica that does not know them.

use std::time::Duration;

use bytes::Bytes;
use holdfast_replication::{KnownRules, ProposeError};
use holdfast_storage::{Identity, NodeStore};
use tokio::time::Instant;

use crate::common::journal::LATER;
use crate::common::{CLUSTER_ID, Cluster, Setup, command, eventually, node_id, propose_to, replica_id};

const EARLIER: KnownRules = KnownRules { lowest: 1, highest: 2 };
const LATEST: KnownRules = KnownRules { lowest: 1, highest: 3 };

/// Three nodes that know those rules, with their group.
async fn bootstrapped_with(rules: [KnownRules; 3]) -> Cluster {
    let mut cluster = Cluster::prepare(Setup::default()).await;
    for (index, rules) in rules.into_iter().enumerate() {
        cluster.rules.insert(index, rules);
        cluster.start(index).await;
    }
    let node = cluster.node(0);
    node.manager.bootstrap(&node.group).await.expect("the group forms");
    cluster
}

/// Starts a node again, with a program that knows those rules.
async fn replace_program(cluster: &mut Cluster, index: usize, rules: KnownRules) {
    cluster.kill(index).await;
    cluster.rules.insert(index, rules);
    cluster.start(index).await;
}

async fn all_go_by(cluster: &Cluster, rules: u16) {
    eventually("all replicas go by the rules", || async {
        cluster.running().all(|(_, node)| node.group.rules() == rules).then_some(())
    })
    .await;
}

fn allow(cluster: &Cluster, rules: u16) {
    cluster.running().for_each(|(_, node)| node.manager.allow_rules(Some(rules)));
}

/// Until some replica leads that is not of those nodes; the term that it leads in.
async fn led_by_other_than(cluster: &Cluster, others: &[usize]) -> (usize, u64) {
    let (leader, leads) = cluster.leader_except(others).await;
    (leader, leads.term)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_group_begins_with_the_latest_rules_that_all_its_nodes_know() {
    for (last, rules) in [(LATEST, 3), (EARLIER, 2)] {
        let cluster = bootstrapped_with([LATEST, LATEST, last]).await;
        cluster.propose(&command("first")).await.expect("answered");
        cluster.all_applied().await;
        all_go_by(&cluster, rules).await;
        for (_, node) in cluster.running() {
            assert_eq!(node.machine.rules(), [rules], "no entry was written before the group had rules");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_raised_once_the_config_allows_it_and_every_replica_knows_them() {
    let mut cluster = bootstrapped_with([EARLIER; 3]).await;
    cluster.propose(&command("by rules 2")).await.expect("answered");
    for index in [0, 1] {
        cluster.all_applied().await;
        replace_program(&mut cluster, index, LATEST).await;
    }
    allow(&cluster, 3);
    // One does not know them yet: however often the leader looks, it does not raise them.
    let looked = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < looked {
        cluster.propose(&command("still by rules 2")).await;
    }
    assert!(cluster.running().all(|(_, node)| node.group.rules() == 2));
    cluster.all_applied().await;
    replace_program(&mut cluster, 2, LATEST).await;
    allow(&cluster, 3);
    all_go_by(&cluster, 3).await;
    cluster.propose(&command("by rules 3")).await.expect("answered");
    cluster.all_applied().await;
    let (leader, _) = cluster.leader().await;
    let rules = cluster.node(leader).machine.rules();
    assert_eq!((rules[0], rules.last()), (2, Some(&3)));
    assert!(rules.is_sorted(), "{rules:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_leave_of_the_config_a_group_stays_with_its_rules() {
    let mut cluster = bootstrapped_with([EARLIER; 3]).await;
    for index in 0..3 {
        cluster.all_applied().await;
        replace_program(&mut cluster, index, LATEST).await;
    }
    cluster.propose(&command("by rules 2")).await.expect("answered");
    cluster.all_applied().await;
    assert!(cluster.running().all(|(_, node)| node.group.rules() == 2));
    // A later release that was only tried can be taken back.
    replace_program(&mut cluster, 1, EARLIER).await;
    cluster.all_applied().await;
    assert_eq!(cluster.node(1).group.failure(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_starts_as_a_whole_on_a_later_program_stays_with_its_rules() {
    let mut cluster = bootstrapped_with([EARLIER; 3]).await;
    cluster.propose(&command("by rules 2")).await.expect("answered");
    cluster.all_applied().await;
    for _ in 0..2 {
        for index in 0..3 {
            cluster.kill(index).await;
            cluster.rules.insert(index, LATEST);
            // So that a leader is elected well before its first entry is committed.
            cluster.slow_down(index);
        }
        for index in 0..3 {
            cluster.start(index).await;
        }
        eventually("a leader", || async {
            // Each change lets the replicas decide once more, whatever they have applied by then.
            for allowed in [Some(1), None] {
                cluster.running().for_each(|(_, node)| node.manager.allow_rules(allowed));
                tokio::task::yield_now().await;
            }
            cluster.running().any(|(_, node)| node.group.subscribe_leadership().borrow().is_some()).then_some(())
        })
        .await;
        cluster.propose(&command("still by rules 2")).await.expect("answered");
        cluster.all_applied().await;
        all_go_by(&cluster, 2).await;
    }
    allow(&cluster, 3);
    all_go_by(&cluster, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_proposes_no_rules_that_the_group_has_already() {
    let mut cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    cluster.propose(&command("first")).await.expect("answered");
    let before = cluster.node(0).group.status().last_log_index;
    cluster.kill(0).await;
    cluster.start(0).await;
    cluster.propose(&command("second")).await.expect("answered");
    let after = cluster.node(0).group.status().last_log_index;
    assert_eq!(after - before, 2, "the first entry of the new term, and the command");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_replica_goes_to_the_latest_rules_by_itself() {
    let mut cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    cluster.propose(&command("by rules 2")).await.expect("answered");
    replace_program(&mut cluster, 0, LATEST).await;
    all_go_by(&cluster, 3).await;
    cluster.propose(&command("by rules 3")).await.expect("answered");
    assert_eq!(cluster.node(0).machine.rules(), [2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_does_not_know_the_rules_stops_at_the_entry_that_raises_them() {
    let mut cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    cluster.propose(&command("by rules 2")).await.expect("answered");
    replace_program(&mut cluster, 0, LATEST).await;
    all_go_by(&cluster, 3).await;
    cluster.propose(&command("by rules 3")).await.expect("answered");
    assert_eq!(cluster.node(0).store.highest_rules(), 3, "remembered for an earlier program to see");
    replace_program(&mut cluster, 0, EARLIER).await;
    let failure = eventually("the replica stops", || async { cluster.node(0).group.failure() }).await.to_string();
    assert!(failure.contains("rules 3") && failure.contains("rules 1 to 2"), "{failure}");
    assert_eq!(cluster.node(0).machine.commands(), [command("by rules 2")], "it has not gone on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_program_is_kept_out_of_a_group_that_was_raised_and_the_others_go_on() {
    let mut cluster = bootstrapped_with([LATEST; 3]).await;
    cluster.propose(&command("by rules 3")).await.expect("answered");
    cluster.all_applied().await;
    replace_program(&mut cluster, 2, EARLIER).await;
    let (leader, term) = led_by_other_than(&cluster, &[2]).await;
    propose_to(cluster.group(leader), term, &command("by the others")).await.expect("a majority goes on");
    assert!(cluster.node(2).machine.commands().len() < 2, "nothing reaches it");
    replace_program(&mut cluster, 2, LATEST).await;
    cluster.all_applied().await;
    assert_eq!(cluster.node(2).machine.commands(), [command("by rules 3"), command("by the others")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_survive_in_a_snapshot() {
    let setup = Setup { snapshot_interval_entries: 20, retain_entries: 2, ..Setup::default() };
    let mut cluster = Cluster::prepare(setup).await;
    for index in 0..3 {
        cluster.rules.insert(index, LATEST);
        cluster.start(index).await;
    }
    let node = cluster.node(0);
    node.manager.bootstrap(&node.group).await.expect("the group forms");
    cluster.leader().await;
    cluster.kill(2).await;
    // Until the entry that raised them is in no log any more.
    while cluster.running().any(|(_, node)| node.group.status().purged_index < 10) {
        cluster.propose(&command("one more")).await.expect("answered");
    }
    cluster.start(2).await;
    cluster.all_applied().await;
    all_go_by(&cluster, 3).await;
    cluster.kill(0).await;
    cluster.start(0).await;
    cluster.all_applied().await;
    assert_eq!(cluster.node(0).group.rules(), 3, "read from the own snapshot");
}

/// The log and the vote of a replica that is alone, as they were written before entries had blocks.
const FIRST_LOG: [&[u8]; 3] = [
    &[1, 0, 0, 2, 1, 1, 10, 1, 10],
    &[1, 1, 1, 0],
    &[1, 1, 2, 1, 0x1c, 0xb2, 0xf9, 0xa5, 0xcd, 0xa0, 0x34, 1, 4, 1, 3, 1, 1],
];
const FIRST_VOTE: &[u8] = &[1, 1, 1, 10, 1];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_before_entries_had_blocks_goes_on_by_the_first_rules() {
    let mut cluster = Cluster::prepare(Setup { nodes: 1, ..Setup::default() }).await;
    let identity = Identity { cluster_id: CLUSTER_ID.into(), node_id: node_id(0) };
    let store = NodeStore::in_memory(cluster.disks[0].memory(), &identity).expect("the store opens");
    let rows = FIRST_LOG.iter().zip(0_u64..).map(|(row, index)| (index, Bytes::from_static(row))).collect();
    store.replica(replica_id(0)).append(rows, Box::new(|done| done.expect("it is written")));
    store
        .replica(replica_id(0))
        .save_vote(Bytes::from_static(FIRST_VOTE), Box::new(|done| done.expect("it is written")));
    store.close().await;

    cluster.rules.insert(0, KnownRules { lowest: 1, highest: 1 });
    cluster.start(0).await;
    cluster.propose(&command("next")).await.expect("answered");
    let node = cluster.node(0);
    assert_eq!(node.machine.commands(), [Bytes::from_static(&[1, 3, 1, 1]), command("next")]);
    assert_eq!(node.machine.rules(), [1, 1]);
    let rows = node.store.replica(replica_id(0)).read(0, 100, usize::MAX).expect("the log can be read");
    let formats: Vec<u8> = rows.iter().map(|(_, row)| row[0]).collect();
    assert!(formats.starts_with(&[1, 1, 1, 2]) && formats.is_sorted(), "{formats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_a_replica_can_not_read_stops_it_and_no_other() {
    let cluster = bootstrapped_with([LATEST, LATEST, EARLIER]).await;
    let later = command(format!("{LATER}one"));
    let (mut leader, mut leads) = cluster.leader().await;
    while leader == 2 {
        let last = cluster.group(leader).status().last_log_index;
        let refused = propose_to(cluster.group(leader), leads.term, &later).await;
        assert!(matches!(refused, Err(ProposeError::UnsupportedCommand(_))), "{refused:?}");
        assert_eq!(cluster.group(leader).status().last_log_index, last, "it was not written");
        cluster.group(leader).transfer_leadership(Duration::from_secs(3)).await;
        (leader, leads) = cluster.leader_except(&[2]).await;
    }
    propose_to(cluster.group(leader), leads.term, &command("before")).await.expect("answered");
    propose_to(cluster.group(leader), leads.term, &later).await.expect("those who know it apply it");
    let failure = eventually("the replica stops", || async { cluster.node(2).group.failure() }).await.to_string();
    assert!(failure.contains("a command of a later release"), "{failure}");
    propose_to(cluster.group(leader), leads.term, &command("after")).await.expect("the others go on");
    assert_eq!(cluster.node(2).machine.commands(), [command("before")]);
}
