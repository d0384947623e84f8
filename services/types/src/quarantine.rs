//! What an operator leaves out of the history of a shard that can't apply it.

use serde::{Deserialize, Serialize};

use super::NamespaceRef;

/// What every replica leaves out from a certain entry of the log on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftOut {
    /// The command at this position in the section of the entry, counted from 0. It has no effect.
    Command(u32),
    /// A namespace, from before the entry on: it stands still, and refuses everything but its deletion.
    Namespace(NamespaceRef),
}
