//! A client of pools: few members, owners and ids, so that clients meet. It goes away at any point of a call, and then
//! asks the same again.

use std::time::Duration;

use holdfast_core::{Owner, Path};
use rand::Rng;
use tokio::time::sleep;

use super::draw::{TRANSITIONS_MS, TTLS_MS, WAITS_MS};
use super::things::PRIORITIES;
use super::{Client, MAX_PAUSE_MS, STABLE_NAMESPACES};
use crate::history::Op;
use crate::things::{MemberChange, PermitsOp, PoolOp, ThingOp, WantedOp};
use crate::world::Phase;

/// One has the name of a semaphore, with which it has nothing to do.
const POOLS: [&str; 2] = ["narrow", "racks"];
const MEMBERS: [&str; 4] = ["m0", "m1", "m2", "m3"];
/// How many in a hundred configurations leave a member out.
const LEAVE_OUT_PERCENT: u32 = 30;
const COOLDOWNS_MS: [u64; 3] = [0, 0, 300];
/// What each request of an owner takes, so many or that one: a repeat must ask for the same.
const TAKES: [(u64, Option<&str>); 5] = [(1, None), (2, None), (3, None), (1, Some("m0")), (1, Some("m2"))];
const CHANGES: [MemberChange; 4] =
    [MemberChange::Enable, MemberChange::Enable, MemberChange::Disable, MemberChange::Remove];
/// No owners of anything else, so that these release only what they hold.
const PROCESSES: usize = 3;

impl Client {
    /// Uses pools for as long as the run is in its working stage.
    pub(crate) async fn use_pools(mut self) {
        let tenants = self.world.tenants();
        // Most calls are about these, and without members they find nothing.
        for name in POOLS {
            let (path, members) = (Path::flat(name), MEMBERS.map(str::to_owned).to_vec());
            let configure = Op::Thing(ThingOp::Pool(PoolOp::Configure { path, members, cooldown_ms: 0 }));
            self.call_until_answered(&tenants[0], STABLE_NAMESPACES[0], &configure).await;
        }
        while self.world.phase() == Phase::Chaos {
            sleep(Duration::from_millis(self.rng.random_range(0..MAX_PAUSE_MS))).await;
            self.update_session(&tenants).await;
            let place = self.draw_place(tenants.len());
            let (tenant, namespace, op) = self.draw_for_pool(place);
            self.call_until_answered(&tenants[tenant], namespace, &Op::Thing(op)).await;
        }
    }

    fn draw_for_pool(&mut self, place: (usize, &'static str)) -> (usize, &'static str, ThingOp) {
        let name = POOLS[self.rng.random_range(0..POOLS.len())];
        let path = Path::flat(name);
        let kind = self.rng.random_range(0..100);
        if kind < 75 {
            let index = self.rng.random_range(0..TAKES.len());
            // A session's ids are unique among all that it requests.
            let request_id = format!("pool-{name}-{index}");
            let ((tenant, namespace), owner) = self.draw_taker(place);
            let op = match kind {
                0..55 => ThingOp::Acquire(self.draw_take(path, owner, request_id, TAKES[index])),
                _ => {
                    let member = MEMBERS[self.rng.random_range(0..MEMBERS.len())].to_owned();
                    let members = if self.rng.random_bool(0.3) { vec![member] } else { Vec::new() };
                    ThingOp::Pool(PoolOp::Return { path, owner, request_id, members })
                }
            };
            return (tenant, namespace, op);
        }
        let op = match kind {
            75..84 => {
                let mut members = MEMBERS.map(str::to_owned).to_vec();
                if self.rng.random_ratio(LEAVE_OUT_PERCENT, 100) {
                    members.remove(self.rng.random_range(0..MEMBERS.len()));
                }
                let cooldown_ms = COOLDOWNS_MS[self.rng.random_range(0..COOLDOWNS_MS.len())];
                PoolOp::Configure { path, members, cooldown_ms }
            }
            84..92 => {
                let member = MEMBERS[self.rng.random_range(0..MEMBERS.len())].to_owned();
                let change = CHANGES[self.rng.random_range(0..CHANGES.len())];
                PoolOp::Change { path, member, change }
            }
            _ => PoolOp::Get { path },
        };
        (place.0, place.1, ThingOp::Pool(op))
    }

    /// Who takes, and where.
    fn draw_taker(&mut self, place: (usize, &'static str)) -> ((usize, &'static str), Owner) {
        let process = format!("r{}", self.rng.random_range(0..PROCESSES));
        self.draw_owner(place, process)
    }

    /// That process or, at times, the session of the client, which has one namespace.
    pub(super) fn draw_owner(
        &mut self,
        place: (usize, &'static str),
        process: String,
    ) -> ((usize, &'static str), Owner) {
        match &self.session {
            Some(session) if self.rng.random_bool(0.3) => {
                let owner = Owner::Session { session_id: session.id.clone(), holder: None };
                ((session.tenant, session.namespace), owner)
            }
            _ => (place, Owner::Process(process)),
        }
    }

    fn draw_take(
        &mut self,
        path: Path,
        owner: Owner,
        request_id: String,
        (count, member): (u64, Option<&str>),
    ) -> PermitsOp {
        let preferred = MEMBERS[self.rng.random_range(0..MEMBERS.len())].to_owned();
        let prefer = self.rng.random_bool(0.3).then_some(preferred);
        let ttl_ms = self.draw_time(&TTLS_MS);
        PermitsOp {
            path,
            request_id,
            wanted: member.map_or(WantedOp::Members { count, prefer }, |name| WantedOp::Member(name.to_owned())),
            priority: PRIORITIES[self.rng.random_range(0..PRIORITIES.len())],
            ttl_ms: matches!(owner, Owner::Process(_)).then_some(ttl_ms),
            owner,
            transition_ms: TRANSITIONS_MS[self.rng.random_range(0..TRANSITIONS_MS.len())],
            wait_ms: self.draw_time(&WAITS_MS),
        }
    }
}
