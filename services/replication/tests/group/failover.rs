//! Leaders that die, are cut off, or hand over.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::journal::Reply;
use crate::common::{Cluster, MAX_WAIT, ProxyMode, Setup, command, eventually, propose_to, replica_id};
use holdfast_replication::{Group, ProposeError, ReadMode, Timing};
use tokio::time::{Duration, Instant, sleep, timeout};

/// How many failovers may be tried on a busy machine.
const MAX_FAILOVERS: usize = 8;

/// What an answered load has learnt.
#[derive(Default)]
struct Tally {
    answered: Vec<(bytes::Bytes, Reply, Instant)>,
    unknown: usize,
    refused: usize,
}

/// Proposes one command after the other at whichever of the groups leads, until told to stop.
async fn load(name: usize, groups: Vec<Group>, stop: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        // The handle of a node that was killed shows what it showed last, as nobody is there to change it.
        let mut alive = groups.iter().filter(|group| group.subscribe_leadership().has_changed().is_ok());
        let leader = alive.find_map(|group| group.subscribe_leadership().borrow().map(|leads| (group, leads.term)));
        let Some((group, term)) = leader else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        number += 1;
        let command = command(format!("{name}-{number}"));
        let deadline = Instant::now() + Duration::from_secs(3);
        let asked = timeout(Duration::from_secs(4), group.propose(0, term, command.clone(), deadline)).await;
        match asked.expect("a proposal never outlives its deadline") {
            Ok(bytes) => tally.answered.push((command, Reply::decode(&bytes), Instant::now())),
            Err(ProposeError::Unknown(_)) => tally.unknown += 1,
            Err(_) => {
                tally.refused += 1;
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
    tally
}

fn assert_kept(tally: &Tally, journal: &[bytes::Bytes]) {
    for (command, reply, _) in &tally.answered {
        let position = usize::try_from(reply.position).expect("it fits");
        assert_eq!(journal.get(position), Some(command), "an answered command is gone or elsewhere");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_leader_is_killed_another_leads_and_nothing_answered_is_lost() {
    let mut cluster = Cluster::bootstrapped(Setup { rocks: true, ..Setup::default() }).await;
    for round in 0..3 {
        let (leader, leads) = cluster.leader().await;
        let stop = Arc::new(AtomicBool::new(false));
        let groups: Vec<Group> = cluster.running().map(|(_, node)| node.group.clone()).collect();
        let loads: Vec<_> = (0..8).map(|name| tokio::spawn(load(name, groups.clone(), stop.clone()))).collect();
        drop(groups);
        let before = cluster.node(leader).machine.len();
        let machine = cluster.node(leader).machine.clone();
        eventually("the load is under way", || async { (machine.len() > before + 50).then_some(()) }).await;
        drop(machine);
        let killed = Instant::now();
        cluster.kill(leader).await;
        let (next, next_leads) = cluster.leader_except(&[leader]).await;
        println!("round {round}: another replica leads {:?} after the kill", killed.elapsed());
        assert!(next_leads.term > leads.term);
        let grown = cluster.node(next).machine.len();
        eventually("it serves", || async { (cluster.node(next).machine.len() > grown + 50).then_some(()) }).await;
        println!("round {round}: it serves {:?} after the kill", killed.elapsed());
        stop.store(true, Ordering::Release);
        let mut tallies = Vec::new();
        for load in loads {
            tallies.push(load.await.expect("the load does not panic"));
        }
        cluster.start(leader).await;
        cluster.all_applied().await;
        for (_, node) in cluster.running() {
            let journal = node.machine.commands();
            tallies.iter().for_each(|tally| assert_kept(tally, &journal));
        }
        let (answered, unknown) =
            tallies.iter().fold((0, 0), |sum, tally| (sum.0 + tally.answered.len(), sum.1 + tally.unknown));
        println!("round {round}: {answered} answered, {unknown} unknown");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_goes_on_near_the_old_leaders_after_a_quiet_time_and_never_runs_ahead() {
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    let (mut leader, mut leads) = cluster.leader().await;
    let started = (Instant::now(), leads.clock.now_ms());
    let (mut near, mut behind_by) = (0, Vec::new());
    while near < 2 {
        // A process that is not run for a while sends heartbeats late, but not so many times in a row.
        assert!(behind_by.len() < MAX_FAILOVERS, "heartbeats carry the clock: behind by {behind_by:?} ms");
        let stamped = cluster.propose(&command("stamped")).await.expect("answered").clock_ms;
        // A quiet time: no entry carries a stamp, only heartbeats carry the clock.
        eventually("a quiet second", || async { (leads.clock.now_ms() >= stamped + 1_000).then_some(()) }).await;
        let old = leads.clock;
        let last_shown = old.now_ms();
        cluster.kill(leader).await;
        let (next, next_leads) = cluster.leader().await;
        let begins = next_leads.clock.now_ms();
        println!("the old clock showed {last_shown} at the kill, the new one begins near {begins}");
        // Two heartbeats, when one of them is late, and what they take.
        behind_by.push(last_shown.saturating_sub(begins));
        near += usize::from(begins + 700 >= last_shown);
        assert!(begins <= old.now_ms(), "the shard clock stands still while nobody leads");
        let real = u64::try_from(started.0.elapsed().as_millis()).expect("it fits");
        assert!(next_leads.clock.now_ms() <= started.1 + real + 1, "the clock ran ahead of real time");
        let after = cluster.propose(&command("after")).await.expect("answered").clock_ms;
        assert!(after > stamped, "the clock went back");
        cluster.start(leader).await;
        (leader, leads) = (next, next_leads);
        cluster.all_applied().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_cut_off_and_leads_again_does_not_cut_leases_short() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (old, _) = cluster.leader().await;
    cluster.propose(&command("first")).await.expect("answered");
    cluster.cut_off(old, ProxyMode::Silent);
    let (next, leads) = cluster.leader_except(&[old]).await;
    // Granted by the next leader's clock, which stood still for the failover while the old one's ran on.
    let granted = propose_to(cluster.group(next), leads.term, &command("granted")).await.expect("answered").clock_ms;
    let granted_at = Instant::now();
    cluster.cut_off(old, ProxyMode::Open);
    eventually("the old leader follows", || async {
        (cluster.group(old).status().leader == Some(replica_id(next))).then_some(())
    })
    .await;
    cluster.all_applied().await;
    // Leadership goes around until the old leader leads again.
    eventually("the old leader leads again", || async {
        let (leader, leads) = cluster.leader().await;
        if leader == old {
            let now_ms = leads.clock.now_ms();
            let real = u64::try_from(granted_at.elapsed().as_millis()).expect("it fits");
            println!("since the grant the clock moved {} ms and real time {real} ms", now_ms - granted);
            assert!(now_ms - granted <= real + 5, "a lease would end early");
            return Some(());
        }
        cluster.group(leader).transfer_leadership(Duration::from_secs(3)).await;
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_stops_reading_in_time_and_never_answers_success() {
    for mode in [ProxyMode::Cut, ProxyMode::Silent] {
        let cluster = Cluster::bootstrapped(Setup::default()).await;
        let (old, leads) = cluster.leader().await;
        let group = cluster.group(old).clone();
        let soon = || Instant::now() + Duration::from_secs(5);
        eventually("it may read", || async { group.read_permit(ReadMode::Lease, soon()).await.ok() }).await;
        cluster.cut_off(old, mode);
        let cut = Instant::now();
        let proposing = tokio::spawn({
            let group = group.clone();
            async move {
                let ended = group.propose(0, leads.term, command("cut off"), Instant::now() + MAX_WAIT).await;
                (ended, cut.elapsed())
            }
        });
        // A read that was asked for later than the lease lasts must be refused, however late this task is run.
        let last_allowed = Cell::new(cut);
        eventually("it reads no more", || async {
            let asked = Instant::now();
            let is_allowed = group.read_permit(ReadMode::Lease, soon()).await.is_ok();
            if is_allowed {
                last_allowed.set(asked);
            }
            (!is_allowed).then_some(())
        })
        .await;
        let allowed = last_allowed.get() - cut;
        println!("{mode:?}: the last read that is allowed was asked for {allowed:?} after the cut");
        assert!(allowed <= Timing::default().usable_lease() + Duration::from_millis(10), "{allowed:?}");
        let quorum = group.read_permit(ReadMode::Quorum, Instant::now() + Duration::from_secs(2)).await;
        assert!(quorum.is_err(), "{quorum:?}");
        let (next, _) = cluster.leader_except(&[old]).await;
        println!("{mode:?}: another replica leads {:?} after the cut", cut.elapsed());
        let reply = propose_at(&cluster, next).await;
        assert_eq!(reply.position, 0, "what the cut-off leader proposed was not committed");
        let (ended, took) = timeout(MAX_WAIT, proposing).await.expect("it never hangs").expect("it does not panic");
        println!("{mode:?}: the pending proposal ended {took:?} after the cut with {ended:?}");
        assert!(took < Duration::from_secs(5), "a minority answers within five seconds, on any machine");
        let later = group.propose(0, leads.term, command("later"), Instant::now() + MAX_WAIT).await;
        assert!(matches!(later, Err(ProposeError::NotLeader(_) | ProposeError::NotProposed(_))), "{later:?}");
        assert!(matches!(ended, Err(ProposeError::Unknown(_) | ProposeError::NotLeader(_))), "{ended:?}");
        cluster.cut_off(old, ProxyMode::Open);
        let healed = Instant::now();
        eventually("the old leader has caught up", || async {
            (cluster.node(old).machine.commands() == cluster.node(next).machine.commands()).then_some(())
        })
        .await;
        println!("{mode:?}: caught up {:?} after healing", healed.elapsed());
        cluster.propose(&command("healed")).await.expect("answered");
        cluster.all_applied().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_address_refuses_one_follower_goes_on_when_its_own_connection_to_it_is_there() {
    // So long a lease that a machine that halts for a second does not end it. A succession overlooks leases.
    let lease = Duration::from_secs(12);
    let timing = Timing { election_min: lease / 2, election_max: lease, ..Timing::default() };
    let cluster = Cluster::bootstrapped(Setup { timing, ..Setup::default() }).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first")).await.expect("answered");
    let follower = (leader + 1) % cluster.setup.nodes;
    cluster.refuse(follower, leader);
    // The follower tries again every half second at the latest, and would stand each time.
    let began = leads.clock.now_ms();
    eventually("two seconds under the same leader", || async {
        assert_eq!(cluster.group(follower).status().leader, Some(replica_id(leader)), "it does not follow any more");
        (leads.clock.now_ms() >= began + 2_000).then_some(())
    })
    .await;
    propose_to(cluster.group(leader), leads.term, &command("second")).await.expect("answered in the same term");
    cluster.all_applied().await;
}

async fn propose_at(cluster: &Cluster, index: usize) -> Reply {
    let term = cluster.group(index).subscribe_leadership().borrow().expect("it leads").term;
    propose_to(cluster.group(index), term, &command("served by the majority")).await.expect("answered")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handing_over_under_load_moves_leadership_and_leaves_no_proposal_in_doubt() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.all_have_led().await;
    let stop = Arc::new(AtomicBool::new(false));
    let groups: Vec<Group> = cluster.running().map(|(_, node)| node.group.clone()).collect();
    let loads: Vec<_> = (0..16).map(|name| tokio::spawn(load(name, groups.clone(), stop.clone()))).collect();
    for round in 0..5 {
        let (leader, leads) = cluster.leader().await;
        let grown = cluster.node(leader).machine.len();
        eventually("the load is under way", || async {
            (cluster.node(leader).machine.len() > grown + 100).then_some(())
        })
        .await;
        let started = Instant::now();
        assert!(cluster.group(leader).transfer_leadership(Duration::from_secs(5)).await, "round {round}");
        let returned = started.elapsed();
        assert!(cluster.group(leader).read_permit(ReadMode::Lease, Instant::now()).await.is_err());
        let (next, next_leads) = cluster.leader().await;
        println!("round {round}: handed over in {returned:?}, led again after {:?}", started.elapsed());
        assert_ne!(next, leader);
        assert!(next_leads.term > leads.term);
    }
    stop.store(true, Ordering::Release);
    let mut tallies = Vec::new();
    for load in loads {
        tallies.push(load.await.expect("the load does not panic"));
    }
    cluster.all_applied().await;
    let journal = cluster.node(0).machine.commands();
    let answered: usize = tallies.iter().map(|tally| tally.answered.len()).sum();
    let refused: usize = tallies.iter().map(|tally| tally.refused).sum();
    let unknown: usize = tallies.iter().map(|tally| tally.unknown).sum();
    println!("{answered} answered, {refused} refused, {unknown} in doubt");
    tallies.iter().for_each(|tally| assert_kept(tally, &journal));
    assert_eq!(journal.len(), answered, "what was refused was executed, or an answer was lost");
    assert_eq!(unknown, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_elected_replica_leads_once_it_has_applied_all_of_earlier_terms() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.all_have_led().await;
    cluster.propose(&command("first")).await.expect("answered");
    cluster.all_applied().await;
    let (leader, leads) = cluster.leader().await;
    let next = (leader + 1) % 3;
    let (group, machine) = (cluster.group(next), &cluster.node(next).machine);
    // It has what is answered from here on in its log, and applies it late.
    machine.stall(&[0]);
    cluster.propose(&command("second")).await.expect("answered");
    let term = eventually("it is elected", || async {
        let others = cluster.running().filter(|(index, _)| *index != next);
        for (_, other) in others {
            let is_it = |replica| replica == replica_id(next);
            if other.group.subscribe_leadership().borrow().is_some() {
                other.group.transfer_leadership_among(is_it, Duration::from_secs(1)).await;
            }
        }
        group.elected_term().filter(|term| *term > leads.term)
    })
    .await;
    eventually("its voters acknowledge it", || async { group.has_lease(term).then_some(()) }).await;
    let mut leadership = group.subscribe_leadership();
    let is_early = timeout(Duration::from_secs(1), leadership.wait_for(Option::is_some)).await.is_ok();
    assert!(!is_early, "it serves, and lacks what was answered before");
    machine.stall(&[]);
    timeout(MAX_WAIT, leadership.wait_for(Option::is_some)).await.expect("it leads").expect("it runs");
    assert_eq!(machine.commands(), [command("first"), command("second")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_that_nobody_waits_for_any_more_still_finds_a_successor() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.all_have_led().await;
    let (leader, leads) = cluster.leader().await;
    let group = cluster.group(leader);
    let mut leadership = group.subscribe_leadership();
    tokio::select! {
        biased;
        _ = leadership.wait_for(Option::is_none) => {}
        _ = group.transfer_leadership(Duration::from_secs(5)) => {}
    }
    let (next, next_leads) = cluster.leader().await;
    assert!(next != leader && next_leads.term > leads.term);
    propose_to(cluster.group(next), next_leads.term, &command("served by another")).await.expect("answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_followers_keeps_its_leadership_when_asked_to_hand_over() {
    let mut cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    let (leader, leads) = cluster.leader().await;
    assert!(!cluster.group(leader).transfer_leadership(Duration::from_secs(1)).await);
    propose_to(cluster.group(leader), leads.term, &command("still served")).await.expect("answered");
    cluster.kill(leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handing_over_to_one_waits_until_that_one_may_lead() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.all_have_led().await;
    let (leader, _) = cluster.leader().await;
    let target = replica_id((leader + 1) % 3);
    let (may_lead, asked) = (AtomicBool::new(false), AtomicBool::new(false));
    let is_suitable = |replica: u64| {
        asked.store(true, Ordering::Release);
        replica == target && may_lead.load(Ordering::Acquire)
    };
    let becoming_suitable = eventually("somebody to lead is looked for in vain", || async {
        let was_asked = asked.load(Ordering::Acquire);
        was_asked.then(|| may_lead.store(true, Ordering::Release))
    });
    let group = cluster.group(leader);
    let (is_over, ()) =
        tokio::join!(group.transfer_leadership_among(is_suitable, Duration::from_secs(5)), becoming_suitable);
    assert!(is_over);
    eventually("that one leads", || async { (group.status().leader == Some(target)).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handing_over_to_nobody_that_may_lead_ends_in_time_and_changes_nothing() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    let began = Instant::now();
    assert!(!cluster.group(leader).transfer_leadership_among(|_| false, MAX_WAIT).await);
    assert!(began.elapsed() < MAX_WAIT);
    propose_to(cluster.group(leader), leads.term, &command("still served")).await.expect("answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_groups_share_the_connections_and_all_of_them_survive_a_kill() {
    let setup =
        Setup { groups: 16, rocks: true, snapshot_interval_entries: 200, retain_entries: 20, ..Setup::default() };
    let mut cluster = Cluster::bootstrapped(setup).await;
    for (group, _) in &cluster.node(0).more {
        cluster.node(0).manager.bootstrap(group).await.expect("the group forms");
    }
    for victim in 0..2 {
        let stop = Arc::new(AtomicBool::new(false));
        let handles = |shard: usize| -> Vec<Group> {
            let replicas = cluster.running().map(|(_, node)| &node.more[shard].0);
            replicas.cloned().collect()
        };
        let loads: Vec<_> =
            (0..15).map(|shard| tokio::spawn(load(100 * victim + shard, handles(shard), stop.clone()))).collect();
        let grown = |least: usize| {
            let nodes: Vec<_> = cluster.running().map(|(_, node)| node).collect();
            (0..15).all(|shard| nodes.iter().any(|node| node.more[shard].1.len() >= least))
        };
        let least = 30 * (2 * victim + 1);
        eventually("every group serves", || async { grown(least).then_some(()) }).await;
        let killed = Instant::now();
        cluster.kill(victim).await;
        let grown = |least: usize| {
            let nodes: Vec<_> = cluster.running().map(|(_, node)| node).collect();
            (0..15).all(|shard| {
                let leads =
                    |node: &&&crate::common::node::Node| node.more[shard].0.subscribe_leadership().borrow().is_some();
                nodes.iter().filter(leads).any(|node| node.more[shard].1.len() >= least)
            })
        };
        eventually("every group is led again", || async { grown(0).then_some(()) }).await;
        println!("all groups are led again {:?} after the kill", killed.elapsed());
        let counts: Vec<usize> = (0..15)
            .map(|shard| cluster.running().map(|(_, node)| node.more[shard].1.len()).max().unwrap_or(0))
            .collect();
        let most = counts.iter().max().copied().unwrap_or(0);
        eventually("every group serves again", || async { grown(most.min(least) + 30).then_some(()) }).await;
        stop.store(true, Ordering::Release);
        let mut tallies = Vec::new();
        for load in loads {
            tallies.push(load.await.expect("the load does not panic"));
        }
        cluster.start(victim).await;
        for (shard, tally) in tallies.iter().enumerate() {
            eventually("the replicas agree", || async {
                let journals: Vec<_> = cluster.running().map(|(_, node)| node.more[shard].1.commands()).collect();
                journals.iter().all(|journal| *journal == journals[0]).then_some(())
            })
            .await;
            assert_kept(tally, &cluster.node(2).more[shard].1.commands());
        }
        let answered: usize = tallies.iter().map(|tally| tally.answered.len()).sum();
        println!("{answered} answered by 15 groups");
    }
}
