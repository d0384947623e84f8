//! A client that asks others to release what they hold, politely or by force, and that holds locks itself: it looks
//! whether somebody asks for its lock, and gives it back, goes on, or goes away for good.

use std::time::Duration;

use holdfast_core::{Claim, Kind, Mode, Owner, Path};
use rand::Rng;
use tokio::time::sleep;

use super::draw::{TRANSITIONS_MS, TTLS_MS, WAITS_MS};
use super::{Client, MAX_PAUSE_MS, STABLE_NAMESPACES};
use crate::ask_calls::AskOp;
use crate::history::{AcquireOp, Answer, Op};
use crate::things::ThingOp;
use crate::world::{Phase, Tenant, now};

/// The namespace of the first tenant in which connected sessions hold some of the locks.
pub(super) const ASKED_NAMESPACE: &str = STABLE_NAMESPACES[0];
/// The locks of these sessions. Nobody opens them by force but by a request.
pub(super) const ASKED_PATHS: [&[&str]; 3] = [&["k"], &["k", "x"], &["l"]];
/// The locks that are asked for: others use the last ones, too.
const PATHS: [&[&str]; 6] = [&["k"], &["k"], &["k", "x"], &["l"], &["b"], &["a", "x"]];
const SEMAPHORES: [&str; 2] = ["narrow", "wide"];
const POOLS: [&str; 2] = ["narrow", "racks"];
const MEMBERS: [Option<&str>; 3] = [None, None, Some("m0")];
/// Owners of nothing else, with how long what they had is kept from others, in milliseconds.
const PROCESSES: [(&str, u64); 5] = [("k0", 0), ("k1", 0), ("k2", 300), ("k3", 800), ("k4", 1_500)];
const WITHIN_MS: [Option<u64>; 6] = [None, Some(0), Some(100), Some(400), Some(1_000), Some(2_000)];
const FORCE_PERCENT: u32 = 40;
/// How many in a hundred times somebody asks; otherwise it holds a lock.
const ASK_PERCENT: u32 = 50;
/// How many in a hundred holders go on whoever asks, and how many go away.
const IGNORE_PERCENT: u32 = 40;
const DIE_PERCENT: u32 = 20;
const DOWNGRADE_PERCENT: u32 = 15;
/// How often a holder extends its hold before it releases it, and the longest time between.
const MAX_LOOKS: usize = 6;
const MAX_LOOK_PAUSE_MS: u64 = 250;
const MAX_REPEATS: usize = 3;
const LEAVE_PERCENT: u32 = 20;
const LEAVE_WITHIN_MS: u64 = 60;
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a holder does when somebody asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaction {
    GivesBack,
    Ignores,
    /// It is heard of no more.
    Dies,
}

impl Reaction {
    pub(super) fn draw(rng: &mut impl Rng) -> Self {
        match rng.random_range(0..100) {
            ..IGNORE_PERCENT => Self::Ignores,
            percent if percent < IGNORE_PERCENT + DIE_PERCENT => Self::Dies,
            _ => Self::GivesBack,
        }
    }
}

impl Client {
    /// Asks, and holds locks that others ask for, for as long as the run is in its working stage.
    pub(crate) async fn use_asks(mut self) {
        let tenants = self.world.tenants();
        while self.world.phase() == Phase::Chaos {
            sleep(Duration::from_millis(self.rng.random_range(0..MAX_PAUSE_MS))).await;
            self.update_session(&tenants).await;
            if self.rng.random_ratio(ASK_PERCENT, 100) {
                let (tenant, namespace) = self.draw_place(tenants.len());
                let op = self.draw_ask();
                self.ask_until_answered(tenant == 0, &tenants[tenant], namespace, op).await;
            } else {
                self.hold_a_lock(&tenants).await;
            }
        }
    }

    fn draw_ask(&mut self) -> AskOp {
        let force = self.rng.random_ratio(FORCE_PERCENT, 100);
        let within_ms = WITHIN_MS[self.rng.random_range(0..WITHIN_MS.len())];
        let (kind, path, member) = match self.rng.random_range(0..10) {
            0 if self.world.plan.has_things => {
                (Kind::Semaphore, Path::flat(SEMAPHORES[self.rng.random_range(0..SEMAPHORES.len())]), None)
            }
            1 if self.world.plan.has_pools => {
                let member = MEMBERS[self.rng.random_range(0..MEMBERS.len())].map(str::to_owned);
                (Kind::Pool, Path::flat(POOLS[self.rng.random_range(0..POOLS.len())]), member)
            }
            _ => (Kind::Lock, self.draw_asked_path(), None),
        };
        AskOp { kind, path, member, within_ms, force }
    }

