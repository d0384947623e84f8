//! The latest connection of each caller.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::protocol::Protocol;

/// Who opened a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerId {
    /// A node's id, or an id that a gateway drew at its start.
    pub name: String,
    /// Differs at every start of the process; 0 where the name does.
    pub run: u64,
    /// The rising number of the process's connections.
    pub connection: u64,
}

/// Callers remembered for each protocol. Those whose connections have ended make room first; late frames of one that was
/// removed are then handled like any other.
const MAX_CALLERS: usize = 4_096;

/// The latest connection of each caller. A newer connection closes the earlier one and drops what was not read of it, so
/// that a delayed copy of a request can't arrive after its retry: a caller keeps one connection, so the earlier one is
/// dead even if TCP has not noticed yet.
#[derive(Default)]
pub struct Callers(Mutex<HashMap<&'static str, ProtocolCallers>>);

#[derive(Default)]
struct ProtocolCallers {
    closing: CancellationToken,
    latest: HashMap<String, Latest>,
}

struct Latest {
    /// The process that opened it.
    run: u64,
    number: u64,
    ended: CancellationToken,
}

impl Callers {
    /// Registers a connection. The returned token closes it; cancel it when the connection ends by itself.
    ///
    /// # Errors
    /// When a newer connection of the same process is registered, or too many callers are connected.
    pub(crate) fn register<P: Protocol>(&self, caller: &CallerId) -> Result<CancellationToken, String> {
        let mut protocols = self.0.lock();
        let ProtocolCallers { closing, latest } = protocols.entry(P::NAME).or_default();
        if !P::IS_EXCLUSIVE {
            return Ok(closing.child_token());
        }
        if let Some(known) = latest.get(&caller.name) {
            if known.run == caller.run && known.number >= caller.connection {
                return Err("a newer connection of this caller is open".to_owned());
            }
            known.ended.cancel();
        } else if latest.len() >= MAX_CALLERS {
            latest.retain(|_, known| !known.ended.is_cancelled());
            if latest.len() >= MAX_CALLERS {
                return Err(format!("{MAX_CALLERS} callers are connected, which is the most; stop some of them"));
            }
        }
        let ended = closing.child_token();
        let registered = Latest { run: caller.run, number: caller.connection, ended: ended.clone() };
        latest.insert(caller.name.clone(), registered);
        Ok(ended)
    }

    /// Closes every connection of a protocol, and those that come later.
    pub fn close<P: Protocol>(&self) {
        self.0.lock().entry(P::NAME).or_default().closing.cancel();
    }

    /// Returns true if a connection opened by this run of the caller is open, as far as is known: the run is then alive.
    pub fn is_connected<P: Protocol>(&self, caller: &str, run: u64) -> bool {
        self.connected::<P>(caller, run).is_some()
    }

    /// Waits until no connection of this run of the caller is open.
    pub async fn wait_disconnected<P: Protocol>(&self, caller: &str, run: u64) {
        while let Some(ended) = self.connected::<P>(caller, run) {
            ended.cancelled().await;
        }
    }

    fn connected<P: Protocol>(&self, caller: &str, run: u64) -> Option<CancellationToken> {
        let protocols = self.0.lock();
        let latest = protocols.get(P::NAME)?.latest.get(caller)?;
        (latest.run == run && !latest.ended.is_cancelled()).then(|| latest.ended.clone())
    }
}
