//! Answers of conditions that are lost at any point, and the same calls again: one await, and one signal.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_core::{Claim, Mode, Owner, Path, Woken};
use tokio::time::sleep;

use super::Client;
use super::lost_answers::{FIRST, SECOND, TTL_MS};
use crate::condition_calls::{AwaitOp, ConditionAnswer, ConditionOp, SignalOp};
use crate::history::{AcquireOp, Answer, Op};
use crate::things::{ThingAnswer, ThingOp};
use crate::world::Tenant;

const SIGNALLER: &str = "signaller";
/// More than it takes until both await the condition, and neither does any more.
const MAX_SIGNALS: usize = 2_000;
/// Much longer than it takes while no message is lost.
const AWAIT_MS: u64 = 500;
const LOCK_WAIT_MS: u64 = 1_000;
/// Before the first signal, and between two of them. Longer than it takes until both await the condition, as a rule.
const SIGNAL_DELAY: Duration = Duration::from_millis(30);

impl Client {
    /// Two give a lock up and await a condition of it, and a third one signals it until both have the lock again. As
    /// many are woken as signals found somebody.
    pub(super) async fn signal_each(&self, tenant: &Tenant, path: &Path) {
        let ended = AtomicUsize::new(0);
        let (first, second, signalled) = tokio::join!(
            self.await_once(tenant, (path, FIRST), &ended),
            self.await_once(tenant, (path, SECOND), &ended),
            self.signal_until(tenant, path, || ended.load(Ordering::Relaxed) == 2),
        );
        let woken = [first, second].iter().filter(|woken| **woken == Some(Woken::Signalled)).count() as u64;
        // One whose caller left is not woken, and its time may be over before a call is made again.
        let is_whole = woken == 2;
        if woken > signalled || (is_whole && signalled != woken) {
            self.violated(format!("{woken} of {first:?} and {second:?} were woken by {signalled} signals"));
        }
        match self.until_answered(tenant, &Op::Get { path: path.clone() }).await {
            Answer::Lock(lock) if lock.holders.is_empty() => {}
            answer => self.violated(format!("{path:?} should be free: {answer:?}")),
        }
    }

    /// Returns why it was woken, if it has the lock again.
    async fn await_once(&self, tenant: &Tenant, (path, who): (&Path, &str), ended: &AtomicUsize) -> Option<Woken> {
        let owner = Owner::Process(who.to_owned());
        let token = loop {
            if let Some(token) = self.lock_for(tenant, path, &owner).await {
                break token;
            }
        };
        let awaits = ConditionOp::Await(AwaitOp {
            path: path.clone(),
            owner: owner.clone(),
            token,
            condition: String::new(),
            wait_ms: AWAIT_MS,
            relock_ms: LOCK_WAIT_MS,
            ttl_ms: Some(TTL_MS),
        });
        let answer = self.until_answered(tenant, &Op::Thing(ThingOp::Condition(awaits))).await;
        let outcome = match &answer {
            Answer::Thing(ThingAnswer::Condition(ConditionAnswer::Awaited { outcome, .. })) => outcome.ok(),
            _ => None,
        };
        if outcome.is_some_and(|(new, woken)| new <= token || woken.is_none()) {
            self.violated(format!("{who} gave up {token}: {answer:?}"));
        }
        let release = Op::Release { owner, path: path.clone(), token: None };
        self.until_answered(tenant, &release).await;
        ended.fetch_add(1, Ordering::Relaxed);
        outcome?.1
    }

    /// Signals until that is done, once under each hold. Returns how many were woken.
    async fn signal_until(&self, tenant: &Tenant, path: &Path, is_done: impl Fn() -> bool) -> u64 {
        let (owner, mut woken) = (Owner::Process(SIGNALLER.to_owned()), 0);
        sleep(SIGNAL_DELAY).await;
        for _ in 0..MAX_SIGNALS {
            if is_done() {
                return woken;
            }
            let Some(token) = self.lock_for(tenant, path, &owner).await else { continue };
            let signal = ConditionOp::Signal(SignalOp {
                path: path.clone(),
                owner: owner.clone(),
                condition: String::new(),
                all: false,
                token: Some(token),
                signal_id: Some("once".to_owned()),
            });
            let signal = Op::Thing(ThingOp::Condition(signal));
            match self.until_answered(tenant, &signal).await {
                Answer::Thing(ThingAnswer::Condition(ConditionAnswer::Signalled { counts: Some(counts), .. })) => {
                    woken += counts.0;
                }
                answer => self.violated(format!("{SIGNALLER} holds {path:?}: {answer:?}")),
            }
            let release = Op::Release { owner: owner.clone(), path: path.clone(), token: Some(token) };
            self.until_answered(tenant, &release).await;
            sleep(SIGNAL_DELAY).await;
        }
        self.violated(format!("{MAX_SIGNALS} signals did not end two awaits"));
        woken
    }

    async fn lock_for(&self, tenant: &Tenant, path: &Path, owner: &Owner) -> Option<u64> {
        let acquire = Op::Acquire(AcquireOp {
            owner: owner.clone(),
            claims: vec![Claim { path: path.clone(), mode: Mode::Write }],
            ttl_ms: Some(TTL_MS),
            transition_ms: 0,
            wait_ms: LOCK_WAIT_MS,
            token: None,
            allow_upgrade: false,
            at_least_ms: 0,
        });
        match self.until_answered(tenant, &acquire).await {
            Answer::Acquired { outcome, .. } => outcome.ok(),
            answer => {
                self.violated(format!("{acquire:?} was answered {answer:?}"));
                None
            }
        }
    }
}
