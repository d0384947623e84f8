//! An answer that is lost at any point, and the same call again: one hold, one permit, one member, one count, one
//! arrival, one await, one signal. The same calls are made again and again. Each time the next message between the
//! gateway and the nodes is lost, until none is left.

use std::time::Duration;

use holdfast_core::{Claim, Kind, Mode, Owner, Path};
use tokio::time::sleep;

use super::lost_on_streams::{StreamGroup, stream_groups};
use super::stream_gateway::StreamGateway;
use super::{Client, STABLE_NAMESPACES, wait_of};
use crate::ask_calls::AskOp;
use crate::history::{AcquireOp, Answer, Op};
use crate::lost_messages::Loss;
use crate::things::{PermitsOp, PoolOp, ThingAnswer, ThingOp, WantedOp};
use crate::world::Tenant;

pub(super) const NAMESPACE: &str = STABLE_NAMESPACES[0];
/// More than the calls have.
const MAX_MESSAGES: usize = 1_000;
const MAX_REPEATS: usize = 20;
/// How long a call may take beside its wait. One whose connection ended waits for another leader, in vain.
const CALL_TIMEOUT: Duration = Duration::from_millis(300);
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// Longer than all calls take.
pub(super) const TTL_MS: u64 = 600_000;
/// Units of a semaphore, members of a pool, and jobs of a latch.
pub(super) const UNITS: u64 = 2;
const MEMBERS: [&str; UNITS as usize] = ["m0", "m1"];
pub(super) const FIRST: &str = "first";
pub(super) const SECOND: &str = "second";

/// What owners hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldBefore {
    Lock,
    Permits,
    Members,
}

/// Calls that are made together; each group has its own messages to lose.
#[derive(Debug, Clone, Copy)]
enum CallGroup {
    /// Of what can be held, and of a latch.
    Holds,
    Barrier,
    Condition,
    /// On connections of sessions.
    Streams(StreamGroup),
}

const GROUPS: [CallGroup; 3] = [CallGroup::Holds, CallGroup::Barrier, CallGroup::Condition];

/// Units in use, holders and waiting requests.
type Use = (u64, u64, u64);

impl Client {
    /// Makes the calls of each group once for each message that they have, and each way to lose it.
    pub(crate) async fn lose_answers(self) {
        let tenant = self.world.tenants()[0].clone();
        for (loss, group) in [Loss::Cut, Loss::Leave].into_iter().flat_map(|loss| GROUPS.map(|group| (loss, group))) {
            self.lose_each(&tenant, (loss, group), None).await;
        }
        let streams = match StreamGateway::start(&self.world, format!("{}.streams", self.name)) {
            Ok(streams) => streams,
            Err(error) => return self.violated(format!("a gateway can't start: {error}")),
        };
        for (loss, group) in stream_groups(self.world.plan.seed) {
            self.lose_each(&tenant, (loss, CallGroup::Streams(group)), Some(&streams)).await;
        }
    }

    /// Makes the calls of a group once for each message that they have.
    async fn lose_each(&self, tenant: &Tenant, (loss, group): (Loss, CallGroup), streams: Option<&StreamGateway>) {
        for message in 0..MAX_MESSAGES {
            self.world.lost.lose_after(message, loss);
            let path = Path::flat(format!("{loss:?}-{group:?}-{message}"));
            match (group, streams) {
                (CallGroup::Holds, _) => self.make_calls_for_holds(tenant, &path).await,
                (CallGroup::Barrier, _) => self.meet(tenant, &path).await,
                (CallGroup::Condition, _) => self.signal_each(tenant, &path).await,
                (CallGroup::Streams(group), Some(streams)) => self.use_streams(streams, tenant, &path, group).await,
                (CallGroup::Streams(_), None) => {}
            }
            let is_done = !self.world.lost.stop();
            self.world.record(format!("{group:?} with {loss:?} of message {message}"));
            if is_done {
                return;
            }
        }
        self.violated(format!("the calls have more than {MAX_MESSAGES} messages"));
    }

    async fn make_calls_for_holds(&self, tenant: &Tenant, path: &Path) {
        for held in [HeldBefore::Lock, HeldBefore::Permits, HeldBefore::Members] {
            self.hand_over(tenant, path, held).await;
        }
        let (path, expires_in_ms) = (path.clone(), TTL_MS);
        let create = ThingOp::CreateLatch { path: path.clone(), total: UNITS, expires_in_ms };
        self.until_answered(tenant, &Op::Thing(create)).await;
        let count = ThingOp::CountDown { path: path.clone(), id: None, jobs: vec!["job".to_owned()] };
        self.until_answered(tenant, &Op::Thing(count)).await;
        let wait = Op::Thing(ThingOp::WaitForLatch { path, id: None, wait_ms: 0 });
        let answer = self.until_answered(tenant, &wait).await;
        if !matches!(&answer, Answer::Thing(ThingAnswer::Latch(latch)) if latch.done == 1) {
            self.violated(format!("one job was reported, and {answer:?}"));
        }
    }

    /// One takes all there is, is asked for it, and another waits for it, and gets it when the first gives it back.
    async fn hand_over(&self, tenant: &Tenant, path: &Path, held: HeldBefore) {
        if let Some(configure) = held.configure(path) {
            self.until_answered(tenant, &configure).await;
        }
        self.expect_grant(tenant, held.acquire(path, (FIRST, UNITS), 0)).await;
        self.expect_use(tenant, path, held, (held.units(UNITS), 1, 0)).await;
        self.expect_asked(tenant, held.ask_back(path)).await;
        self.expect_use(tenant, path, held, (held.units(UNITS), 1, 0)).await;
        let release = held.release(path, FIRST);
        tokio::join!(
            self.expect_grant(tenant, held.acquire(path, (SECOND, 1), super::draw::MAX_WAIT_MS)),
            self.until_answered(tenant, &release),
        );
        self.expect_use(tenant, path, held, (1, 1, 0)).await;
        self.until_answered(tenant, &held.release(path, SECOND)).await;
        self.expect_use(tenant, path, held, (0, 0, 0)).await;
    }

