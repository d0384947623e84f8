//! Converts messages of `SemaphoresService`.

use holdfast_proto::v1;

use super::{convert, things};
use crate::{
    AcquirePermits, AcquirePermitsAnswer, ApiResult, CheckPermitsAnswer, ConfigureSemaphore, GetSemaphore, OwnerFields,
    ReleasePermits, ReleasePermitsAnswer, SemaphoreHolders, SemaphoreInfo, ThingName,
};

/// Converts a configuration.
pub fn configure(message: v1::ConfigureSemaphoreRequest) -> ApiResult<ConfigureSemaphore> {
    Ok(ConfigureSemaphore {
        thing: things::name(message.namespace, message.name, message.path)?,
        permits: message.permits,
        description: Some(message.description),
        metadata: message.metadata.into_iter().collect(),
    })
}

/// Converts a request for permits.
pub fn acquire(message: v1::AcquirePermitsRequest) -> ApiResult<AcquirePermits> {
    Ok(AcquirePermits {
        thing: things::name(message.namespace, message.name, message.path)?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        request_id: message.request_id,
        weight: message.weight,
        permits: message.permits,
        priority: message.priority,
        ttl_ms: message.ttl_ms,
        transition_ms: message.transition_ms,
        wait_ms: message.wait_ms,
        poll_ms: message.poll_ms,
        metadata: message.metadata.into_iter().collect(),
        fencing_token: message.fencing_token,
    })
}

/// Converts a release.
pub fn release(message: v1::ReleasePermitsRequest) -> ApiResult<ReleasePermits> {
    Ok(ReleasePermits {
        thing: things::name(message.namespace, message.name, message.path)?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        request_id: message.request_id,
        fencing_token: message.fencing_token,
    })
}

/// Converts a look at a semaphore.
pub fn get(message: v1::GetSemaphoreRequest) -> ApiResult<GetSemaphore> {
    let thing = things::name(message.namespace, message.name, message.path)?;
    Ok(GetSemaphore { thing, page: convert::page_request(message.page_size, message.page_token) })
}

/// Converts a check; returns the token as well.
pub fn check(message: v1::CheckPermitsRequest) -> ApiResult<(ThingName, u64)> {
    Ok((things::name(message.namespace, message.name, message.path)?, message.fencing_token))
}

/// Converts a deletion.
pub fn delete(message: v1::DeleteSemaphoreRequest) -> ApiResult<ThingName> {
    things::name(message.namespace, message.name, message.path)
}

/// Converts a semaphore.
pub fn info(semaphore: SemaphoreInfo) -> v1::Semaphore {
    v1::Semaphore {
        namespace: semaphore.namespace,
        name: semaphore.name,
        path: semaphore.path,
        configured: semaphore.configured,
        permits: semaphore.permits,
        in_use: semaphore.in_use,
        available: semaphore.available,
        holders_total: semaphore.holders_total,
        waiting: semaphore.waiting,
        description: semaphore.description,
        metadata: semaphore.metadata.into_iter().collect(),
        revision: semaphore.revision,
    }
}

/// Converts the response of an acquire.
pub fn acquired(answer: AcquirePermitsAnswer) -> v1::AcquirePermitsResponse {
    v1::AcquirePermitsResponse {
        success: answer.success,
        fencing_token: answer.fencing_token,
        reason: answer.reason.map(convert::refusal),
        semaphore: Some(info(answer.semaphore)),
        release_requested: answer.release_requested.map(convert::release_request),
    }
}

/// Converts the response of a release.
pub fn released(answer: ReleasePermitsAnswer) -> v1::ReleasePermitsResponse {
    v1::ReleasePermitsResponse { released: answer.released, semaphore: Some(info(answer.semaphore)) }
}

/// Converts the response of a check.
pub fn checked(answer: CheckPermitsAnswer) -> v1::CheckPermitsResponse {
    v1::CheckPermitsResponse { current: answer.current, semaphore: Some(info(answer.semaphore)) }
}

/// Converts a semaphore with a page of its holders.
pub fn holders(answer: SemaphoreHolders) -> v1::GetSemaphoreResponse {
    v1::GetSemaphoreResponse {
        semaphore: Some(info(answer.semaphore)),
        holders: answer.holders.into_iter().map(convert::permit_holder).collect(),
        next_page_token: answer.next_page_token.unwrap_or_default(),
    }
}
