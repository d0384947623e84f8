//! Locks, permits, members, latches and barriers on the connections of sessions: one hold, one count, one arrival, and
//! nothing is left of a session that ended.

use holdfast_api::session_message::{Arrive, ClientPayload, CountDown, Release};
use holdfast_core::{BarrierAnswer, BarrierOutcome, Path, Wanted};

use super::Client;
use super::lost_answers::{FIRST, HeldBefore, SECOND, TTL_MS, UNITS};
use super::lost_arrivals::PARTIES;
use super::stream::Stream;
use super::stream_gateway::StreamGateway;
use super::stream_messages::Told;
use crate::barrier_calls::BarrierOp;
use crate::history::{Answer, Op};
use crate::things::{ThingAnswer, ThingOp};
use crate::world::Tenant;

impl Client {
    /// One takes all there is, another waits for it and gets it when the first gives it back. Its session ends with it.
    pub(super) async fn hand_over_on_streams(
        &self,
        gateway: &StreamGateway,
        tenant: &Tenant,
        path: &Path,
        held: HeldBefore,
    ) {
        if let Some(configure) = held.configure(path) {
            self.until_answered(tenant, &configure).await;
        }
        let [mut first, mut second] = [FIRST, SECOND].map(|process| Stream::new(self, gateway, tenant, process));
        let request_id = first.next_request();
        let Some(token) = take(&mut first, &request_id, path, (held, UNITS)).await else { return };
        self.expect_use(tenant, path, held, (held.units(UNITS), 1, 0)).await;
        let waiting = second.next_request();
        let (next, ()) = tokio::join!(take(&mut second, &waiting, path, (held, 1)), first.release(&request_id, false));
        if next.is_none_or(|next| next <= token) {
            second.violated(&format!("after {token} it has {next:?}"));
        }
        self.expect_use(tenant, path, held, (1, 1, 0)).await;
        second.close().await;
        self.expect_use(tenant, path, held, (0, 0, 0)).await;
        first.close().await;
    }

    /// Two report jobs to a latch, of which one is the same.
    pub(super) async fn count_down_on_streams(&self, gateway: &StreamGateway, tenant: &Tenant, path: &Path) {
        let create = ThingOp::CreateLatch { path: path.clone(), total: UNITS, expires_in_ms: TTL_MS };
        self.until_answered(tenant, &Op::Thing(create)).await;
        let [mut first, mut second] = [FIRST, SECOND].map(|process| Stream::new(self, gateway, tenant, process));
        for (stream, jobs, all_done) in [(&mut first, &["a"][..], 1), (&mut second, &["a", "b"][..], 2)] {
            let (request_id, ids) = (stream.next_request(), jobs.iter().map(|job| (*job).to_owned()).collect());
            let count = CountDown { request_id, path: path.0.clone(), id: None, ids: Some(ids), ranges: None };
            match stream.call(ClientPayload::CountDown(count)).await {
                Told::Counted { counted: 0 | 1, done } if done == all_done => {}
                told => stream.violated(&format!("{jobs:?} are done, and it is told {told:?}")),
            }
            let wait = Op::Thing(ThingOp::WaitForLatch { path: path.clone(), id: None, wait_ms: 0 });
            let answer = self.until_answered(tenant, &wait).await;
            if !matches!(&answer, Answer::Thing(ThingAnswer::Latch(latch)) if latch.done == all_done) {
                self.violated(format!("{jobs:?} are done, and {answer:?}"));
            }
        }
        first.close().await;
        second.close().await;
    }

    /// Two meet. Then one arrives and leaves, one arrives and closes its session, and the barrier is deleted.
    pub(super) async fn meet_on_streams(&self, gateway: &StreamGateway, tenant: &Tenant, path: &Path) {
        let (parties, is_double, withdraws) = (PARTIES, false, false);
        let configure = BarrierOp::Configure { path: path.clone(), parties, is_double, withdraws };
        let Some(barrier) = self.barrier_after(tenant, configure).await else { return };
        let [mut first, mut second] = [FIRST, SECOND].map(|process| Stream::new(self, gateway, tenant, process));
        self.arrive_alone(&mut first, tenant, path, barrier.generation).await;
        let arrival = arrive_message(&second.next_request(), path, barrier.generation);
        let told = tokio::join!(first.finish(), second.call(arrival));
        for (told, stream, place) in [(told.0, &first, 0), (told.1, &second, 1)] {
            let has_tripped = |answer: &BarrierAnswer| {
                (answer.outcome, answer.generation, answer.index)
                    == (BarrierOutcome::Tripped, barrier.generation, Some(place))
            };
            if !matches!(&told, Told::Tripped(answer) if has_tripped(answer)) {
                stream.violated(&format!("both have come to {barrier:?}, and it is told {told:?}"));
            }
        }
        let get = || BarrierOp::Get { path: path.clone() };
        let Some(barrier) = self.barrier_after(tenant, get()).await else { return };
        let request_id = self.arrive_alone(&mut first, tenant, path, barrier.generation).await;
        let leave = ClientPayload::Leave(Release { request_id, unheard: false });
        let told = first.call(leave).await;
        let is_broken = |answer: &BarrierAnswer| {
            (answer.outcome, answer.generation) == (BarrierOutcome::Broken, barrier.generation)
        };
        if !matches!(&told, Told::Tripped(answer) if is_broken(answer)) {
            first.violated(&format!("it has left {barrier:?}, and is told {told:?}"));
        }
        self.expect_next_generation(tenant, path, barrier.generation).await;
        let Some(barrier) = self.barrier_after(tenant, get()).await else { return };
        self.arrive_alone(&mut first, tenant, path, barrier.generation).await;
        first.close().await;
        self.expect_next_generation(tenant, path, barrier.generation).await;
        second.close().await;
        let delete = Op::Thing(ThingOp::Barrier(BarrierOp::Delete { path: path.clone() }));
        self.until_answered(tenant, &delete).await;
    }

    /// Returns the request.
    async fn arrive_alone(&self, stream: &mut Stream<'_>, tenant: &Tenant, path: &Path, generation: u64) -> String {
        let request_id = stream.next_request();
        let told = stream.start(arrive_message(&request_id, path, generation)).await;
        if told != Told::Begun {
            stream.violated(&format!("nobody else has come to {path:?}, and it is told {told:?}"));
        }
        self.expect_arrived(tenant, path, (generation, 1)).await;
        request_id
    }
}

/// Takes so many units. Returns the token.
async fn take(stream: &mut Stream<'_>, request_id: &str, path: &Path, (held, units): (HeldBefore, u64)) -> Option<u64> {
    let (wanted, members) = match held {
        HeldBefore::Lock => return stream.lock(request_id, path).await,
        HeldBefore::Permits => (Wanted::Permits { weight: units, permits: None }, 0),
        HeldBefore::Members => (Wanted::Members { count: units, prefer: None }, units),
    };
    match stream.acquire(request_id, path, wanted).await {
        Told::Acquired { token, members: taken, .. } if taken.len() as u64 == members => Some(token),
        told => {
            stream.violated(&format!("it asks for {units} of {path:?}, and is told {told:?}"));
            None
        }
    }
}

fn arrive_message(request_id: &str, path: &Path, generation: u64) -> ClientPayload {
    let (request_id, path, generation) = (request_id.to_owned(), path.0.clone(), Some(generation));
    ClientPayload::Arrive(Arrive { request_id, path, generation, parties: None, double: None, holder: None })
}
