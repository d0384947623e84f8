//! Converts messages of `LocksService` about conditions.

use holdfast_proto::v1;
use holdfast_types::Woken;

use super::{convert, lock_requests};
use crate::{
    ApiResult, AwaitAnswer, AwaitCondition, ConditionInfo, OwnerFields, SignalAnswer, SignalCondition, ThingName,
};

/// Converts an await.
pub fn awaits(message: v1::AwaitRequest) -> ApiResult<AwaitCondition> {
    Ok(AwaitCondition {
        lock: lock(message.namespace, (message.name, message.path, message.whole_namespace))?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        fencing_token: message.fencing_token,
        condition: message.condition,
        wait_ms: message.wait_ms,
        relock_ms: message.relock_ms,
        poll_ms: message.poll_ms,
        ttl_ms: message.ttl_ms,
        transition_ms: message.transition_ms,
        metadata: (!message.metadata.is_empty()).then(|| message.metadata.into_iter().collect()),
    })
}

/// Converts a signal.
pub fn signal(message: v1::SignalRequest) -> ApiResult<SignalCondition> {
    Ok(SignalCondition {
        lock: lock(message.namespace, (message.name, message.path, message.whole_namespace))?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        condition: message.condition,
        all: message.all,
        fencing_token: message.fencing_token,
        signal_id: message.signal_id,
    })
}

fn lock(namespace: String, named: (Option<String>, Vec<String>, bool)) -> ApiResult<ThingName> {
    Ok(ThingName { namespace, name: lock_requests::lock_name(named)? })
}

/// Converts the response of an await.
pub fn awaited(answer: AwaitAnswer) -> v1::AwaitResponse {
    v1::AwaitResponse {
        success: answer.success,
        woken: answer.woken.map_or(v1::Woken::Unspecified, woken).into(),
        fencing_token: answer.fencing_token,
        reason: answer.reason.map(convert::refusal),
        lock: Some(convert::lock(answer.lock)),
    }
}

/// Converts the response of a signal.
pub fn signalled(answer: SignalAnswer) -> v1::SignalResponse {
    v1::SignalResponse {
        success: answer.success,
        signalled: answer.signalled.unwrap_or_default(),
        awaiting: answer.awaiting.unwrap_or_default(),
        lock: Some(convert::lock(answer.lock)),
        reason: answer.reason.map(convert::refusal),
    }
}

/// Converts a condition.
pub fn info(condition: ConditionInfo) -> v1::Condition {
    v1::Condition {
        path: condition.path,
        condition: condition.condition,
        awaiting: condition.awaiting,
        oldest_since: Some(convert::instant(condition.oldest_since)),
    }
}

/// Converts why an owner was woken.
pub fn woken(woken: Woken) -> v1::Woken {
    match woken {
        Woken::Signalled => v1::Woken::Signalled,
        Woken::Elapsed => v1::Woken::Elapsed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockName;

    #[test]
    fn an_await_and_a_signal_name_the_whole_namespace_or_one_lock_of_it() {
        let whole = v1::AwaitRequest { whole_namespace: true, ..Default::default() };
        assert_eq!(awaits(whole.clone()).unwrap().lock.name, LockName::Path(Vec::new()));
        let both = v1::AwaitRequest { name: Some("a".into()), ..whole };
        assert_eq!(awaits(both).unwrap_err().ids[0].1, "whole_namespace");
        assert_eq!(awaits(v1::AwaitRequest::default()).unwrap_err().ids[0].1, "name");
        let whole = v1::SignalRequest { whole_namespace: true, ..Default::default() };
        assert_eq!(signal(whole).unwrap().lock.name, LockName::Path(Vec::new()));
        let one = v1::SignalRequest { path: vec!["a".into()], ..Default::default() };
        assert_eq!(signal(one).unwrap().lock.name, LockName::Path(vec!["a".into()]));
    }

    #[test]
    fn names_are_the_same_as_in_json() {
        for one in [Woken::Signalled, Woken::Elapsed] {
            assert_eq!(woken(one).as_str_name(), one.name());
        }
    }
}
