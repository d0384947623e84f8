//! Converts requests to release, and what holds keep of them.

use holdfast_proto::v1;

use super::{convert, lock_requests, pools, semaphores, things};
use crate::{ApiResult, AskLockAnswer, AskPoolAnswer, AskRelease, AskSemaphoreAnswer};

/// Converts a request to release a lock.
pub fn ask_lock(message: v1::AskReleaseRequest) -> ApiResult<AskRelease> {
    Ok(AskRelease {
        namespace: message.namespace,
        name: lock_requests::lock_name((message.name, message.path, message.whole_namespace))?,
        member: None,
        reason: Some(message.reason),
        within_ms: message.within_ms,
        force: message.force,
    })
}

/// Converts a request to release permits.
pub fn ask_semaphore(message: v1::AskSemaphoreReleaseRequest) -> ApiResult<AskRelease> {
    let thing = things::name(message.namespace, message.name, message.path)?;
    Ok(AskRelease {
        namespace: thing.namespace,
        name: thing.name,
        member: None,
        reason: Some(message.reason),
        within_ms: message.within_ms,
        force: message.force,
    })
}

/// Converts a request to return members.
pub fn ask_pool(message: v1::AskPoolReleaseRequest) -> ApiResult<AskRelease> {
    let thing = things::name(message.namespace, message.name, message.path)?;
    Ok(AskRelease {
        namespace: thing.namespace,
        name: thing.name,
        member: message.member,
        reason: Some(message.reason),
        within_ms: message.within_ms,
        force: message.force,
    })
}

/// Converts the response of a request to release a lock.
pub fn asked_lock(answer: AskLockAnswer) -> v1::AskReleaseResponse {
    let lock = Some(convert::lock(answer.lock));
    v1::AskReleaseResponse { asked: answer.asked, truncated: answer.truncated, lock }
}

/// Converts the response of a request to release permits.
pub fn asked_semaphore(answer: AskSemaphoreAnswer) -> v1::AskSemaphoreReleaseResponse {
    let semaphore = Some(semaphores::info(answer.semaphore));
    v1::AskSemaphoreReleaseResponse { asked: answer.asked, truncated: answer.truncated, semaphore }
}

/// Converts the response of a request to return members.
pub fn asked_pool(answer: AskPoolAnswer) -> v1::AskPoolReleaseResponse {
    let pool = Some(pools::info(answer.pool));
    v1::AskPoolReleaseResponse { asked: answer.asked, truncated: answer.truncated, pool }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_and_none_at_all_are_told_apart() {
        let ask = |within_ms| v1::AskReleaseRequest { name: Some("l".to_owned()), within_ms, ..Default::default() };
        assert_eq!(ask_lock(ask(None)).unwrap().within_ms, None);
        assert_eq!(ask_lock(ask(Some(0))).unwrap().within_ms, Some(0));
        let of_pool = v1::AskPoolReleaseRequest {
            path: vec!["a".to_owned(), "b".to_owned()],
            member: Some("m".to_owned()),
            within_ms: Some(0),
            ..Default::default()
        };
        let of_pool = ask_pool(of_pool).unwrap();
        assert_eq!((of_pool.member.as_deref(), of_pool.within_ms), (Some("m"), Some(0)));
        assert!(ask_semaphore(v1::AskSemaphoreReleaseRequest::default()).is_err());
    }
}
