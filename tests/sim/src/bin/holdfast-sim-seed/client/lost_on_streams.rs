//! Answers on the connections of sessions that are lost at any point. The connection to the node ends, or the client
//! leaves its connection, or the gateway ends; the client resumes its session and repeats what has no answer.

use holdfast_core::Path;

use super::Client;
use super::lost_answers::HeldBefore;
use super::stream_gateway::StreamGateway;
use super::streamed_signals::AwaitEnd;
use crate::lost_messages::Loss;
use crate::world::Tenant;

/// Messages that are sent together; each group has its own to lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamGroup {
    /// Two await a condition, and a third one signals it.
    Signals,
    /// Two await a condition, and the first one ends while it is signalled.
    EndOfAwait(AwaitEnd),
    /// Something passes from one session to another.
    Holds(HeldBefore),
    /// Two report jobs to a latch.
    Latch,
    /// Two meet, and then one leaves.
    Barrier,
}

const GROUPS: [StreamGroup; 10] = [
    StreamGroup::Signals,
    StreamGroup::EndOfAwait(AwaitEnd::Unheard),
    StreamGroup::EndOfAwait(AwaitEnd::Close),
    StreamGroup::EndOfAwait(AwaitEnd::ReleaseAll),
    StreamGroup::EndOfAwait(AwaitEnd::Forget),
    StreamGroup::Holds(HeldBefore::Lock),
    StreamGroup::Holds(HeldBefore::Permits),
    StreamGroup::Holds(HeldBefore::Members),
    StreamGroup::Latch,
    StreamGroup::Barrier,
];

/// Returns the group of a seed with each way to lose its messages: all groups would take many minutes.
pub(super) fn stream_groups(seed: u64) -> impl Iterator<Item = (Loss, StreamGroup)> {
    let group = GROUPS[(seed % GROUPS.len() as u64) as usize];
    [Loss::Cut, Loss::Leave, Loss::Fall].into_iter().map(move |loss| (loss, group))
}

impl Client {
    /// Sends the messages of a group, on sessions that end with it.
    pub(super) async fn use_streams(&self, gateway: &StreamGateway, tenant: &Tenant, path: &Path, group: StreamGroup) {
        match group {
            StreamGroup::Signals => self.signal_each_on_streams(gateway, tenant, path).await,
            StreamGroup::EndOfAwait(end) => self.end_await_on_stream(gateway, tenant, path, end).await,
            StreamGroup::Holds(held) => self.hand_over_on_streams(gateway, tenant, path, held).await,
            StreamGroup::Latch => self.count_down_on_streams(gateway, tenant, path).await,
            StreamGroup::Barrier => self.meet_on_streams(gateway, tenant, path).await,
        }
    }
}