    async fn expect_grant(&self, tenant: &Tenant, op: Op) {
        let answer = self.until_answered(tenant, &op).await;
        let of_thing = |answer: &ThingAnswer| matches!(answer, ThingAnswer::Acquired { outcome: Ok(_), .. });
        let is_granted = match &answer {
            Answer::Acquired { outcome, .. } => outcome.is_ok(),
            Answer::Thing(answer) => of_thing(answer),
            _ => false,
        };
        if !is_granted {
            self.violated(format!("{op:?} was answered {answer:?}"));
        }
    }

    async fn expect_asked(&self, tenant: &Tenant, op: Op) {
        let answer = self.until_answered(tenant, &op).await;
        if !matches!(&answer, Answer::Thing(ThingAnswer::Asked(answer)) if answer.asked == 1) {
            self.violated(format!("there is one to be asked by {op:?}: {answer:?}"));
        }
    }

    pub(super) async fn expect_use(&self, tenant: &Tenant, path: &Path, held: HeldBefore, expected: Use) {
        let answer = self.until_answered(tenant, &held.get(path)).await;
        let found = match &answer {
            Answer::Lock(lock) => (lock.holders.len() as u64, lock.holders.len() as u64, 0),
            Answer::Thing(ThingAnswer::Semaphore(it)) => (it.in_use, it.holders, it.waiting),
            Answer::Thing(ThingAnswer::Pool(it)) => (it.in_use, it.holders, it.waiting),
            _ => return self.violated(format!("{held:?} of {path:?} were asked for: {answer:?}")),
        };
        if found != expected {
            self.violated(format!("in use, holders and waiting should be {expected:?}: {answer:?}"));
        }
    }

    /// Makes a call, and the same again while its answer is lost.
    pub(super) async fn until_answered(&self, tenant: &Tenant, op: &Op) -> Answer {
        let limit = wait_of(op) + CALL_TIMEOUT;
        for _ in 0..MAX_REPEATS {
            let answer = self.execute_until(tenant, NAMESPACE, op, limit, self.world.lost.goes_away()).await;
            if !matches!(answer, Answer::Unknown | Answer::Unavailable) {
                return answer;
            }
            sleep(RETRY_DELAY).await;
        }
        self.violated(format!("{op:?} had no answer, {MAX_REPEATS} times"));
        Answer::Unknown
    }

    pub(super) fn violated(&self, what: String) {
        self.world.record_violation(format!("[lost answers] {what}"));
    }
}

impl HeldBefore {
    /// The units in use by a hold of so many; of a lock there is one.
    pub(super) fn units(self, units: u64) -> u64 {
        if self == Self::Lock { 1 } else { units }
    }

    pub(super) fn configure(self, path: &Path) -> Option<Op> {
        let (path, members) = (path.clone(), MEMBERS.map(str::to_owned).to_vec());
        Some(Op::Thing(match self {
            Self::Lock => return None,
            Self::Permits => ThingOp::Configure { path, permits: UNITS },
            Self::Members => ThingOp::Pool(PoolOp::Configure { path, members, cooldown_ms: 0 }),
        }))
    }

    fn acquire(self, path: &Path, (who, units): (&str, u64), wait_ms: u64) -> Op {
        let (path, owner, request_id) = (path.clone(), Owner::Process(who.to_owned()), who.to_owned());
        let (ttl_ms, transition_ms, priority) = (Some(TTL_MS), 0, 0);
        let wanted = match self {
            Self::Lock => {
                let claims = vec![Claim { path, mode: Mode::Write }];
                let (token, allow_upgrade, at_least_ms) = (None, false, 0);
                let acquire =
                    AcquireOp { owner, claims, ttl_ms, transition_ms, wait_ms, token, allow_upgrade, at_least_ms };
                return Op::Acquire(acquire);
            }
            Self::Permits => WantedOp::Permits { weight: units, permits: UNITS },
            Self::Members => WantedOp::Members { count: units, prefer: None },
        };
        let acquire = PermitsOp { path, owner, request_id, wanted, priority, ttl_ms, transition_ms, wait_ms };
        Op::Thing(ThingOp::Acquire(acquire))
    }

    fn release(self, path: &Path, who: &str) -> Op {
        let (path, owner, request_id) = (path.clone(), Owner::Process(who.to_owned()), who.to_owned());
        match self {
            Self::Lock => Op::Release { owner, path, token: None },
            Self::Permits => Op::Thing(ThingOp::Release { path, owner, request_id }),
            Self::Members => Op::Thing(ThingOp::Pool(PoolOp::Return { path, owner, request_id, members: Vec::new() })),
        }
    }

    /// Asks politely for what is held.
    fn ask_back(self, path: &Path) -> Op {
        let (path, member, within_ms, force) = (path.clone(), None, Some(0), false);
        let kind = match self {
            Self::Lock => Kind::Lock,
            Self::Permits => Kind::Semaphore,
            Self::Members => Kind::Pool,
        };
        Op::Thing(ThingOp::Ask(AskOp { kind, path, member, within_ms, force }))
    }

    fn get(self, path: &Path) -> Op {
        let path = path.clone();
        match self {
            Self::Lock => Op::Get { path },
            Self::Permits => Op::Thing(ThingOp::GetSemaphore { path }),
            Self::Members => Op::Thing(ThingOp::Pool(PoolOp::Get { path })),
        }
    }
}
