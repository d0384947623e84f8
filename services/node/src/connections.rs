//! Which connection of a caller is its latest.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Callers remembered; the oldest connections are forgotten first, which only means that late frames of theirs are
/// read like any other.
const MAX_CALLERS: usize = 4_096;

/// The latest connection of each caller. A newer one ends those before it: what was not read of them is dropped, so
/// that a delayed copy of a command can't arrive after its repeat.
#[derive(Default)]
pub(crate) struct InboundConnections {
    latest: Mutex<HashMap<String, (u64, CancellationToken)>>,
}

impl InboundConnections {
    /// Registers a connection. The token is cancelled when a newer one of the same caller comes.
    ///
    /// # Errors
    /// When a newer one is there already.
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

    /// A connection has ended.
    pub(crate) fn ended(&self, caller: &str, number: u64) {
        let latest = self.latest.lock();
        if let Some((known, token)) = latest.get(caller)
            && *known == number
        {
            // The number stays known, so that an older connection that is still on its way is refused.
            token.cancel();
        }
    }

    /// Ends every connection.
    pub(crate) fn close_all(&self) {
        for (_, token) in self.latest.lock().values() {
            token.cancel();
        }
    }
}
