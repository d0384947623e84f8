//! Receipts: what a client of a session shows at another gateway, when the leader and the gateway that knew are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_api::session_message::{
    ClientPayload, GrantedLock, Lock, LockInfo, Part, Pending, QueueTicket, Release, ServerMessage,
};
use holdfast_api::*;
use holdfast_types::{MAX_SESSION_TABLE_BYTES, Metadata, Mode, Path, Receipt, ReportedHold, TableReport};
use parking_lot::Mutex;

use super::call_limits_tests::limited_tenant;
use super::core_node::{NEXT_EPOCH, TestGateway};
use super::mutation_tests::enable_from_env;
use super::session_tests::{SessionClient, lock_named};
use super::tests::demo_world;
use crate::session::CloseReason;
use crate::{AuthContext, Service};

/// A session that holds a lock of each of these names, and whose leader and gateway are lost.
struct Lost {
    world: TestGateway,
    tenant: AuthContext,
    session_id: String,
    granted: Vec<GrantedLock>,
    reports: Arc<Mutex<Vec<TableReport>>>,
    other: Service,
    is_next: Arc<AtomicBool>,
}

fn held(name: &str, fencing_token: u64) -> ReportedHold {
    ReportedHold { path: Path::flat(name), mode: Mode::Write, fencing_token }
}

async fn grant(client: &mut SessionClient, name: &str) -> GrantedLock {
    client.lock(name).await;
    match client.receive().await {
        ServerMessage::Acquired { request_id, fencing_token, receipt: Some(receipt), .. } => {
            GrantedLock { request_id, holder: None, resources: vec![held(name, fencing_token)], receipt }
        }
        other => panic!("not granted with a receipt: {other:?}"),
    }
}

impl Lost {
    async fn holding(names: &[&str]) -> Self {
        let (world, tenant) = demo_world().await;
        Self::of(world, tenant, names).await
    }

    /// The same of this account.
    async fn of(world: TestGateway, tenant: AuthContext, names: &[&str]) -> Self {
        enable_from_env();
        let is_next = Arc::<AtomicBool>::default();
        let reports = world.serve_as_leaders(&is_next, false);
        let (mut client, session_id) = SessionClient::opened(&world, &tenant).await;
        let mut granted = Vec::new();
        for name in names {
            granted.push(grant(&mut client, name).await);
        }
        let other = world.another_gateway();
        is_next.store(true, Ordering::SeqCst);
        Self { world, tenant, session_id, granted, reports, other, is_next }
    }

    /// Resumes the session at the other gateway.
    async fn resume(&self) -> SessionClient {
        let mut client = SessionClient::connect_to(&self.other, &self.tenant);
        assert!(client.open(Some(self.session_id.clone())).await.1);
        client
    }

    fn holds(&self) -> Vec<ReportedHold> {
        self.granted.iter().flat_map(|granted| granted.resources.clone()).collect()
    }

    /// Resumes, and shows this in place of what was granted: it is refused without effect.
    async fn refuses(&self, granted: Vec<GrantedLock>, says: &str) {
        let mut client = self.resume().await;
        let info = LockInfo { held: self.holds(), granted, ..LockInfo::default() };
        client.send(ClientPayload::LockInfo(info)).await;
        let lost = client.receive().await;
        assert!(matches!(lost, ServerMessage::Revoked { .. }), "the client hears of it: {lost:?}");
        match client.ended().await {
            CloseReason::Failed(error) => {
                assert!(error.code == Code::Unavailable && error.detail.contains(says), "{error:?}");
            }
            other => panic!("it is not refused: {other:?}"),
        }
        assert!(self.reports.lock().is_empty() && self.is_next.load(Ordering::SeqCst), "nothing is reported");
    }

    /// Returns the only report, once there is one.
    async fn report(&self, client: &mut SessionClient) -> TableReport {
        client.send(ClientPayload::Release(Release { request_id: "none".to_owned(), unheard: false })).await;
        loop {
            if let ServerMessage::Ready { request_id: Some(name) } = client.receive().await
                && name == "none"
            {
                break;
            }
        }
        let reports = self.reports.lock();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports[0].clone()
    }
}

