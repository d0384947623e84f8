//! Calls about barriers as they are made through the gateway's service.

use holdfast_api::{ApiResult, ArriveAtBarrier, ConfigureBarrier, LeaveBarrier, WaitAtBarrier};
use holdfast_backend::{AuthContext, CallContext};
use holdfast_core::{Metadata, OnLoss};

use super::Client;
use super::perform::owner_fields;
use super::perform_things::thing;
use crate::barrier_calls::{ArriveOp, BarrierOp};
use crate::history::CALL_KEY;
use crate::things::ThingAnswer;

impl Client {
    pub(super) async fn perform_for_barrier(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        op: BarrierOp,
        id: usize,
    ) -> ApiResult<ThingAnswer> {
        let service = &self.service;
        Ok(match op {
            BarrierOp::Configure { path, parties, is_double, withdraws } => {
                let request = ConfigureBarrier {
                    thing: thing(namespace, path),
                    parties,
                    double: is_double,
                    on_loss: if withdraws { OnLoss::Withdraw } else { OnLoss::Break },
                    retain_ms: None,
                    description: None,
                    metadata: Metadata::new(),
                };
                ThingAnswer::Barrier(service.configure_barrier(caller, context, request).await?.into())
            }
            BarrierOp::Arrive(ArriveOp { path, owner, generation, parties, ttl_ms, wait_ms }) => {
                let request = ArriveAtBarrier {
                    thing: thing(namespace, path),
                    owner: owner_fields(owner),
                    generation,
                    parties: Some(parties),
                    double: None,
                    ttl_ms,
                    wait_ms,
                    metadata: [(CALL_KEY.to_owned(), id.to_string())].into(),
                };
                ThingAnswer::AtBarrier(service.arrive_at_barrier(caller, context, request).await?.into())
            }
            BarrierOp::Wait { path, generation, wait_ms } => {
                let request = WaitAtBarrier { thing: thing(namespace, path), generation, wait_ms };
                ThingAnswer::AtBarrier(service.wait_at_barrier(caller, context, request).await?.into())
            }
            BarrierOp::Leave { path, owner, generation, wait_ms } => {
                let (thing, owner) = (thing(namespace, path), owner_fields(owner));
                let request = LeaveBarrier { thing, owner, generation, wait_ms };
                ThingAnswer::AtBarrier(service.leave_barrier(caller, context, request).await?.into())
            }
            BarrierOp::Get { path } => ThingAnswer::Barrier(
                service.get_barrier(caller, context, &thing(namespace, path)).await?.barrier.into(),
            ),
            BarrierOp::Delete { path } => {
                service.delete_barrier(caller, context, &thing(namespace, path)).await?;
                ThingAnswer::BarrierDeleted
            }
        })
    }
}
