//! Forwards requests to release to the client of a session.

use holdfast_api::session_message::ServerMessage;
use holdfast_types::{AskedHold, AskedHolds};

use super::channel::CloseReason;
use super::client_command::InFlightBatch;
use super::connection::SessionConnection;

/// Bytes of such requests that wait for the reply to a command in flight, which may add the holds. Beyond them, the
/// connection queries the requests to release.
const MAX_DEFERRED_BYTES: usize = 256 * 1_024;
/// Bytes that a hold of such a request counts as, without its texts.
const HOLD_OVERHEAD: usize = 96;

/// The requests that wait for a reply.
#[derive(Debug, Default)]
pub(super) struct DeferredAsks {
    asks: Vec<AskedHolds>,
    bytes: usize,
    /// Whether some did not fit.
    has_missed: bool,
}

impl DeferredAsks {
    /// Keeps a request. After a request did not fit, none is kept: a query returns all.
    pub(super) fn push(&mut self, asked: AskedHolds) {
        let bytes = asked_bytes(&asked);
        if self.has_missed || self.bytes + bytes > MAX_DEFERRED_BYTES {
            *self = Self { has_missed: true, ..Self::default() };
            return;
        }
        self.bytes += bytes;
        self.asks.push(asked);
    }
}

impl SessionConnection<'_> {
    /// Handles a request to release holds. One about holds that the command in flight may add waits for its reply.
    pub(super) async fn on_ask(&mut self, asked: AskedHolds) -> Result<(), CloseReason> {
        if self.in_flight.as_ref().is_some_and(InFlightBatch::may_add_holds) {
            self.deferred_asks.push(asked);
            return Ok(());
        }
        self.send_asked(vec![asked]).await
    }

    /// Tells of the requests that waited for the reply to a command.
    pub(super) async fn send_deferred_asks(&mut self) -> Result<(), CloseReason> {
        let DeferredAsks { asks, has_missed, .. } = std::mem::take(&mut self.deferred_asks);
        if has_missed {
            self.queue_reconciliation();
        }
        self.send_asked(asks).await
    }

    /// Sends the client the requests to release its holds. Unread messages wait here, as other messages do.
    pub(super) async fn send_asked(&mut self, asks: Vec<AskedHolds>) -> Result<(), CloseReason> {
        if self.outgoing.is_closed() {
            self.on_client_gone();
            return Ok(());
        }
        for AskedHolds { kind, request, holds } in asks {
            for AskedHold { path, fencing_token, request_id } in holds {
                // It was released or lost meanwhile.
                let is_held = match &request_id {
                    Some(request_id) => {
                        self.permits.hold(request_id).is_some_and(|hold| hold.fencing_token == fencing_token)
                    }
                    None => self.requests.holds(&path, fencing_token),
                };
                if !is_held {
                    continue;
                }
                let message = ServerMessage::ReleaseRequested {
                    request_id,
                    kind,
                    path: path.0,
                    fencing_token,
                    by: request.by.clone(),
                    reason: request.reason.clone(),
                    within_ms: request.within_ms,
                    force: request.force,
                };
                self.send(message).await?;
            }
        }
        Ok(())
    }
}

fn asked_bytes(asked: &AskedHolds) -> usize {
    let hold = |hold: &AskedHold| {
        let segments = hold.path.0.iter().map(|segment| size_of::<String>() + segment.len());
        HOLD_OVERHEAD + hold.request_id.as_ref().map_or(0, String::len) + segments.sum::<usize>()
    };
    let texts = asked.request.by.len() + asked.request.reason.len();
    size_of::<AskedHolds>() + texts + asked.holds.iter().map(hold).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Kind, Path, ReleaseRequest};

    use super::*;

    fn asked_holds(holds: u64, path: &str) -> AskedHolds {
        let request = ReleaseRequest {
            by: "k".into(),
            reason: "deploy".into(),
            within_ms: Some(1_000),
            asked_at_ms: 0,
            until_ms: None,
            force: false,
        };
        let hold = |fencing_token| AskedHold { path: Path::flat(path), fencing_token, request_id: None };
        AskedHolds { kind: Kind::Lock, request, holds: (0..holds).map(hold).collect() }
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_never_forgotten_in_part() {
        let mut deferred = DeferredAsks::default();
        let many = 2 * MAX_DEFERRED_BYTES / HOLD_OVERHEAD / 10;
        (0..4).for_each(|_| deferred.push(asked_holds(many as u64, "l")));
        assert!(deferred.has_missed && deferred.asks.is_empty() && deferred.bytes == 0);
        deferred.push(asked_holds(1, "l"));
        assert!(deferred.asks.is_empty(), "the query tells of it too");
        let mut long = DeferredAsks::default();
        long.push(asked_holds(1, &"x".repeat(MAX_DEFERRED_BYTES)));
        assert!(long.has_missed);
    }
}
