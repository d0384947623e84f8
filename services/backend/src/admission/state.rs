//! The permits in use and the calls that wait for one.

use std::sync::Arc;

use holdfast_fair_queue::{Decision, FairQueue, Full, KeyMap, QueueLimits};
use holdfast_types::limit::{self, Limit};
use metrics::gauge;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::concurrency_limit::{AccountLoad, ConcurrencyLimit, MAX_LIGHT_CALLS};
use super::{Admission, AdmissionRequest, Permit, Priority, Refusal, Sharer};

/// Minimum bytes that a call counts for, so that a limit in bytes is also one of their number.
const MIN_CALL_BYTES: usize = 1_024;
/// Bytes of the queued normal calls of an account: 4,096 small ones.
const MAX_NORMAL_BYTES: usize = 4 << 20;
/// Bytes of its queued calls that may wait long: 16,384 small ones.
const MAX_PATIENT_BYTES: usize = 16 << 20;
/// A lane has room for both, and for as many urgent calls.
const LIMITS: QueueLimits = QueueLimits { total: 256 << 20, lane: MAX_NORMAL_BYTES + MAX_PATIENT_BYTES };
/// Bytes of the urgent calls of an account, queued or in progress.
const MAX_URGENT_BYTES: usize = 16 << 20;

/// The permits of a process.
pub(super) struct State {
    queue: FairQueue<Sharer, WaitingPermit>,
    pub(super) sharers: KeyMap<Sharer, SharerState>,
    pub(super) in_flight: usize,
    pub(super) concurrency: ConcurrencyLimit,
}

/// The calls of one sharer.
#[derive(Default)]
pub(super) struct SharerState {
    pub(super) in_flight: usize,
    /// Calls that are queued or in progress, besides urgent and patient ones.
    pub(super) open: usize,
    /// The urgent ones.
    urgent: usize,
    urgent_bytes: usize,
    /// Bytes of the queued calls that are neither urgent nor patient.
    pub(super) queued_normal: usize,
    /// Calls in the queue whose callers have left.
    left: usize,
    load: AccountLoad,
}

/// A call in the queue.
struct WaitingPermit {
    request: AdmissionRequest,
    sink: oneshot::Sender<Permit>,
}

/// What becomes of a call.
pub(super) enum Admitted {
    /// It has a permit.
    AtOnce(Permit),
    /// It waits for one.
    Queued(oneshot::Receiver<Permit>),
}

impl Default for State {
    fn default() -> Self {
        Self::new(ConcurrencyLimit::default())
    }
}

impl AdmissionRequest {
    fn counted_bytes(&self) -> usize {
        self.bytes.max(MIN_CALL_BYTES)
    }
}

impl State {
    pub(super) fn new(concurrency: ConcurrencyLimit) -> Self {
        Self { queue: FairQueue::new(LIMITS), sharers: KeyMap::default(), in_flight: 0, concurrency }
    }

    /// Issues a permit, or queues the call.
    pub(super) fn admit(
        &mut self,
        admission: &Arc<Admission>,
        request: AdmissionRequest,
        now: Instant,
    ) -> Result<Admitted, Refusal> {
        if self.tick(now) {
            self.dispatch(admission, now);
        }
        let sharer = request.share.sharer;
        let (share, limit) = (self.concurrency.share(), self.concurrency.limit());
        let may_go = self.in_flight < limit && self.queue.lane_len(sharer) == 0;
        let of_sharer = self.sharers.entry(sharer).or_default();
        of_sharer.open(&request)?;
        if may_go && of_sharer.has_capacity(share) {
            self.take_permit(sharer);
            self.record_load(sharer);
            return Ok(Admitted::AtOnce(self.issue(admission, request, now)));
        }
        let queued = self.enqueue(request);
        if queued.is_err() {
            self.close(&request);
        }
        self.record_load(sharer);
        queued.map(Admitted::Queued)
    }

