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

/// Returns the signal of this name, with or without `SIG`.
///
/// # Errors
/// For any other text.
pub(crate) fn parse_signal(name: &str) -> Result<Signal, String> {
    let upper = name.to_ascii_uppercase();
    let signal = match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "TERM" => Signal::TERM,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        _ => return Err("it is one of HUP, INT, QUIT, TERM, USR1 and USR2".to_owned()),
    };
    Ok(signal)
}

/// Returns true if a terminal sends the signal to all its foreground processes by itself.
pub(crate) fn is_sent_by_terminals(signal: Signal) -> bool {
    signal == Signal::INT || signal == Signal::QUIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_with_or_without_their_prefix() {
        assert_eq!(parse_signal("SIGUSR1"), Ok(Signal::USR1));
        assert_eq!(parse_signal("term"), Ok(Signal::TERM));
        assert!(parse_signal("KILL").is_err(), "the command could not stop in good order");
    }
}
