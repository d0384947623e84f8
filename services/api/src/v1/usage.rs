//! Converts the usage of an account to messages.

use holdfast_proto::v1;

use super::convert;
use crate::{LimitUsageInfo, NamespaceFigures, NamespaceUsageInfo, StateBytesInfo, UsageInfo, UsageTotalsInfo};

/// Converts the usage of an account.
pub fn usage(usage: UsageInfo) -> v1::Usage {
    v1::Usage {
        account_id: usage.account_id,
        max_number_of_namespaces: usage.max_number_of_namespaces,
        limits: Some(convert::limits(&usage.limits)),
        limit_usage: usage.limit_usage.into_iter().map(limit_usage).collect(),
        total: Some(figures(usage.total)),
        state_bytes: Some(state_bytes(usage.state_bytes)),
        state_bytes_of_fullest_shard: usage.state_bytes_of_fullest_shard,
        namespaces: usage.namespaces.into_iter().map(namespace).collect(),
        deleted_namespaces: usage.deleted_namespaces.map(totals),
    }
}

fn limit_usage(usage: LimitUsageInfo) -> v1::LimitUsage {
    let LimitUsageInfo { limit, each, used, max, of_this_gateway } = usage;
    v1::LimitUsage { limit, each, used, max, of_this_gateway }
}

fn namespace(usage: NamespaceUsageInfo) -> v1::NamespaceUsage {
    let NamespaceUsageInfo { name, id, figures: own, state_bytes: bytes } = usage;
    v1::NamespaceUsage { name, id, figures: Some(figures(own)), state_bytes: Some(state_bytes(bytes)) }
}

fn figures(figures: NamespaceFigures) -> v1::UsageFigures {
    let NamespaceFigures { holds, waiting, sessions, totals: all, .. } = figures;
    let NamespaceFigures { latches, semaphores, permit_holds, permit_waits, pools, .. } = figures;
    let NamespaceFigures { barriers, arrivals, awaiting, .. } = figures;
    let of_locks = v1::UsageFigures { holds, waiting, sessions, totals: Some(totals(all)), ..Default::default() };
    let of_tables = v1::UsageFigures { latches, semaphores, permit_holds, permit_waits, pools, ..of_locks };
    v1::UsageFigures { barriers, arrivals, awaiting, ..of_tables }
}

fn totals(totals: UsageTotalsInfo) -> v1::UsageTotals {
    let UsageTotalsInfo { operations, grants, waits, sessions_opened, peak_holds, peak_waiting, peak_sessions } =
        totals;
    v1::UsageTotals { operations, grants, waits, sessions_opened, peak_holds, peak_waiting, peak_sessions }
}

fn state_bytes(bytes: StateBytesInfo) -> v1::StateBytes {
    v1::StateBytes {
        total: bytes.total,
        namespace: bytes.namespace,
        paths: bytes.paths,
        owners: bytes.owners,
        holds: bytes.holds,
        metadata: bytes.metadata,
        waiting: bytes.waiting,
        requests: bytes.requests,
        sessions: bytes.sessions,
        events: bytes.events,
        latches: bytes.latches,
        semaphores: bytes.semaphores,
        barriers: bytes.barriers,
        conditions: bytes.conditions,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Limits, limit};

    use super::*;

    #[test]
    fn a_message_says_what_the_answer_says() {
        let of_state = |total| StateBytesInfo { total, events: 2, semaphores: 3, ..StateBytesInfo::default() };
        let totals = UsageTotalsInfo { operations: 9, peak_sessions: 8, ..UsageTotalsInfo::default() };
        let of_permits = NamespaceFigures { latches: 4, permit_waits: 5, ..NamespaceFigures::default() };
        let figures = NamespaceFigures { holds: 1, waiting: 2, sessions: 3, totals, ..of_permits };
        let namespace = NamespaceUsageInfo { name: "n".into(), id: "0".into(), figures, state_bytes: of_state(7) };
        let limits = Limits::default();
        let limit_usage = vec![
            LimitUsageInfo::new(&limit::STATE_BYTES, 5, limits.max_state_bytes),
            LimitUsageInfo::of_this_gateway(&limit::OPEN_CALLS, 6, &limits),
            LimitUsageInfo::without_use(&limit::READERS, 7),
        ];
        let message = usage(UsageInfo {
            account_id: "a".into(),
            max_number_of_namespaces: 25,
            limits,
            limit_usage,
            total: figures,
            state_bytes: of_state(8),
            state_bytes_of_fullest_shard: 6,
            namespaces: vec![namespace],
            deleted_namespaces: Some(totals),
        });
        let rows: Vec<_> = message.limit_usage.iter().map(|row| (&*row.limit, row.used, row.max)).collect();
        let used = [("max_state_bytes", Some(5), 512 << 20), ("max_open_calls", Some(6), 4_096)];
        assert_eq!((&rows[..2], rows[2]), (&used[..], ("max_readers_per_lock", None, 7)));
        let each: Vec<_> = message.limit_usage.iter().map(|row| (&*row.each, row.of_this_gateway)).collect();
        assert_eq!(each, [("account and shard", false), ("account and gateway", true), ("lock", false)]);
        let only = message.namespaces[0].clone();
        let bytes = only.state_bytes.map(|bytes| (bytes.events, bytes.semaphores));
        assert_eq!((only.figures, bytes), (message.total, Some((2, 3))));
        let figures = only.figures.expect("it is there");
        assert_eq!((figures.sessions, figures.latches, figures.permit_waits), (3, 4, 5));
        let ended = message.deleted_namespaces.expect("it is there");
        assert_eq!((ended.operations, ended.peak_sessions), (9, 8));
        assert_eq!(message.limits.and_then(|limits| limits.max_open_calls), Some(4_096));
    }
}
