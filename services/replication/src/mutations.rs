//! A mutation of replication that needs a state; see `holdfast_mutations`. Without the enabled build feature it has no
//! effect.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;

use crate::reply_sinks::ReplySinks;
use crate::types::Entry;

/// Where the replies of proposed entries go, by their indexes. Truncated entries stay listed.
#[derive(Default)]
pub(crate) struct SinksByIndex(BTreeMap<u64, Arc<ReplySinks>>);

impl SinksByIndex {
    /// Lists the sinks of an entry, or gives it those that are listed.
    pub(crate) fn bind(&mut self, entry: &mut Entry) {
        if !is_enabled(Mutation::SinkByIndex) {
            return;
        }
        let index = entry.log_id().index;
        let EntryPayload::Normal(data) = &mut entry.payload else { return };
        match &data.replies {
            Some(sinks) => _ = self.0.insert(index, Arc::clone(sinks)),
            None => data.replies = self.0.get(&index).cloned(),
        }
    }
}
