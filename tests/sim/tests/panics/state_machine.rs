//! Panics in the middle of an entry.

use std::time::Duration;

use holdfast_core::{
    AccountId, Acquire, AcquireOutcome, CommandError, Incarnation, LocksCommand, NamespaceRef, Owner, RESTORE_MARGIN,
    Response,
};
use holdfast_proto::internal::{Poison, ReplicaStatus};
use holdfast_routing::{ComparedReplicas, Quarantined, RouteError};

use crate::cluster::{POISON, SNAPSHOT_INTERVAL, TestCluster, acquire_command, eventually};

/// The shard with the entry, one of another group, and one of the same.
const POISONED_SHARD: u32 = 0;
const HEALTHY_SHARDS: [u32; 2] = [1, 3];
/// How long a call waits that may find nobody.
const MAX_WAIT: Duration = Duration::from_secs(3);

fn poison_record(world: &TestCluster, node: usize) -> Option<Poison> {
    let (shard, status) = (world.shard_id(POISONED_SHARD), world.node(node).status(false));
    status.replicas.into_iter().find(|replica| replica.shard == shard)?.poison
}

fn invoices() -> NamespaceRef {
    NamespaceRef { account: AccountId(8), name: "invoices".into(), incarnation: Incarnation(2) }
}

/// A request for ten minutes of another namespace than the poisoned one.
fn acquire_invoice(name: &str, owner: &str) -> LocksCommand {
    let owner = Owner::Process(owner.to_owned());
    LocksCommand::Acquire(Acquire { namespace: invoices(), ttl_ms: Some(600_000), owner, ..acquire_command(name) })
}

fn is_granted(response: &Response) -> bool {
    matches!(response, Response::Acquired { outcome: AcquireOutcome::Granted { .. }, .. })
}

/// It is said what failed where, and by whom.
async fn assert_shard_failed(world: &TestCluster, node: usize) {
    let poison = eventually("it is left out", async || poison_record(world, node)).await;
    assert_eq!((poison.step.as_str(), poison.release.as_str()), ("command 0", "1"));
    assert_eq!(poison.namespace, "0000000000000007/orders/0000000000000001");
    assert!(poison.command.contains("Acquire") && poison.command.contains(POISON), "{poison:?}");
    assert!(poison.message.contains("a bug in the state machine"), "{poison:?}");
    assert!(poison.backtrace.contains("apply"), "{poison:?}");
}

/// While the shard serves elsewhere, a node where it has failed is not ready, and says why.
async fn assert_waits_for_shard(world: &TestCluster, node: usize) {
    let shard = world.shard_id(POISONED_SHARD);
    let says_so =
        |reason: &String| reason.contains(&shard) && reason.contains("failed for good") && reason.contains("a bug");
    eventually("it is not ready", async || world.node(node).not_ready()().filter(says_so)).await;
    assert!(world.node(node).down_shards()().is_empty());
}

/// Until the poisoned shard serves on all nodes.
async fn wait_until_it_serves(world: &TestCluster) {
    let serves = async || (0..3).all(|node| poison_record(world, node).is_none()).then_some(());
    eventually("the shard serves", serves).await;
    world.wait_ready().await;
}

