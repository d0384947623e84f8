//! Injected panics. Tests must find a mutation; Holdfast must survive a panic.

/// Points at which a panic can strike: in `apply`, under the lock of the state, before what is due ends and before each
/// command; and in every long-lived task of a node or a caller of nodes, before each step of it, by its name.
pub const PANIC_POINTS: [&str; 31] = [
    "apply",
    // Tasks of a replica.
    "leadership",
    "proposer",
    "log_compaction",
    "rules",
    "vote",
    "voters",
    "membership",
    "bootstrap",
    "leader_tasks",
    "shard_health",
    // Of a leader.
    "expiry",
    "outbox_dispatcher",
    "session_reaper",
    "table_epochs",
    "wait_reaper",
    "cancel_sender",
    "quorum_guard",
    // Of a node: the connection to a peer, what is done when one comes back, and taking over from one that is gone.
    "peer_connection",
    "peer_connected",
    "fast_failover",
    "disk_space",
    "leadership_return",
    "replica",
    "config",
    "lock_metrics",
    "readiness",
    // Of whoever calls nodes: the connection to one, and asking it for later configs.
    "node_connection",
    "config_watch",
    // Of a gateway.
    "account_feed",
    "key_usage",
];

/// The same in the long-lived tasks that no simulated cluster has: of listeners, certificates and metrics, and what
/// follows a change of the config.
pub const UNSIMULATED_PANIC_POINTS: [&str; 5] = ["accept", "certificates", "decommission", "health", "metrics"];

/// The beginning of the message of an injected panic, before its point.
pub const INJECTED_PANIC: &str = "injected at ";

#[cfg(feature = "enabled")]
static PENDING: std::sync::Mutex<Vec<(String, u64)>> = std::sync::Mutex::new(Vec::new());

/// Lets a panic strike at that point of this process, once, when it has been passed that often: at any replica or node
/// of the process. False when this build can't.
pub fn inject_panic(point: &str, passed: u64) -> bool {
    #[cfg(feature = "enabled")]
    {
        pending().push((point.to_owned(), passed));
        true
    }
    #[cfg(not(feature = "enabled"))]
    {
        let _ = (point, passed);
        false
    }
}

/// The points of panics that have not struck yet.
pub fn pending_panics() -> Vec<String> {
    #[cfg(feature = "enabled")]
    return pending().iter().map(|(point, _)| point.clone()).collect();
    #[cfg(not(feature = "enabled"))]
    Vec::new()
}

/// Panics here when that was asked for.
#[inline]
pub fn maybe_panic(point: &str) {
    #[cfg(feature = "enabled")]
    {
        let mut pending = pending();
        let strikes = pending.iter().position(|(at, left)| at == point && *left == 0);
        pending.iter_mut().filter(|(at, _)| at == point).for_each(|(_, left)| *left = left.saturating_sub(1));
        if let Some(position) = strikes {
            pending.remove(position);
            drop(pending);
            panic!("{INJECTED_PANIC}{point}");
        }
    }
    #[cfg(not(feature = "enabled"))]
    let _ = point;
}

#[cfg(feature = "enabled")]
fn pending() -> std::sync::MutexGuard<'static, Vec<(String, u64)>> {
    PENDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "enabled"))]
    #[test]
    fn a_build_without_the_feature_never_panics() {
        for point in PANIC_POINTS.into_iter().chain(UNSIMULATED_PANIC_POINTS) {
            assert!(!inject_panic(point, 0));
            maybe_panic(point);
        }
        assert!(pending_panics().is_empty());
    }

    #[cfg(feature = "enabled")]
    #[test]
    fn a_panic_strikes_once_when_its_point_was_passed_so_often() {
        assert!(inject_panic("apply", 2));
        maybe_panic("apply");
        maybe_panic("proposer");
        maybe_panic("apply");
        assert_eq!(pending_panics(), ["apply"]);
        std::panic::catch_unwind(|| maybe_panic("apply")).unwrap_err();
        maybe_panic("apply");
        assert!(pending_panics().is_empty());
    }
}