#[tokio::test]
async fn what_a_client_shows_is_reported_with_the_same_tokens() {
    let lost = Lost::holding(&["a", "b"]).await;
    let mut client = lost.resume().await;
    let info = LockInfo { held: lost.holds(), granted: lost.granted.clone(), ..LockInfo::default() };
    client.send(ClientPayload::LockInfo(info)).await;
    let report = lost.report(&mut client).await;
    assert_eq!((report.table_epoch, report.part, report.parts), (NEXT_EPOCH, 1, 1));
    let mut reported: Vec<_> = report.granted.iter().map(|it| (it.request_id.clone(), it.claims.clone())).collect();
    reported.sort_by(|one, other| one.0.cmp(&other.0));
    let shown: Vec<_> = lost.granted.iter().map(|it| (it.request_id.clone(), it.resources.clone())).collect();
    assert_eq!(reported, shown);
    assert!(report.pending.is_empty());
    client.send(ClientPayload::Release(Release { request_id: "a".to_owned(), unheard: false })).await;
    let told = client.receive().await;
    assert!(matches!(&told, ServerMessage::Ready { request_id: Some(name) } if name == "a"), "{told:?}");
}

#[tokio::test]
async fn a_list_in_parts_is_one_report() {
    let lost = Lost::holding(&["a", "b"]).await;
    let mut client = lost.resume().await;
    for number in 1..=2 {
        let (held, granted) = if number == 1 { (Vec::new(), lost.granted.clone()) } else { (lost.holds(), Vec::new()) };
        let part = Part { number, count: 2 };
        client.send(ClientPayload::LockInfo(LockInfo { held, granted, part, ..LockInfo::default() })).await;
    }
    assert_eq!(lost.report(&mut client).await.granted.len(), 2);
}

#[tokio::test]
async fn only_what_is_still_listed_as_held_is_reported() {
    let lost = Lost::holding(&["a", "b"]).await;
    let mut client = lost.resume().await;
    let info = LockInfo { held: lost.holds()[1..].to_vec(), granted: lost.granted.clone(), ..LockInfo::default() };
    client.send(ClientPayload::LockInfo(info)).await;
    let report = lost.report(&mut client).await;
    let reported: Vec<_> = report.granted.iter().map(|request| request.request_id.as_str()).collect();
    assert_eq!(reported, ["b"], "it lost the other one, or gave it up");
}

#[tokio::test]
async fn receipts_that_prove_nothing_are_refused_without_effect() {
    let lost = Lost::holding(&["a"]).await;
    let [good] = lost.granted.as_slice() else { panic!("one") };
    lost.refuses(Vec::new(), "no receipt").await;
    let mut bytes = *good.receipt.bytes();
    bytes[19] ^= 1;
    let tampered = GrantedLock { receipt: Receipt::try_from(bytes.as_slice()).unwrap(), ..good.clone() };
    lost.refuses(vec![tampered], "proves nothing").await;
    let renamed = GrantedLock { request_id: "other".to_owned(), ..good.clone() };
    lost.refuses(vec![renamed], "the receipt of other").await;
    let of_thread = GrantedLock { holder: Some("t".to_owned()), ..good.clone() };
    lost.refuses(vec![of_thread], "proves nothing").await;
    let early = GrantedLock { receipt: Receipt::new(u32::MAX, [0; 16]), ..good.clone() };
    lost.refuses(vec![early], "has not begun").await;
}

#[tokio::test]
async fn a_receipt_is_no_proof_of_another_token_or_path() {
    let lost = Lost::holding(&["a", "b"]).await;
    let swapped = |at: usize, of: usize| GrantedLock {
        resources: lost.granted[of].resources.clone(),
        ..lost.granted[at].clone()
    };
    lost.refuses(vec![swapped(0, 1), lost.granted[1].clone()], "the receipt of a").await;
    let mut newer = lost.granted[0].clone();
    newer.resources[0].fencing_token += 100;
    lost.refuses(vec![newer, lost.granted[1].clone()], "the receipt of a").await;
}

#[tokio::test]
async fn a_receipt_of_another_session_is_no_proof() {
    let lost = Lost::holding(&["a"]).await;
    lost.is_next.store(false, Ordering::SeqCst);
    let mut other = SessionClient::connect(&lost.world, &lost.tenant);
    other.open(None).await;
    let foreign = grant(&mut other, "b").await;
    lost.is_next.store(true, Ordering::SeqCst);
    let of_own = GrantedLock { receipt: foreign.receipt, ..lost.granted[0].clone() };
    lost.refuses(vec![of_own], "the receipt of a").await;
    let mut client = lost.resume().await;
    let held = [lost.holds(), foreign.resources.clone()].concat();
    let granted = vec![lost.granted[0].clone(), foreign];
    client.send(ClientPayload::LockInfo(LockInfo { held, granted, ..LockInfo::default() })).await;
    let told = client.receive().await;
    assert!(matches!(&told, ServerMessage::Revoked { path, .. } if path == &["b".to_owned()]), "{told:?}");
    assert!(matches!(client.ended().await, CloseReason::Failed(_)));
    assert!(lost.reports.lock().is_empty());
}

