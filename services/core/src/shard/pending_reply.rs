//! Replies to queries whose views are made when the state is no longer needed.

use crate::Reply;
use crate::audit::AuditPage;
use crate::locks::BegunQuery;

/// The part of a query's reply that depends on the state.
#[derive(Debug)]
pub struct PendingReply(Pending);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "each is passed on once, and a box for each would cost more")]
enum Pending {
    Done(Reply),
    Locks(u64, BegunQuery),
    Audit(u64, AuditPage),
}

impl PendingReply {
    /// Completes the reply.
    pub fn finish(self) -> Reply {
        let (clock_ms, response) = match self.0 {
            Pending::Done(reply) => return reply,
            Pending::Locks(clock_ms, begun) => (clock_ms, begun.response()),
            Pending::Audit(clock_ms, page) => (clock_ms, page.response()),
        };
        Reply { outcome: Ok(response), clock_ms, awaits: None }
    }

    /// Returns the reply to a query of a locks shard that has begun.
    pub(crate) fn of_locks(clock_ms: u64, begun: BegunQuery) -> Self {
        Self(Pending::Locks(clock_ms, begun))
    }

    /// Returns the reply to a query of an audit log.
    pub(super) fn of_audit(clock_ms: u64, page: AuditPage) -> Self {
        Self(Pending::Audit(clock_ms, page))
    }
}

impl From<Reply> for PendingReply {
    fn from(reply: Reply) -> Self {
        Self(Pending::Done(reply))
    }
}
