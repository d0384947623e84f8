//! Refuses what a namespace whose locks are in the memory of a leader does not have, before anything is sent.

use holdfast_proto::v1::Durability;

use super::{LockRequest, RequestTable};
use crate::error::{Error, Result};

impl RequestTable {
    /// Creates the table of a session in a namespace of this durability. That never changes, so what the service said
    /// when it opened the session is true on all later connections. Of a durability that it did not name, it answers
    /// itself what is not supported.
    pub(crate) fn new(durability: Durability) -> Self {
        Self { durability, ..Self::default() }
    }

    /// Checks that the namespace has what a request asks for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the first kind or field that it does not have.
    pub(super) fn check_request(&self, request: &LockRequest) -> Result<()> {
        let kind = request.permits.as_ref().map(|terms| terms.wanted.kind());
        let at_least = (request.at_least_ms > 0).then_some("at_least_ms");
        let transition = (request.transition_ms > 0).then_some("transition_ms");
        kind.or(at_least).or(transition).map_or(Ok(()), |what| self.check_supported(what))
    }

    /// Checks that the namespace has what is only in one whose locks are in the log.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with this name.
    pub(super) fn check_supported(&self, what: &'static str) -> Result<()> {
        match self.durability {
            Durability::Session => Err(Error::Unsupported(what)),
            Durability::Full | Durability::Unspecified => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{acquired, request, sent};
    use super::super::{ArrivalRequest, AwaitTerms, PermitTerms, WantedPermits};
    use super::*;
    use crate::view::Mode;

    fn lock() -> LockRequest {
        request("a", "x", Mode::Write)
    }

    fn permits(wanted: WantedPermits) -> LockRequest {
        LockRequest::of_permits("a".into(), "x".into(), PermitTerms { wanted, priority: 0 }, 0)
    }

    fn arrival() -> ArrivalRequest {
        ArrivalRequest { owner: "a".into(), path: "b".into(), generation: None, parties: Some(2), is_double: false }
    }

    /// Requests that such a namespace refuses, and for what.
    fn unsupported() -> [(LockRequest, &'static str); 5] {
        [
            (LockRequest { at_least_ms: 1, ..lock() }, "at_least_ms"),
            (LockRequest { transition_ms: 1, ..lock() }, "transition_ms"),
            (permits(WantedPermits::Permits { weight: 1, permits: Some(2) }), "semaphore"),
            (permits(WantedPermits::Members { count: 1, prefer: None }), "pool"),
            (permits(WantedPermits::Member("m".into())), "pool"),
        ]
    }

    #[test]
    fn what_there_is_not_is_refused_by_its_name_and_not_sent() {
        let mut table = RequestTable::new(Durability::Session);
        for (request, field) in unsupported() {
            assert_eq!(table.request(request.clone(), 1).unwrap_err(), Error::Unsupported(field));
            // Not on another connection either, nor for somebody who would share a hold.
            table.lock_info();
            let again = LockRequest { reentrant: true, only_try: true, ..request };
            assert_eq!(table.request(again, 1).unwrap_err(), Error::Unsupported(field));
        }
        assert_eq!(table.arrive(arrival()).unwrap_err(), Error::Unsupported("barrier"));
        assert_eq!((table.len(), table.bytes, table.has_outgoing()), (0, 0, false));
        table.request(lock(), 1).unwrap();
        assert_eq!(sent(&mut table), ["lock r1"]);
    }

    #[test]
    fn a_lock_that_has_no_conditions_stays_held() {
        let mut table = RequestTable::new(Durability::Session);
        let (no, _) = table.request(lock(), 1).unwrap();
        sent(&mut table);
        table.on_state(acquired("r1", 5));
        let terms = AwaitTerms { condition: "c".into(), wait_ms: None };
        assert_eq!(table.await_condition(no, terms, 2).unwrap_err(), Error::Unsupported("condition"));
        assert_eq!(table.signal(no, "c".into(), false, 3), Err(Error::Unsupported("condition")));
        assert!(!table.has_outgoing());
        assert_eq!(table.lock_info()[0].held.len(), 1);
    }

    #[test]
    fn where_locks_are_in_the_log_or_the_service_does_not_say_all_is_sent() {
        for durability in [Durability::Full, Durability::Unspecified] {
            for (request, field) in unsupported() {
                let mut table = RequestTable::new(durability);
                assert!(table.request(request, 1).is_ok() && table.has_outgoing(), "{field}");
            }
            assert!(RequestTable::new(durability).arrive(arrival()).is_ok());
        }
    }
}
