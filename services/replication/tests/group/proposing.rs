//! Commands: batched, applied in one order everywhere, answered each with its own reply, or definitely not done.

use crate::common::{Cluster, MAX_WAIT, ProxyMode, Setup, command, eventually, propose_to, replica_id};
use bytes::Bytes;
use futures::future::join_all;
use holdfast_replication::{Group, ProposeError, ReadMode, Timing, testing};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_answered_after_it_is_applied_and_followers_apply_the_same() {
    let cluster = Cluster::bootstrapped(Setup { rocks: true, ..Setup::default() }).await;
    let (leader, leads) = cluster.leader().await;
    for number in 0..20_u64 {
        let reply =
            propose_to(cluster.group(leader), leads.term, &command(format!("{number}"))).await.expect("answered");
        assert_eq!(reply.position, number);
        assert!(cluster.node(leader).machine.len() as u64 > number, "the answer came before the command was applied");
    }
    cluster.all_applied().await;
    let expected = cluster.node(leader).machine.commands();
    let logged = rows(&cluster, leader).await;
    assert!(logged.len() > 20, "{} entries", logged.len());
    for (index, node) in cluster.running() {
        assert_eq!(node.machine.commands(), expected, "replica of node {index}");
        assert!(rows(&cluster, index).await == logged, "node {index} has other bytes in its log than the leader");
    }
}

/// The log of a node's replica, as it is stored.
async fn rows(cluster: &Cluster, index: usize) -> Vec<(u64, Bytes)> {
    let log = cluster.node(index).store.replica(replica_id(index));
    log.flush().await.expect("the disk works");
    log.read(0, u64::MAX, usize::MAX).expect("the log can be read")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_commands_share_entries_and_each_gets_its_own_reply() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    let group = cluster.group(leader);
    let before = group.status().last_log_index;
    let commands: Vec<_> = (0..2_000).map(|number| command(format!("command {number}"))).collect();
    let started = Instant::now();
    let replies = join_all(commands.iter().map(|command| propose_to(group, leads.term, command))).await;
    println!("{} concurrent commands took {:?}", commands.len(), started.elapsed());
    let journal = cluster.node(leader).machine.commands();
    for (command, reply) in commands.iter().zip(replies) {
        let position = usize::try_from(reply.expect("answered").position).expect("it fits");
        assert_eq!(&journal[position], command, "the reply belongs to another command");
    }
    assert_eq!(journal.len(), commands.len());
    let entries = group.status().last_log_index - before;
    println!("in {entries} entries");
    assert!(entries < 500, "{entries} entries");
}

/// A caller of a command for that shard, who waits for a reply.
fn caller(group: &Group, shard: u32, term: u64, text: &str) -> JoinHandle<Result<Bytes, ProposeError>> {
    let (group, command) = (group.clone(), command(text));
    tokio::spawn(async move { group.propose(shard, term, command, Instant::now() + MAX_WAIT).await })
}

/// Callers of two commands that are under way, each in an entry of its own.
async fn two_callers(group: &Group, term: u64) -> [JoinHandle<Result<Bytes, ProposeError>>; 2] {
    let before = group.status().last_log_index;
    let first = caller(group, 0, term, "first");
    eventually("its entry", || async { (group.status().last_log_index == before + 1).then_some(()) }).await;
    let second = caller(group, 0, term, "second");
    eventually("its entry", || async { (group.status().last_log_index == before + 2).then_some(()) }).await;
    [first, second]
}

