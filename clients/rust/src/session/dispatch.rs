//! Dispatches messages from the service.

use std::sync::Arc;

use holdfast_proto::v1::server_message::{self as server, Message as Says};

use super::inner::SessionInner;
use crate::error::{EndReason, LossReason};
use crate::view::{Path, ReleaseRequest};

/// The remaining action for a message.
pub(super) enum Dispatched {
    Done,
    /// A keep-alive may not have been accepted.
    KeepAliveFailed,
    Ended(EndReason),
}

pub(super) fn handle_message(shared: &Arc<SessionInner>, says: Says) -> Dispatched {
    match says {
        Says::State(state) => shared.update_table(|table| table.on_state(state)),
        Says::Refused(refused) => shared.update_table(|table| table.on_refused(refused)),
        Says::Revoked(revoked) => {
            let reason = loss_reason(&revoked);
            let path = Path(revoked.path);
            shared.update_table(|table| table.on_revoked(&path, revoked.fencing_token, &reason));
        }
        Says::ReleaseRequested(asked) => {
            let request_id = asked.request_id.clone();
            let request = ReleaseRequest::from(asked);
            shared.update_table(|table| table.on_release_requested(request_id.as_deref(), request));
        }
        Says::Signalled(signalled) => shared.update_table(|table| table.on_signalled(&signalled)),
        Says::Error(server::Error { request_id: Some(request_id), code, detail }) => {
            tracing::debug!(request_id, code, detail, "a request was not answered, and is repeated");
            shared.update_table(|table| table.on_error(&request_id, &code, &detail));
        }
        Says::Error(server::Error { request_id: None, code, detail }) => {
            tracing::debug!(code, detail, "something was not done");
            return Dispatched::KeepAliveFailed;
        }
        Says::SessionEnded(ended) => return Dispatched::Ended(end_reason(&ended)),
        Says::Tripped(tripped) => shared.update_table(|table| {
            table.on_tripped(tripped);
            Vec::new()
        }),
        // This client counts down by single calls.
        Says::Opened(_) | Says::KeptAlive(_) | Says::Counted(_) => {}
    }
    Dispatched::Done
}

fn loss_reason(revoked: &server::Revoked) -> LossReason {
    use server::revoked::Reason;
    match revoked.reason() {
        Reason::Expired => LossReason::Expired,
        Reason::Deleted => LossReason::Deleted,
        Reason::Reset => LossReason::Reset,
        Reason::Duplicate | Reason::Unspecified => {
            LossReason::Duplicate(revoked.current_owner.clone().map(|owner| Box::new(owner.into())))
        }
    }
}

fn end_reason(ended: &server::SessionEnded) -> EndReason {
    use server::session_ended::Reason;
    match ended.reason() {
        Reason::Closed => EndReason::Closed,
        Reason::Expired | Reason::Unspecified => EndReason::Expired,
        Reason::Reset => EndReason::Reset,
        Reason::NamespaceDeleted => EndReason::NamespaceDeleted,
        Reason::Superseded => EndReason::Superseded,
    }
}
