//! Signals to this process.

use anyhow::Result;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The forwarded signals. At a terminal the first two reach the command by themselves.
const FORWARDED: [Signal; 6] = [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];

/// Signals, in order of arrival. Once the first value exists, none of them ends this process.
pub(crate) struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    pub(crate) fn listen() -> Result<Self> {
        let (to, from) = mpsc::channel(FORWARDED.len());
        for kind in FORWARDED {
            let mut signals = signal(SignalKind::from_raw(kind.as_raw()))?;
            let to = to.clone();
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    if to.send(kind).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self(from))
    }

    pub(crate) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

/// Returns true if a terminal sends the signal to all its foreground processes by itself.
pub(crate) fn is_sent_by_terminals(signal: Signal) -> bool {
    signal == Signal::INT || signal == Signal::QUIT
}