#[tokio::test]
async fn a_section_is_answered_whatever_the_others_of_its_entry_take() {
    let cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first of the term")).await.expect("answered");
    let (group, machine) = (cluster.group(leader), &cluster.node(leader).machine);
    let is_up_to_date = || async { Some(group.status().last_log_index).filter(|it| *it == group.last_applied_index()) };
    let mut have_shared = false;
    // Most of the time both have proposed before the entry is formed.
    for _ in 0..50 {
        let last = eventually("openraft's figures are up to date", is_up_to_date).await;
        machine.stall(&[0]);
        let (slow, quick) = (caller(group, 0, leads.term, "slow"), caller(group, 1, leads.term, "quick"));
        let quick = timeout(MAX_WAIT / 3, quick).await.expect("it waits for another section of its entry");
        quick.expect("it does not panic").expect("answered");
        assert!(!slow.is_finished(), "its section waits");
        machine.stall(&[]);
        slow.await.expect("it does not panic").expect("answered");
        have_shared |= eventually("openraft's figures are up to date", is_up_to_date).await == last + 1;
    }
    assert!(have_shared, "the two never share an entry");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_caller_gets_the_reply_to_what_replaced_its_command() {
    // Callers of a leader without a quorum wait for two leases. By then another leads, and has overwritten its log.
    let lease = Duration::from_secs(5);
    let timing = Timing { election_min: lease / 2, election_max: lease, ..Timing::default() };
    let cluster = Cluster::bootstrapped(Setup { timing, ..Setup::default() }).await;
    let (old, leads) = cluster.leader().await;
    cluster.propose(&command("before")).await.expect("answered");
    cluster.all_applied().await;
    cluster.cut_off(old, ProxyMode::Silent);
    let callers = two_callers(cluster.group(old), leads.term).await;
    let candidate = cluster.group((old + 1) % 3);
    let (next, next_leads) = eventually("another leads", || async {
        testing::late_election_trigger(candidate).await;
        timeout(Duration::from_millis(200), cluster.leader_except(&[old])).await.ok()
    })
    .await;
    // The first entry of its term takes the place of the first command, and this one that of the second.
    propose_to(cluster.group(next), next_leads.term, &command("instead")).await.expect("answered");
    cluster.cut_off(old, ProxyMode::Open);
    for caller in callers {
        let reply = caller.await.expect("it does not panic");
        assert!(reply.is_err(), "it got the reply to another command");
    }
    cluster.all_applied().await;
    assert_eq!(cluster.node(old).machine.commands(), [command("before"), command("instead")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_fills_the_queue_delays_no_other() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first of the term")).await.expect("answered");
    let group = cluster.group(leader);
    let flood: Vec<_> = (0..1_000).map(|number| command(format!("{number} of account A"))).collect();
    let other = command("of account B");
    let replies = join_all(flood.iter().chain([&other]).map(|command| propose_to(group, leads.term, command))).await;
    let position = replies.last().expect("the last").as_ref().expect("answered").position;
    assert!(position < 500, "{position} commands came before it");
    assert!(replies.iter().all(Result::is_ok), "the account has no more queued than it may");
    let surplus: Vec<_> = (0..3_000).map(|number| command(format!("{number} more of account A"))).collect();
    let surplus = surplus.iter().map(|command| propose_to(group, leads.term, command));
    let (surplus, reply) = tokio::join!(join_all(surplus), propose_to(group, leads.term, &other));
    let refused = surplus.iter().filter(|reply| matches!(reply, Err(ProposeError::Limited(_)))).count();
    assert!(refused > 0 && reply.is_ok(), "{refused} refused, {reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_does_not_wait_for_the_one_before_it_and_those_after_it_do() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first of the term")).await.expect("answered");
    let group = cluster.group(leader);
    let before = group.status().last_log_index;
    // Nothing that is proposed from now on is decided, so that every entry stays under way.
    cluster.cut_off(leader, ProxyMode::Silent);
    let within = |ms| Instant::now() + Duration::from_millis(ms);
    let [first, second] = ["first", "second"].map(|text| group.propose(0, leads.term, command(text), within(1_000)));
    let later = async {
        eventually("two entries", || async { (group.status().last_log_index == before + 2).then_some(()) }).await;
        group.propose(0, leads.term, command("third"), within(100)).await
    };
    let second = async {
        eventually("an entry", || async { (group.status().last_log_index == before + 1).then_some(()) }).await;
        second.await
    };
    let (first, second, third) = tokio::join!(first, second, later);
    assert!(matches!(first, Err(ProposeError::Unknown(_))), "{first:?}");
    assert!(matches!(second, Err(ProposeError::Unknown(_))), "{second:?}");
    assert!(matches!(third, Err(ProposeError::NotProposed(_))), "{third:?}");
    assert_eq!(group.status().last_log_index, before + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_for_another_term_or_a_follower_is_refused_and_not_executed() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    for term in [0, leads.term - 1, leads.term + 1] {
        let refused = propose_to(cluster.group(leader), term, &command("wrong term")).await;
        let Err(ProposeError::NotLeader(not_leader)) = refused else { panic!("{refused:?}") };
        assert_eq!((not_leader.leader, not_leader.term), (Some(crate::common::replica_id(leader)), leads.term));
    }
    for (_, node) in cluster.running().filter(|(index, _)| *index != leader) {
        let known =
            || async { (node.group.not_leader().leader == Some(crate::common::replica_id(leader))).then_some(()) };
        eventually("the follower knows the leader", known).await;
        let refused = propose_to(&node.group, leads.term, &command("at a follower")).await;
        let Err(ProposeError::NotLeader(not_leader)) = refused else { panic!("{refused:?}") };
        assert_eq!((not_leader.leader, not_leader.term), (Some(crate::common::replica_id(leader)), leads.term));
    }
    cluster.propose(&command("right")).await.expect("answered");
    assert_eq!(cluster.node(leader).machine.commands(), [command("right")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_too_large_for_the_wire_is_refused_and_harms_nothing() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    let huge = command("x".repeat(2 * 1024 * 1024));
    let refused = propose_to(cluster.group(leader), leads.term, &huge).await;
    assert!(matches!(refused, Err(ProposeError::NotProposed(_))), "{refused:?}");
    // Many of several accounts that are just allowed, more than one message between nodes can carry, get through.
    let large = |account| command(format!("{}{account}", "x".repeat(1024 * 1024 - 1)));
    let large: Vec<_> = ('A'..).take(40).map(large).collect();
    let answers = join_all(large.iter().map(|large| propose_to(cluster.group(leader), leads.term, large))).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    cluster.all_applied().await;
    assert!(cluster.running().all(|(_, node)| node.machine.len() == 40));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_moves_the_clock_without_a_command() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    let group = cluster.group(leader);
    let before = cluster.propose(&command("before")).await.expect("answered").clock_ms;
    eventually("some time passes", || async { (leads.clock.now_ms() >= before + 50).then_some(()) }).await;
    group.propose_clock_tick(0, leads.term, Instant::now() + MAX_WAIT).await.expect("the tick is written");
    let machine: &dyn holdfast_replication::StateMachine = cluster.node(leader).machine.as_ref();
    assert!(machine.clock_ms() >= before + 50);
    assert!(matches!(
        group.propose_clock_tick(0, leads.term + 1, Instant::now() + MAX_WAIT).await,
        Err(ProposeError::NotLeader(_))
    ));
    assert_eq!(cluster.node(leader).machine.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_leader_permits_reads_under_a_lease_or_by_asking_a_quorum() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    for reads in [ReadMode::Lease, ReadMode::Quorum] {
        let deadline = Instant::now() + Duration::from_secs(5);
        let permit =
            eventually("a permit", || async { cluster.group(leader).read_permit(reads, deadline).await.ok() }).await;
        assert_eq!(permit.term, leads.term);
        let length = cluster.group(leader).read(reads, deadline, |_| cluster.node(leader).machine.len()).await;
        assert_eq!(length, Ok(0));
        for (_, node) in cluster.running().filter(|(index, _)| *index != leader) {
            assert!(node.group.read_permit(reads, deadline).await.is_err(), "{reads:?} at a follower");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_replica_stays_behind_after_a_shutdown() {
    use std::sync::Arc;
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    let asked: Vec<_> = (0..50).map(|number| command(format!("{number}"))).collect();
    let group = cluster.group(leader).clone();
    let asking = join_all(asked.iter().map(|command| propose_to(&group, leads.term, command)));
    let (answers, ()) = tokio::join!(asking, cluster.node(leader).manager.shutdown());
    // Each was answered, or told definitely.
    assert_eq!(answers.len(), 50);
    let machine = Arc::downgrade(&cluster.node(leader).machine);
    let tasks = cluster.node(leader).tasks();
    cluster.nodes[leader].as_mut().expect("it is there").release_machine();
    drop(group);
    eventually("the replica's machine is dropped", || async { (machine.strong_count() == 0).then_some(()) }).await;
    eventually("its tasks end, but for the listener's and its connections'", || async {
        let alive = tasks.num_alive_tasks();
        (alive <= 8).then_some(())
    })
    .await;
    let again = cluster.group(leader).propose(0, leads.term, command("late"), Instant::now() + MAX_WAIT).await;
    assert!(again.is_err(), "{again:?}");
}
