//! Reports of sessions' clients, as the replicas apply them.

use std::time::Duration;

use holdfast_core::{LockInfo, LocksCommand, Mode, OpenSession, Path, ReportedHold, RequestId, Response, Rules};

use crate::cluster::{TestCluster, eventually, namespace};

/// Longer than anything takes on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);
const ENTRIES: u64 = 1_100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_proposes_a_long_report_in_parts() {
    let _alone = crate::EXCLUSIVE.lock().await;
    let world = TestCluster::start().await;
    let leader = world.leader(&world.shard_id(0)).await;
    eventually("the shards use the highest rules", async || {
        world.acquire(0, "any", MAX_WAIT).await.ok()?;
        (*world.observers[leader].rules.lock() == Rules::HIGHEST.0).then_some(())
    })
    .await;
    let open = OpenSession {
        namespace: namespace(),
        session_id: "se_1".into(),
        resume: false,
        request_id: RequestId([1; 16]),
        process_id: "p".into(),
        ttl_ms: 60_000,
        metadata: Default::default(),
    };
    world.send(0, LocksCommand::OpenSession(open), MAX_WAIT).await.expect("it opens");
    let hold =
        |number: u64| ReportedHold { path: Path(vec![format!("l{number}")]), mode: Mode::Write, fencing_token: 1 };
    let held = (0..ENTRIES).map(hold).collect();
    let info = LockInfo { namespace: namespace(), session_id: "se_1".into(), message: None, held, pending: vec![] };
    let response = world.send(0, LocksCommand::LockInfo(info), MAX_WAIT).await.expect("it is compared");
    let Response::Reconciled { lost, .. } = response else { panic!("{response:?}") };
    let lost: Vec<String> = lost.into_iter().map(|hold| hold.path.0[0].clone()).collect();
    assert_eq!(lost, (0..ENTRIES).map(|number| format!("l{number}")).collect::<Vec<_>>(), "all are lost, in order");
    assert_eq!(*world.observers[leader].reports.lock(), [512, 512, 76]);
}
