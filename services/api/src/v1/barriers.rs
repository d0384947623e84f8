//! Converts messages of `BarriersService`.

use holdfast_proto::v1;
use holdfast_types::{BarrierOutcome, OnLoss};

use super::{convert, things};
use crate::{
    ApiError, ApiResult, ArrivalInfo, ArriveAtBarrier, BarrierAnswerInfo, BarrierArrivals, BarrierInfo,
    ConfigureBarrier, GenerationInfo, LeaveBarrier, OwnerFields, ThingName, WaitAtBarrier,
};

/// Converts a configuration.
pub fn configure(message: v1::ConfigureBarrierRequest) -> ApiResult<ConfigureBarrier> {
    let on_loss = match v1::barrier::OnLoss::try_from(message.on_loss) {
        Ok(v1::barrier::OnLoss::Break) => OnLoss::Break,
        Ok(v1::barrier::OnLoss::Withdraw) => OnLoss::Withdraw,
        Err(_) => return Err(ApiError::invalid("on_loss", "on_loss: must be BREAK or WITHDRAW")),
    };
    Ok(ConfigureBarrier {
        thing: things::name(message.namespace, message.name, message.path)?,
        parties: message.parties,
        double: message.double,
        on_loss,
        retain_ms: message.retain_ms,
        description: Some(message.description),
        metadata: message.metadata.into_iter().collect(),
    })
}

/// Converts an arrival.
pub fn arrive(message: v1::ArriveAtBarrierRequest) -> ApiResult<ArriveAtBarrier> {
    Ok(ArriveAtBarrier {
        thing: things::name(message.namespace, message.name, message.path)?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        generation: message.generation,
        parties: message.parties,
        double: message.double,
        ttl_ms: message.ttl_ms,
        wait_ms: message.wait_ms,
        metadata: message.metadata.into_iter().collect(),
    })
}

/// Converts a wait.
pub fn wait(message: v1::WaitAtBarrierRequest) -> ApiResult<WaitAtBarrier> {
    let thing = things::name(message.namespace, message.name, message.path)?;
    Ok(WaitAtBarrier { thing, generation: message.generation, wait_ms: message.wait_ms })
}

/// Converts the end of an arrival.
pub fn leave(message: v1::LeaveBarrierRequest) -> ApiResult<LeaveBarrier> {
    Ok(LeaveBarrier {
        thing: things::name(message.namespace, message.name, message.path)?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        generation: message.generation,
        wait_ms: message.wait_ms,
    })
}

/// Converts a look at a barrier.
pub fn get(message: v1::GetBarrierRequest) -> ApiResult<ThingName> {
    things::name(message.namespace, message.name, message.path)
}

/// Converts a deletion.
pub fn delete(message: v1::DeleteBarrierRequest) -> ApiResult<ThingName> {
    things::name(message.namespace, message.name, message.path)
}

/// Converts a barrier.
pub fn info(barrier: BarrierInfo) -> v1::Barrier {
    let on_loss = match barrier.on_loss {
        OnLoss::Break => v1::barrier::OnLoss::Break,
        OnLoss::Withdraw => v1::barrier::OnLoss::Withdraw,
    };
    v1::Barrier {
        namespace: barrier.namespace,
        name: barrier.name,
        path: barrier.path,
        configured: barrier.configured,
        parties: barrier.parties,
        double: barrier.double,
        on_loss: on_loss.into(),
        retain_ms: barrier.retain_ms,
        generation: barrier.generation,
        arrived: barrier.arrived,
        inside: barrier.inside,
        inside_generation: barrier.inside_generation,
        remaining_ms: barrier.remaining_ms,
        description: barrier.description,
        metadata: barrier.metadata.into_iter().collect(),
        revision: barrier.revision,
    }
}

/// Converts what a party is told.
pub fn answer(answer: BarrierAnswerInfo) -> v1::BarrierAnswer {
    v1::BarrierAnswer {
        outcome: outcome(answer.outcome).into(),
        generation: answer.generation,
        next_generation: answer.next_generation,
        index: answer.index,
        lost: answer.lost,
        ended: answer.ended.flatten().map(|end| outcome(end.into()).into()),
        barrier: Some(info(answer.barrier)),
    }
}

/// Converts an outcome.
pub(super) fn outcome(outcome: BarrierOutcome) -> v1::barrier_answer::Outcome {
    use v1::barrier_answer::Outcome;
    match outcome {
        BarrierOutcome::Tripped => Outcome::Tripped,
        BarrierOutcome::Broken => Outcome::Broken,
        BarrierOutcome::Waiting => Outcome::Waiting,
        BarrierOutcome::Left => Outcome::Left,
        BarrierOutcome::Withdrawn => Outcome::Withdrawn,
        BarrierOutcome::Full => Outcome::Full,
        BarrierOutcome::Past => Outcome::Past,
    }
}

/// Converts a barrier with those who have come.
pub fn arrivals(answer: BarrierArrivals) -> v1::GetBarrierResponse {
    v1::GetBarrierResponse {
        barrier: Some(info(answer.barrier)),
        arrivals: answer.arrivals.into_iter().map(arrival).collect(),
        generations: answer.generations.into_iter().map(generation).collect(),
    }
}

fn arrival(arrival: ArrivalInfo) -> v1::BarrierArrival {
    v1::BarrierArrival {
        process_id: arrival.process_id,
        session_id: arrival.session_id,
        holder: arrival.holder,
        request_id: arrival.request_id,
        inside: arrival.inside,
        arrived_at: Some(convert::instant(arrival.arrived_at)),
        remaining_ms: arrival.remaining_ms,
        metadata: arrival.metadata.into_iter().collect(),
    }
}

fn generation(ended: GenerationInfo) -> v1::BarrierGeneration {
    v1::BarrierGeneration {
        generation: ended.generation,
        outcome: outcome(ended.outcome.into()).into(),
        parties: ended.parties,
        ended_at: Some(convert::instant(ended.ended_at)),
        lost: ended.lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_outcomes_are_the_same_as_in_json() {
        use BarrierOutcome::{Broken, Full, Left, Past, Tripped, Waiting, Withdrawn};
        for one in [Tripped, Broken, Waiting, Left, Withdrawn, Full, Past] {
            assert_eq!(one.name(), outcome(one).as_str_name());
        }
        assert_eq!(OnLoss::Break.name(), v1::barrier::OnLoss::Break.as_str_name());
        assert_eq!(OnLoss::Withdraw.name(), v1::barrier::OnLoss::Withdraw.as_str_name());
    }

    #[test]
    fn what_is_not_given_is_absent_and_what_is_not_known_is_refused() {
        let arrival = v1::ArriveAtBarrierRequest { name: Some("b".into()), ..Default::default() };
        let arrival = arrive(arrival).unwrap();
        assert_eq!((arrival.generation, arrival.parties, arrival.double), (None, None, None));
        let unknown = v1::ConfigureBarrierRequest { name: Some("b".into()), on_loss: 7, ..Default::default() };
        assert_eq!(configure(unknown).unwrap_err().ids[0].1, "on_loss");
        assert_eq!(delete(v1::DeleteBarrierRequest::default()).unwrap_err().ids[0].1, "name");
    }
}
