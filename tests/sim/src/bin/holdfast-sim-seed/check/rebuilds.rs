//! A new leader of locks in memory waits no longer than sessions of before can live, and their transitions last.
//!
//! Who was reported to it is in its memory alone. So the log says of sessions that have ended when they hold nothing any
//! more; of those that live on, clients find that their leader grants (`client/soft.rs`).

use std::collections::BTreeMap;

use holdfast_core::shard::ShardState;
use holdfast_core::{NamespaceRef, Query, Response, Revision};

use crate::client::{MAX_SOFT_LIFE, SOFT_NAMESPACE};

/// How long the end of a session takes to be written, once it is due. It is proposed as other entries are.
const MAX_DELAY_MS: u64 = 2_000;

/// The wait of one table for sessions that have ended.
#[derive(Debug, Clone, Copy)]
struct Rebuild {
    epoch: Revision,
    /// The shard clock since which some of them are in transition.
    since_ms: u64,
    ended: u64,
    /// The shard clock of the first entry after which it should have ended.
    overdue_ms: Option<u64>,
}

/// The rebuilds of a shard.
#[derive(Debug, Default)]
pub(super) struct Rebuilds(BTreeMap<NamespaceRef, Rebuild>);

impl Rebuilds {
    /// After each entry. One that is written while a rebuild is overdue may have been under way, another one later on
    /// comes of a leader that writes, and has not ended what is due.
    pub(super) fn check(
        &mut self,
        core: &ShardState,
        open: impl Iterator<Item = NamespaceRef>,
        find: &mut dyn FnMut(String),
    ) {
        let clock_ms = core.clock_ms();
        for namespace in open.filter(|namespace| namespace.name == SOFT_NAMESPACE) {
            let query = Query::TableState { namespace: namespace.clone() };
            let Ok(Response::TableState(state)) = core.query(clock_ms, &query).outcome else { continue };
            let is_earlier = |number: u64, of: &NamespaceRef| *of == namespace && number < state.epoch;
            let living =
                core.sessions().filter(|session| is_earlier(session.number, &session.namespace)).count() as u64;
            let ended = state.missing.saturating_sub(living);
            let known = self.0.get(&namespace).copied();
            // Another one has ended since, or the first ones are gone: the time of the rest counts anew.
            let known = known.filter(|known| known.epoch == state.epoch && known.ended == ended);
            if ended == 0 {
                self.0.remove(&namespace);
                continue;
            }
            let new = Rebuild { epoch: state.epoch, since_ms: clock_ms, ended, overdue_ms: None };
            let mut rebuild = known.unwrap_or(new);
            let longest_ms = u64::try_from(MAX_SOFT_LIFE.as_millis()).unwrap_or(u64::MAX);
            if clock_ms > rebuild.since_ms.saturating_add(longest_ms) {
                let overdue_ms = *rebuild.overdue_ms.get_or_insert(clock_ms);
                if clock_ms > overdue_ms.saturating_add(MAX_DELAY_MS) {
                    find(format!("[a rebuild ends] at {clock_ms}, {rebuild:?} still waits: {state:?}"));
                }
            }
            self.0.insert(namespace, rebuild);
        }
    }
}