    /// Returns the limits of calls, each with how much a sharer uses.
    pub(super) fn used(&self, sharer: Sharer) -> [(&'static Limit, u64); 4] {
        let of_sharer = self.sharers.get(&sharer);
        let figure = |of: fn(&SharerState) -> usize| of_sharer.map_or(0, of);
        let normal = figure(|of_sharer| of_sharer.queued_normal);
        let patient = self.queue.lane_size(sharer).saturating_sub(normal);
        [
            (&limit::OPEN_CALLS, figure(|of_sharer| of_sharer.open)),
            (&limit::URGENT_CALLS, figure(|of_sharer| of_sharer.urgent)),
            (&limit::QUEUED_CALLS, normal.div_ceil(MIN_CALL_BYTES)),
            (&limit::QUEUED_WAITS, patient.div_ceil(MIN_CALL_BYTES)),
        ]
        .map(|(limit, used)| (limit, used as u64))
    }

    /// Joins the sharer's queue, unless that is full.
    fn enqueue(&mut self, request: AdmissionRequest) -> Result<oneshot::Receiver<Permit>, Refusal> {
        let (sharer, bytes) = (request.share.sharer, request.counted_bytes());
        if !self.fits(&request) {
            self.drop_left(sharer);
        }
        if !self.fits(&request) {
            return Err(queue_is_full(request.priority));
        }
        let (sink, receiver) = oneshot::channel();
        let waiting = WaitingPermit { request, sink };
        let pushed = match request.priority {
            Priority::High => self.queue.push_urgent(sharer, bytes, waiting),
            Priority::Normal | Priority::Patient => self.queue.push(sharer, bytes, waiting),
        };
        match pushed {
            // The callers of what made room find that no permit will come.
            Ok(evicted) => {
                for waiting in evicted {
                    self.on_dequeued(&waiting.request);
                }
                if request.priority == Priority::Normal {
                    self.sharers.entry(sharer).or_default().queued_normal += bytes;
                }
                Ok(receiver)
            }
            Err(Full::Lane | Full::Queue) => Err(queue_is_full(request.priority)),
        }
    }

    fn fits(&self, request: &AdmissionRequest) -> bool {
        let sharer = request.share.sharer;
        let normal = self.sharers.get(&sharer).map_or(0, |of_sharer| of_sharer.queued_normal);
        let (queued, max) = match request.priority {
            Priority::Normal => (normal, MAX_NORMAL_BYTES),
            Priority::Patient => (self.queue.lane_size(sharer).saturating_sub(normal), MAX_PATIENT_BYTES),
            // Their number is limited together with those in progress.
            Priority::High => return true,
        };
        queued + request.counted_bytes() <= max
    }

    /// Notes that a call has left the queue.
    fn on_dequeued(&mut self, request: &AdmissionRequest) {
        if let Some(of_sharer) = self.sharers.get_mut(&request.share.sharer) {
            of_sharer.on_dequeued(request);
        }
    }

    /// Drops the queued calls whose callers have left, if these are so many that it is worth it.
    fn drop_left(&mut self, sharer: Sharer) {
        let queued = self.queue.lane_len(sharer);
        if let Some(of_sharer) = self.sharers.get_mut(&sharer)
            && of_sharer.left * 8 >= queued
        {
            of_sharer.left = 0;
            self.queue.retain(sharer, |waiting| {
                let stays = !waiting.sink.is_closed();
                if !stays {
                    of_sharer.on_dequeued(&waiting.request);
                }
                stays
            });
        }
    }

    /// Notes that a caller has left without a permit; `is_queued` if its call is still in the queue.
    pub(super) fn leave(&mut self, request: &AdmissionRequest, is_queued: bool) {
        self.close(request);
        if let Some(of_sharer) = self.sharers.get_mut(&request.share.sharer) {
            of_sharer.left += usize::from(is_queued);
        }
    }

    /// Ends an open call.
    pub(super) fn close(&mut self, request: &AdmissionRequest) {
        if let Some(of_sharer) = self.sharers.get_mut(&request.share.sharer) {
            of_sharer.close(request);
        }
    }

    /// Gives permits to queued calls, in fair shares.
    pub(super) fn dispatch(&mut self, admission: &Arc<Admission>, now: Instant) {
        let Self { queue, sharers, in_flight, concurrency } = self;
        let (share, limit) = (concurrency.share(), concurrency.limit());
        let served = queue.serve(|sharer, next| {
            let of_sharer = sharers.entry(sharer).or_default();
            if next.sink.is_closed() {
                of_sharer.left = of_sharer.left.saturating_sub(1);
                of_sharer.on_dequeued(&next.request);
                return Decision::Drop;
            }
            if *in_flight >= limit {
                return Decision::Stop;
            }
            if !of_sharer.has_capacity(share) {
                return Decision::Park;
            }
            *in_flight += 1;
            of_sharer.in_flight += 1;
            of_sharer.on_dequeued(&next.request);
            Decision::Serve(next.request.counted_bytes() as u64)
        });
        for WaitingPermit { request, sink } in served {
            let permit = self.issue(admission, request, now);
            if let Err(mut unwanted) = sink.send(permit) {
                // Its caller has left, and closed its call. It must not release itself: that needs this very state.
                (unwanted.is_in_flight, unwanted.is_open) = (false, false);
                self.release(request.share.sharer);
            }
        }
    }

    /// Returns the permit of a call that counts as one in flight.
    fn issue(&self, admission: &Arc<Admission>, request: AdmissionRequest, now: Instant) -> Permit {
        Permit {
            admission: Arc::clone(admission),
            request,
            started_at: now,
            is_done: false,
            is_unloaded: self.in_flight <= MAX_LIGHT_CALLS && self.queue.is_empty(),
            is_in_flight: true,
            is_open: true,
        }
    }

    fn take_permit(&mut self, sharer: Sharer) {
        self.in_flight += 1;
        self.sharers.entry(sharer).or_default().in_flight += 1;
    }

    /// Takes a permit back, so that the sharer may have another one.
    pub(super) fn release(&mut self, sharer: Sharer) {
        self.in_flight -= 1;
        if let Some(of_sharer) = self.sharers.get_mut(&sharer) {
            of_sharer.in_flight -= 1;
        }
        self.queue.resume(sharer);
    }

    /// Updates the limits if that is due. Returns whether it was.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        if !self.concurrency.is_due(now) {
            return false;
        }
        let queue = &self.queue;
        self.sharers.retain(|sharer, of_sharer| of_sharer.is_in_use() || queue.lane_len(*sharer) > 0);
        // A look-up now and then is no reason to hold a busy account back.
        let accounts = self.sharers.iter_mut().filter(|(sharer, _)| matches!(sharer, Sharer::Account(_)));
        self.concurrency.tick(now, accounts.map(|(_, of_account)| &mut of_account.load));
        for (sharer, of_sharer) in &mut self.sharers {
            of_sharer.record_load(of_sharer.in_flight + queue.lane_len(*sharer));
        }
        // Each may have more now.
        self.queue.resume_all();
        self.update_gauges();
        true
    }

    fn record_load(&mut self, sharer: Sharer) {
        let queued = self.queue.lane_len(sharer);
        if let Some(of_sharer) = self.sharers.get_mut(&sharer) {
            of_sharer.record_load(of_sharer.in_flight + queued);
        }
    }

    /// Calls may be rare, and the gauges must be right all the same.
    pub(super) fn update_gauges_if_idle(&self) {
        if self.in_flight == 0 {
            self.update_gauges();
        }
    }

    fn update_gauges(&self) {
        if !self.concurrency.is_fixed() {
            gauge!("holdfast_calls_in_flight").set(self.in_flight as f64);
            gauge!("holdfast_calls_queued").set(self.queue.len() as f64);
        }
    }

    /// Returns the number of queued calls, also of callers that have left.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }
}