/// Other shards of the node are as before, in the same group and in others.
async fn assert_other_shards_serve(world: &TestCluster, node: usize, name: &str) {
    let group =
        |shard: u32| world.config.shards().find(|known| known.id == world.shard_id(shard)).unwrap().group.clone();
    assert_eq!(HEALTHY_SHARDS.map(|shard| group(shard) == group(POISONED_SHARD)), [false, true]);
    for shard in HEALTHY_SHARDS {
        world.acquire(shard, name, 10 * MAX_WAIT).await.expect("the other shard serves");
        let good = world.shard_id(shard);
        eventually("the other shard's replica follows", async || {
            let replicas = world.replicas(&good);
            let here = world.node(node).status(true).replicas.into_iter().find(|replica| replica.shard == good)?;
            let same = |other: &ReplicaStatus| {
                (other.applied_index, &other.state_digest) == (here.applied_index, &here.state_digest)
            };
            (!here.state_digest.is_empty() && replicas.iter().all(same)).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_that_does_not_come_again_costs_a_rebuild_of_the_shard() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let world = TestCluster::start().await;
    let leader = world.leader(&world.shard_id(POISONED_SHARD)).await;
    *world.observers[leader].panics_left.lock() = 1;
    world.acquire(POISONED_SHARD, POISON, 10 * MAX_WAIT).await.expect("another one leads and answers");
    world.wait_ready().await;
    world.assert_serves("after").await;
    world.wait_equal_states().await;
    assert_eq!(*world.observers[leader].panics_left.lock(), 0, "it failed");
    assert_eq!(poison_record(&world, leader), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_fails_twice_on_one_replica_takes_the_state_of_the_others() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let mut world = TestCluster::start().await;
    let leader = world.leader(&world.shard_id(POISONED_SHARD)).await;
    *world.observers[leader].panics_left.lock() = usize::MAX;
    world.acquire(POISONED_SHARD, POISON, 10 * MAX_WAIT).await.expect("another one leads and answers");
    world.wait_ready().await;
    world.assert_serves("after").await;
    world.wait_equal_states().await;
    assert!(*world.observers[leader].panics_left.lock() <= usize::MAX - 2, "its own history did not suffice");
    assert_eq!(poison_record(&world, leader), None);
    // It is among those that others believe.
    let other = (leader + 1) % 3;
    *world.observers[leader].panics_left.lock() = 0;
    *world.observers[other].panics_left.lock() = usize::MAX;
    world.acquire(POISONED_SHARD, &format!("{POISON} again"), 10 * MAX_WAIT).await.expect("one serves");
    world.wait_ready().await;
    world.wait_equal_states().await;
    // The next start begins behind the entries, or mends it again.
    world.stop_node(leader).await;
    world.start_node(leader, "1").await;
    world.wait_ready().await;
    world.assert_serves("started again").await;
    world.wait_equal_states().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_fails_on_most_replicas_is_left_out_there_and_nothing_else_is() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let mut world = TestCluster::start().await;
    let leader = world.leader(&world.shard_id(POISONED_SHARD)).await;
    // One healthy replica alone is not believed.
    let second = (leader + 1) % 3;
    for node in [leader, second] {
        *world.observers[node].panics_left.lock() = usize::MAX;
    }
    world.acquire(POISONED_SHARD, POISON, 10 * MAX_WAIT).await.expect("another one leads and answers");
    assert_shard_failed(&world, leader).await;
    assert_waits_for_shard(&world, leader).await;
    assert_ne!(world.leader(&world.shard_id(POISONED_SHARD)).await, leader, "one leads whose shards all serve");
    assert_other_shards_serve(&world, leader, "meanwhile").await;
    world.acquire(POISONED_SHARD, "without it", 10 * MAX_WAIT).await.expect("the group serves from the others");
    // Snapshots go on meanwhile, with what the failed shard was made of.
    let poison = poison_record(&world, leader).expect("it is left out");
    let failed_at = poison.index;
    for number in 0..2 * SNAPSHOT_INTERVAL {
        let shard = [POISONED_SHARD, HEALTHY_SHARDS[1]][number as usize % 2];
        world.acquire(shard, &format!("more {number}"), 10 * MAX_WAIT).await.expect("it serves");
    }
    eventually("a snapshot has the entry", async || {
        let shard = world.shard_id(POISONED_SHARD);
        let status = world.node(leader).status(false).replicas.into_iter().find(|replica| replica.shard == shard)?;
        (status.snapshot_index > failed_at).then_some(())
    })
    .await;
    assert_shard_failed(&world, leader).await;
    // The same release fails at it again.
    world.stop_node(leader).await;
    world.start_node(leader, "1").await;
    assert_shard_failed(&world, leader).await;
    assert_waits_for_shard(&world, leader).await;
    let again = poison_record(&world, leader).expect("it is left out");
    assert_eq!((again.term, again.index), (poison.term, poison.index), "the entry is known from the snapshot");
    assert_other_shards_serve(&world, leader, "started again").await;
    // Another one tries again, and has what the others did meanwhile.
    for node in [leader, second] {
        *world.observers[node].panics_left.lock() = 0;
        world.stop_node(node).await;
        world.start_node(node, "2").await;
        eventually("it is mended", async || world.node(node).not_ready()().is_none().then_some(())).await;
    }
    world.wait_ready().await;
    world.assert_serves("mended").await;
    world.wait_equal_states().await;
    // And it is forgotten for good.
    world.stop_node(leader).await;
    world.start_node(leader, "1").await;
    world.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_all_replicas_fail_at_takes_its_shard_down_and_nothing_else() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let world = TestCluster::start().await;
    for observer in &world.observers {
        *observer.panics_left.lock() = usize::MAX;
    }
    let leader = world.leader(&world.shard_id(POISONED_SHARD)).await;
    let lost = world.acquire(POISONED_SHARD, POISON, MAX_WAIT).await.expect_err("nobody can apply it");
    println!("its caller is told: {lost}");
    let shard = world.shard_id(POISONED_SHARD);
    for node in 0..3 {
        assert_shard_failed(&world, node).await;
        assert_other_shards_serve(&world, node, &format!("of node {node}")).await;
    }
    // No node can bring it back, so none waits for that: the other shards need all three.
    world.wait_ready().await;
    for node in 0..3 {
        assert_eq!(world.node(node).down_shards()(), [shard.as_str()]);
    }
    assert_eq!(world.leader(&shard).await, leader, "more shards would serve nowhere");
    let refused = world.acquire(POISONED_SHARD, "anything", MAX_WAIT).await.expect_err("the shard is down");
    assert!(matches!(refused, RouteError::Unavailable { .. }), "{refused}");
    let records: Vec<Option<Poison>> = (0..3).map(|node| poison_record(&world, node)).collect();
    let places = records.iter().flatten().map(|poison| (poison.term, poison.index, poison.step.clone()));
    assert!(places.collect::<std::collections::BTreeSet<_>>().len() == 1, "{records:?}");
}

/// The token of a lock that is free.
async fn token_of(world: &TestCluster, name: &str) -> u64 {
    let command = LocksCommand::Acquire(acquire_command(name));
    match world.send(POISONED_SHARD, command, 10 * MAX_WAIT).await.expect("the shard answers") {
        Response::Acquired { outcome, .. } => outcome.fencing_token().expect("it is granted"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_failed_take_the_state_of_the_one_that_an_operator_names() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let world = TestCluster::start().await;
    let shard = world.shard_id(POISONED_SHARD);
    let leader = world.leader(&shard).await;
    let failing = [leader, (leader + 1) % 3];
    for node in failing {
        *world.observers[node].panics_left.lock() = usize::MAX;
    }
    world.acquire(POISONED_SHARD, POISON, 10 * MAX_WAIT).await.expect("another one leads and answers");
    for node in failing {
        assert_shard_failed(&world, node).await;
        assert_waits_for_shard(&world, node).await;
    }
    let before = token_of(&world, "before").await;
    let rebuild = async || {
        let right = world.leader(&shard).await;
        let of_shard = |replica: &ReplicaStatus| replica.shard == shard;
        let replica = world.node(right).status(false).replicas.into_iter().find(of_shard)?.replica;
        world.operations().rebuild_shard(&world.config.nodes[right], replica, &shard, replica).await.ok()
    };
    // It is refused until the one that serves leads.
    let compared = eventually("they are rebuilt", rebuild).await;
    assert_eq!(compared, ComparedReplicas::default(), "no other copy serves");
    wait_until_it_serves(&world).await;
    world.wait_equal_states().await;
    assert!(token_of(&world, "after").await > before + RESTORE_MARGIN / 2, "no token is given out twice");
}

/// Has the operator leave out the namespace that the record names, at an entry `later` than that of the record.
async fn quarantine(world: &TestCluster, record: &Poison, later: u64) -> Result<(), String> {
    let shard = world.shard_id(POISONED_SHARD);
    let leader = world.leader(&shard).await;
    let of_shard = |replica: &ReplicaStatus| replica.shard == shard;
    let replica = world.node(leader).status(false).replicas.into_iter().find(of_shard).expect("it is there").replica;
    let (node, what) = (&world.config.nodes[leader], Quarantined::Namespace(record.namespace.clone()));
    let ordered = world.operations().quarantine(node, replica, &shard, record.index + later, what, false).await;
    ordered.map_err(|error| error.to_string())
}

/// The poisoned namespace is refused, and the other one of its shard has what it had.
async fn assert_quarantined(world: &TestCluster, name: &str) {
    let poisoned = LocksCommand::Acquire(acquire_command(name));
    let refused = world.try_send(POISONED_SHARD, poisoned, 10 * MAX_WAIT).await.expect("the shard answers");
    assert_eq!(refused, Err(CommandError::Quarantined));
    let held = world.send(POISONED_SHARD, acquire_invoice("kept", name), 10 * MAX_WAIT).await.expect("it answers");
    assert!(!is_granted(&held), "somebody else holds it: {held:?}");
    let free = world.send(POISONED_SHARD, acquire_invoice(name, name), 10 * MAX_WAIT).await.expect("it answers");
    assert!(is_granted(&free), "{free:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_all_replicas_fail_at_is_left_out_by_an_operator_and_no_other_namespace_loses_anything() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let mut world = TestCluster::start().await;
    world.open_namespace(POISONED_SHARD, 2, invoices()).await;
    let kept = world.send(POISONED_SHARD, acquire_invoice("kept", "owner"), 10 * MAX_WAIT).await.expect("it answers");
    assert!(is_granted(&kept), "{kept:?}");
    for observer in &world.observers {
        *observer.panics_left.lock() = usize::MAX;
    }
    world.acquire(POISONED_SHARD, POISON, MAX_WAIT).await.expect_err("nobody can apply it");
    let leader = world.leader(&world.shard_id(POISONED_SHARD)).await;
    let record = eventually("it is left out", async || poison_record(&world, leader)).await;
    let refusal = quarantine(&world, &record, 1).await.expect_err("it failed at another entry");
    assert!(refusal.contains(&format!("failed at entry {}", record.index)), "{refusal}");
    // It is refused until the leader knows that the shard serves nowhere.
    eventually("it is logged", async || quarantine(&world, &record, 0).await.ok()).await;
    wait_until_it_serves(&world).await;
    assert_quarantined(&world, "after").await;
    for shard in HEALTHY_SHARDS {
        world.acquire(shard, "after", 10 * MAX_WAIT).await.expect("the other shard serves");
    }
    world.wait_equal_states().await;
    assert!((0..3).all(|node| poison_record(&world, node).is_none()));
    assert!(quarantine(&world, &record, 0).await.is_err(), "it serves");

    // Also from a log that has the entry before the order, and from a snapshot of after both.
    world.stop_node(leader).await;
    world.start_node(leader, "1").await;
    world.wait_ready().await;
    for number in 0..2 * SNAPSHOT_INTERVAL {
        let more = acquire_invoice(&format!("more {number}"), "owner");
        world.send(POISONED_SHARD, more, 10 * MAX_WAIT).await.expect("it serves");
    }
    for node in 0..3 {
        world.stop_node(node).await;
        world.start_node(node, "1").await;
        world.wait_ready().await;
    }
    assert_quarantined(&world, "started again").await;
    world.wait_equal_states().await;
}
