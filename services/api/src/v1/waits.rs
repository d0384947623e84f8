//! Converts messages of `LocksService` about waiting requests.

use holdfast_proto::v1;

use super::convert;
use crate::{ListWaits, ResourceInfo, WaitInfo};

/// Converts a list.
pub fn list(message: v1::ListWaitsRequest) -> ListWaits {
    let v1::ListWaitsRequest { namespace, kinds, page_size, page_token } = message;
    ListWaits { namespace, kinds, page: convert::page_request(page_size, page_token) }
}

/// Converts a waiting request.
pub fn info(wait: WaitInfo) -> v1::Wait {
    v1::Wait {
        process_id: wait.process_id,
        session_id: wait.session_id,
        holder: wait.holder,
        request_id: wait.request_id,
        resources: wait.resources.into_iter().map(resource).collect(),
        upgrade: wait.upgrade,
        waiting_since: Some(convert::instant(wait.waiting_since)),
        expires_at: wait.expires_at.map(convert::instant),
        remaining_ms: wait.remaining_ms,
        reason: Some(convert::refusal(wait.reason)),
        kind: wait.kind.map(str::to_owned),
        path: wait.path.unwrap_or_default(),
        weight: wait.weight,
        count: wait.count,
        member: wait.member,
        priority: wait.priority.map(u32::from),
        condition: wait.condition,
    }
}

fn resource(resource: ResourceInfo) -> v1::Resource {
    v1::Resource { path: resource.path, mode: convert::mode(resource.mode).into() }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Mode, Reason};

    use super::*;
    use crate::{ReasonInfo, Timestamp};

    fn wait() -> WaitInfo {
        WaitInfo {
            process_id: "p".into(),
            session_id: None,
            holder: None,
            request_id: None,
            resources: vec![ResourceInfo { path: vec!["a".into()], mode: Mode::Read }],
            upgrade: true,
            waiting_since: Timestamp(1_000),
            expires_at: Some(Timestamp(6_000)),
            remaining_ms: Some(5_000),
            reason: ReasonInfo {
                code: Reason::Queued,
                blockers: Vec::new(),
                queue_position: Some(2),
                cycle: Vec::new(),
                holders: Vec::new(),
            },
            kind: None,
            path: None,
            weight: None,
            count: None,
            member: None,
            priority: None,
            condition: None,
        }
    }

    #[test]
    fn a_wait_for_a_lock_says_what_that_of_another_kind_does_not() {
        let shown = info(wait());
        assert_eq!((shown.resources[0].mode(), shown.upgrade, shown.kind), (v1::Mode::Read, true, None));
        assert_eq!((shown.remaining_ms, shown.expires_at.unwrap().seconds), (Some(5_000), 6));
        assert_eq!(shown.reason.unwrap().queue_position, Some(2));
        let of_pool = WaitInfo {
            resources: Vec::new(),
            kind: Some("pool"),
            path: Some(vec!["x".into()]),
            member: Some("m".into()),
            priority: Some(9),
            ..wait()
        };
        let shown = info(of_pool);
        assert_eq!((shown.kind.as_deref(), shown.path, shown.resources.len()), (Some("pool"), vec!["x".to_owned()], 0));
        assert_eq!((shown.member.as_deref(), shown.priority, shown.count), (Some("m"), Some(9), None));
    }

    #[test]
    fn what_is_empty_in_a_list_is_absent() {
        let request = list(v1::ListWaitsRequest { namespace: "ns".into(), ..Default::default() });
        assert_eq!((request.kinds.len(), request.page.page_size, request.page.page_token), (0, None, None));
    }
}
