//! Tracks the latest connection of each caller.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Callers remembered. Those with the oldest connections are evicted first; late frames of an evicted caller are then
/// handled like any other.
const MAX_CALLERS: usize = 4_096;

/// The latest connection of each caller. A newer connection closes earlier ones and drops their unread frames, so that
/// a delayed copy of a command can't arrive after its retry.
#[derive(Default)]
pub(crate) struct InboundConnections {
    latest: Mutex<HashMap<String, (u64, CancellationToken)>>,
}

impl InboundConnections {
    /// Registers a connection. A newer connection of the same caller cancels the token.
    ///
    /// # Errors
    /// When a newer one is already registered.
    pub(crate) fn register(&self, caller: &str, number: u64) -> Result<CancellationToken, &'static str> {
        let mut latest = self.latest.lock();
        if let Some((known, token)) = latest.get(caller) {
            if *known >= number {
                return Err("a newer connection of this caller is open");
            }
            token.cancel();
        } else if latest.len() >= MAX_CALLERS {
            latest.retain(|_, (_, token)| !token.is_cancelled());
            if latest.len() >= MAX_CALLERS {
                return Err("too many callers are connected");
            }
        }
        let token = CancellationToken::new();
        latest.insert(caller.to_owned(), (number, token.clone()));
        Ok(token)
    }

    /// Records the end of a connection.
    pub(crate) fn ended(&self, caller: &str, number: u64) {
        let latest = self.latest.lock();
        if let Some((known, token)) = latest.get(caller)
            && *known == number
        {
            // The number is kept, so that an older connection that arrives late is rejected.
            token.cancel();
        }
    }

    /// Closes every connection.
    pub(crate) fn close_all(&self) {
        for (_, token) in self.latest.lock().values() {
            token.cancel();
        }
    }
}