    fn draw_asked_path(&mut self) -> Path {
        let segments = PATHS[self.rng.random_range(0..PATHS.len())];
        Path(segments.iter().map(|segment| (*segment).to_owned()).collect())
    }

    /// Asks, and asks again while the answer is lost. Connected sessions have to know of what may end by force.
    async fn ask_until_answered(&mut self, is_first: bool, tenant: &Tenant, namespace: &str, op: AskOp) {
        let opens = is_first && namespace == ASKED_NAMESPACE && op.kind == Kind::Lock && op.force;
        let at = || now().unwrap_or_default();
        for _ in 0..=MAX_REPEATS {
            let within = Duration::from_millis(op.within_ms.unwrap_or(0));
            let opening = opens.then(|| self.world.claims.may_end(&op.path, at(), within));
            let asked = Op::Thing(ThingOp::Ask(op.clone()));
            let answer = if self.rng.random_ratio(LEAVE_PERCENT, 100) {
                let leave = Duration::from_millis(self.rng.random_range(0..LEAVE_WITHIN_MS));
                self.execute(tenant, namespace, &asked, TIMEOUT, leave).await
            } else {
                self.call(tenant, namespace, asked).await
            };
            if answer == Answer::Unknown && self.world.phase() == Phase::Chaos {
                // It may have been done, or be done yet.
                continue;
            }
            if let Some(opening) = opening.filter(|_| answer != Answer::Unknown) {
                self.world.claims.opened(opening, at());
            }
            return;
        }
    }

    /// Takes a lock, extends it, and looks each time whether somebody asks for it.
    async fn hold_a_lock(&mut self, tenants: &[Tenant]) {
        let (process, at_least_ms) = PROCESSES[self.rng.random_range(0..PROCESSES.len())];
        let place = self.draw_place(tenants.len());
        let ((tenant, namespace), owner) = self.draw_owner(place, process.to_owned());
        // What a session has is kept from others for no longer than that.
        let at_least_ms = if matches!(owner, Owner::Process(_)) { at_least_ms } else { 0 };
        let (tenant, path) = (&tenants[tenant], self.draw_asked_path());
        let mode = if self.rng.random_bool(0.7) { Mode::Write } else { Mode::Read };
        let wait_ms = self.draw_time(&WAITS_MS);
        let mut acquire = AcquireOp {
            claims: vec![Claim { path: path.clone(), mode }],
            ttl_ms: None,
            transition_ms: TRANSITIONS_MS[self.rng.random_range(0..TRANSITIONS_MS.len())],
            wait_ms,
            token: None,
            allow_upgrade: false,
            at_least_ms,
            owner,
        };
        let reaction = Reaction::draw(&mut self.rng);
        for _ in 0..self.rng.random_range(1..=MAX_LOOKS) {
            let ttl_ms = self.draw_time(&TTLS_MS);
            acquire.ttl_ms = matches!(acquire.owner, Owner::Process(_)).then_some(ttl_ms);
            let answer = self.call_until_answered(tenant, namespace, &Op::Acquire(acquire.clone())).await;
            let Answer::Acquired { outcome: Ok(token), locks } = answer else { return };
            let own = locks.iter().flat_map(|lock| &lock.holders).find(|holder| holder.token == token);
            let is_asked = own.is_some_and(|holder| holder.asked.is_some());
            match reaction {
                Reaction::GivesBack if is_asked => break,
                Reaction::Dies if is_asked => return,
                _ => {}
            }
            (acquire.wait_ms, acquire.token, acquire.allow_upgrade) = (0, Some(token), false);
            if acquire.claims[0].mode == Mode::Write && self.rng.random_ratio(DOWNGRADE_PERCENT, 100) {
                acquire.claims[0].mode = Mode::Read;
                (acquire.token, acquire.allow_upgrade) = (None, true);
            }
            sleep(Duration::from_millis(self.rng.random_range(0..MAX_LOOK_PAUSE_MS))).await;
        }
        let release = Op::Release { owner: acquire.owner, path, token: None };
        self.call_until_answered(tenant, namespace, &release).await;
    }
}
