//! A client of barriers: few barriers and owners, so that clients meet. It goes away at any point of a call, and then
//! asks the same again: that must arrive once, and be told what the others are told.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::{Owner, Path};
use rand::Rng;
use tokio::time::sleep;

use super::draw::{TTLS_MS, WAITS_MS};
use super::things::{QUESTION_MS, QUESTION_PERCENT};
use super::{Client, MAX_PAUSE_MS};
use crate::barrier_calls::{ArriveOp, BarrierOp};
use crate::history::{Answer, Op};
use crate::things::{ThingAnswer, ThingOp};
use crate::world::Phase;

/// Names, and how many meet at each as long as nobody configures it.
const BARRIERS: [(&str, u32); 3] = [("rounds", 2), ("stages", 3), ("narrow", 2)];
const CONFIGURED_PARTIES: [u32; 3] = [2, 2, 3];
/// No owners of anything else, so that these release only what they hold.
const PROCESSES: usize = 5;
/// How many in a hundred calls name a generation, if the client knows one.
const NAMED_PERCENT: u32 = 80;

/// The generations that a client was told last, by tenant, namespace and name: that of an answer, and the next one.
type KnownGenerations = BTreeMap<(usize, &'static str, &'static str), [u64; 2]>;

/// Where a call is made: a tenant and a namespace.
type CallSite = (usize, &'static str);

impl Client {
    /// Uses barriers for as long as the run is in its working stage.
    pub(crate) async fn use_barriers(mut self) {
        let tenants = self.world.tenants();
        let (mut known, mut questions) = (KnownGenerations::new(), 0);
        while self.world.phase() == Phase::Chaos {
            sleep(Duration::from_millis(self.rng.random_range(0..MAX_PAUSE_MS))).await;
            self.update_session(&tenants).await;
            let (name, parties) = BARRIERS[self.rng.random_range(0..BARRIERS.len())];
            let place = self.draw_place(tenants.len());
            let ((tenant, namespace), op) = self.draw_for_barrier(place, (name, parties), &known);
            if let Op::Thing(ThingOp::Barrier(BarrierOp::Arrive(arrive))) = &op
                && arrive.generation.is_some()
                && self.rng.random_ratio(QUESTION_PERCENT, 100)
            {
                questions += 1;
                let arrive = ArriveOp { wait_ms: QUESTION_MS, ..arrive.clone() };
                self.spawn_call(&tenants[tenant], namespace, ThingOp::Barrier(BarrierOp::Arrive(arrive)), questions);
                continue;
            }
            let generations = match self.call_until_answered(&tenants[tenant], namespace, &op).await {
                Answer::Thing(ThingAnswer::AtBarrier(meeting)) => [meeting.generation, meeting.next_generation],
                Answer::Thing(ThingAnswer::Barrier(barrier)) => [barrier.generation; 2],
                _ => continue,
            };
            known.insert((tenant, namespace, name), generations);
        }
    }

    fn draw_for_barrier(
        &mut self,
        place: CallSite,
        (name, parties): (&'static str, u32),
        known: &KnownGenerations,
    ) -> (CallSite, Op) {
        let kind = self.rng.random_range(0..100);
        let path = Path::flat(name);
        let process = format!("b{}", self.rng.random_range(0..PROCESSES));
        let (of_owner, owner) = self.draw_owner(place, process);
        // Half of those who leave do so from the generation before.
        let latest = usize::from(kind < 60 || self.rng.random_bool(0.5));
        let place = if kind < 80 { of_owner } else { place };
        let named = known.get(&(place.0, place.1, name)).map(|known| known[latest]);
        let wait_ms = self.draw_time(&WAITS_MS);
        let op = match (kind, named) {
            (60..74, Some(generation)) => BarrierOp::Leave { path, owner, generation, wait_ms },
            (80..87, Some(generation)) => BarrierOp::Wait { path, generation, wait_ms },
            (77..80, _) => return (place, Op::ReleaseAll { owner }),
            (80..94, _) => BarrierOp::Get { path },
            (94..98, _) => BarrierOp::Configure {
                path,
                parties: CONFIGURED_PARTIES[self.rng.random_range(0..CONFIGURED_PARTIES.len())],
                is_double: self.rng.random_bool(0.5),
                withdraws: self.rng.random_bool(0.5),
            },
            (98.., _) => BarrierOp::Delete { path },
            (_, named) => {
                let ttl_ms = self.draw_time(&TTLS_MS);
                let ttl_ms = matches!(owner, Owner::Process(_)).then_some(ttl_ms);
                let generation = named.filter(|_| self.rng.random_ratio(NAMED_PERCENT, 100));
                BarrierOp::Arrive(ArriveOp { path, owner, generation, parties, ttl_ms, wait_ms })
            }
        };
        (place, Op::Thing(ThingOp::Barrier(op)))
    }
}