#[tokio::test]
async fn who_was_told_that_a_hold_is_lost_resumes_with_the_others() {
    let lost = Lost::holding(&["a", "b"]).await;
    lost.refuses(vec![lost.granted[1].clone()], "no receipt").await;
    let mut client = lost.resume().await;
    let (held, granted) = (lost.holds()[1..].to_vec(), vec![lost.granted[1].clone()]);
    client.send(ClientPayload::LockInfo(LockInfo { held, granted, ..LockInfo::default() })).await;
    let report = lost.report(&mut client).await;
    assert_eq!(report.granted[0].request_id, "b");
}

impl Lost {
    /// Waits for the lock that is held, and leaves. Returns the session and its place.
    async fn wait_for_a(&self) -> (String, QueueTicket) {
        self.is_next.store(false, Ordering::SeqCst);
        let mut waiter = SessionClient::connect(&self.world, &self.tenant);
        let (session_id, _) = waiter.open(None).await;
        waiter.lock("a").await;
        let place = match waiter.receive().await {
            ServerMessage::Enqueued { place: Some(place), .. } => place,
            other => panic!("it has no place: {other:?}"),
        };
        drop(waiter);
        (session_id, place)
    }

    /// Resumes the session at the other gateway, and shows its place there.
    async fn show_position(&self, session_id: String, place: QueueTicket) -> SessionClient {
        let mut resumed = SessionClient::connect_to(&self.other, &self.tenant);
        assert!(resumed.open(Some(session_id)).await.1);
        let (pending, places) = (vec![Pending::Lock(lock_named("a"))], vec![("a".to_owned(), place)]);
        resumed.send(ClientPayload::LockInfo(LockInfo { pending, places, ..LockInfo::default() })).await;
        resumed
    }
}

async fn assert_position_is_reported(lost: Lost) {
    let (session_id, place) = lost.wait_for_a().await;
    lost.is_next.store(true, Ordering::SeqCst);
    let mut resumed = lost.show_position(session_id, place).await;
    let report = lost.report(&mut resumed).await;
    assert_eq!(report.pending.iter().map(|wait| wait.ticket).collect::<Vec<_>>(), [Some(place.ticket)]);
}

#[tokio::test]
async fn a_place_with_its_receipt_is_reported() {
    assert_position_is_reported(Lost::holding(&["a"]).await).await;
}

#[tokio::test]
async fn a_place_with_its_receipt_is_reported_also_of_an_account_that_may_hold_no_calls() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_held_calls: Some(0), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    assert_position_is_reported(Lost::of(world, tenant, &["a"]).await).await;
}

#[tokio::test]
async fn a_listed_request_that_is_too_large_to_be_reported_is_not_granted_after_the_report() {
    let lost = Lost::holding(&[]).await;
    let mut client = lost.resume().await;
    let metadata = Metadata::from([("k".to_owned(), "m".repeat(MAX_SESSION_TABLE_BYTES as usize))]);
    let pending = vec![Pending::Lock(Lock { metadata, ..lock_named("a") })];
    client.send(ClientPayload::LockInfo(LockInfo { pending, ..LockInfo::default() })).await;
    client.expect_unknown("a").await;
    assert!(lost.report(&mut client).await.pending.is_empty());
}

#[tokio::test]
async fn a_place_that_was_shown_to_a_leader_is_reported_to_the_next_one() {
    let lost = Lost::holding(&["a"]).await;
    let (session_id, place) = lost.wait_for_a().await;
    // The leader that compares the list ends before it hears of the request.
    let reports = lost.world.serve_as_leaders(&lost.is_next, true);
    let mut resumed = lost.show_position(session_id, place).await;
    resumed.send(ClientPayload::Release(Release { request_id: "none".to_owned(), unheard: false })).await;
    while !matches!(resumed.receive().await, ServerMessage::Ready { .. }) {}
    let reports = reports.lock();
    let [report] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!(report.pending.iter().map(|wait| wait.ticket).collect::<Vec<_>>(), [Some(place.ticket)]);
}

#[tokio::test]
async fn a_leader_that_knows_the_session_needs_no_receipts() {
    let lost = Lost::holding(&["a"]).await;
    lost.is_next.store(false, Ordering::SeqCst);
    let mut client = lost.resume().await;
    let held = [lost.holds(), vec![held("b", 1)]].concat();
    client.send(ClientPayload::LockInfo(LockInfo { held, ..LockInfo::default() })).await;
    let told = client.receive().await;
    assert!(matches!(&told, ServerMessage::Revoked { path, .. } if path == &["b".to_owned()]), "{told:?}");
    client.lock("c").await;
    let told = client.receive().await;
    assert!(matches!(&told, ServerMessage::Acquired { request_id, .. } if request_id == "c"), "{told:?}");
    assert!(lost.reports.lock().is_empty());
}
