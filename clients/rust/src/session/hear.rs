//! What the service says on a connection.

use std::sync::Arc;

use holdfast_proto::v1::server_message::{self as server, Message as Says};

use super::shared::Shared;
use crate::error::{EndReason, LossReason};
use crate::view::Path;

/// What is left to do about a message.
pub(super) enum Heard {
    Done,
    /// A sign of life may not have been taken.
    NotTaken,
    Ended(EndReason),
}

pub(super) fn hear(shared: &Arc<Shared>, says: Says) -> Heard {
    match says {
        Says::State(state) => shared.heard(|table| table.told_state(state)),
        Says::Refused(refused) => shared.heard(|table| table.told_refused(refused)),
        Says::Revoked(revoked) => {
            let reason = loss(&revoked);
            let path = Path(revoked.path);
            shared.heard(|table| table.told_revoked(&path, &reason));
        }
        Says::Error(server::Error { request_id: Some(request_id), code, detail }) => {
            tracing::debug!(request_id, code, detail, "a request was not answered, and is repeated");
            shared.heard(|table| {
                table.told_error(&request_id);
                Vec::new()
            });
        }
        Says::Error(server::Error { request_id: None, code, detail }) => {
            tracing::debug!(code, detail, "something was not done");
            return Heard::NotTaken;
        }
        Says::SessionEnded(ended) => return Heard::Ended(end(&ended)),
        Says::Opened(_) | Says::KeptAlive(_) => {}
    }
    Heard::Done
}

fn loss(revoked: &server::Revoked) -> LossReason {
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

fn end(ended: &server::SessionEnded) -> EndReason {
    use server::session_ended::Reason;
    match ended.reason() {
        Reason::Closed => EndReason::Closed,
        Reason::Expired | Reason::Unspecified => EndReason::Expired,
        Reason::Reset => EndReason::Reset,
        Reason::NamespaceDeleted => EndReason::NamespaceDeleted,
        Reason::Superseded => EndReason::Superseded,
    }
}
