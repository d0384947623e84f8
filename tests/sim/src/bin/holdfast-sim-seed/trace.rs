//! A digest over every packet of a run.

use std::fmt::{Debug, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Packets as the simulated network reports them.
const TARGET: &str = "turmoil";

/// Sees all packets go by. Two runs with the same digest sent the same bytes in the same order.
#[derive(Clone, Default)]
pub(crate) struct PacketDigest {
    state: Arc<Mutex<DigestState>>,
}

#[derive(Default)]
struct DigestState {
    hasher: Sha256,
    events: u64,
}

impl PacketDigest {
    /// The digest so far, and the number of its events.
    pub(crate) fn finish(&self) -> (String, u64) {
        let seen = self.state.lock();
        (hex::encode(seen.hasher.clone().finalize()), seen.events)
    }
}

struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{}={value:?};", field.name());
    }
}

impl<S: Subscriber> Layer<S> for PacketDigest {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != TARGET {
            return;
        }
        let mut text = EventText(String::new());
        event.record(&mut text);
        let mut seen = self.state.lock();
        seen.hasher.update(text.0);
        seen.events += 1;
    }
}