/// Returns why a call does not fit into the queue.
pub(super) fn queue_is_full(priority: Priority) -> Refusal {
    let limit = match priority {
        Priority::Normal => &limit::QUEUED_CALLS,
        Priority::Patient => &limit::QUEUED_WAITS,
        Priority::High => &limit::URGENT_CALLS,
    };
    Refusal { limit, max: limit.default_value() }
}

impl SharerState {
    /// Counts a call, if the sharer may have another one.
    fn open(&mut self, request: &AdmissionRequest) -> Result<(), Refusal> {
        match request.priority {
            Priority::Normal => {
                let max = request.share.max_open_calls;
                if self.open as u64 >= max {
                    return Err(Refusal { limit: &limit::OPEN_CALLS, max });
                }
                self.open += 1;
            }
            Priority::High => {
                let bytes = self.urgent_bytes + request.counted_bytes();
                if self.urgent as u64 >= limit::MAX_URGENT_CALLS || bytes > MAX_URGENT_BYTES {
                    return Err(Refusal { limit: &limit::URGENT_CALLS, max: limit::MAX_URGENT_CALLS });
                }
                self.urgent += 1;
                self.urgent_bytes = bytes;
            }
            Priority::Patient => {}
        }
        Ok(())
    }

    fn close(&mut self, request: &AdmissionRequest) {
        match request.priority {
            Priority::Normal => self.open -= 1,
            Priority::High => {
                self.urgent -= 1;
                self.urgent_bytes -= request.counted_bytes();
            }
            Priority::Patient => {}
        }
    }

    /// Notes that one of its calls has left the queue.
    fn on_dequeued(&mut self, request: &AdmissionRequest) {
        if request.priority == Priority::Normal {
            self.queued_normal -= request.counted_bytes();
        }
    }

    /// Notes how many calls it has at once.
    pub(super) fn record_load(&mut self, calls: usize) {
        self.load.record(calls);
    }

    /// Returns whether another call may be in flight. A light account does not wait for the sake of others like it.
    fn has_capacity(&self, share: usize) -> bool {
        self.in_flight < share || (self.in_flight < MAX_LIGHT_CALLS && self.load.is_light())
    }

    /// Returns true if it has calls or recent load, besides queued calls.
    fn is_in_use(&self) -> bool {
        self.in_flight > 0 || self.open > 0 || self.urgent > 0 || self.load.is_recent()
    }
}
