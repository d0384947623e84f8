//! One semaphore or one pool: what it has, who holds some of that, and who waits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::item::{PermitHold, PermitWait, QueueRank};
use super::members::Members;
use crate::chunked_set::ChunkedSet;
use crate::metadata::EncodedMetadata;
use crate::{CommandError, FencingToken, Reason, Revision, Wanted};

/// A semaphore or a pool. Shared with snapshots in progress.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) stock: Stock,
    pub(super) description: String,
    pub(super) metadata: EncodedMetadata,
    /// The revision of its last change.
    pub(super) revision: Revision,
    /// The revision at which its deletion began.
    pub(super) deleting: Option<Revision>,
    /// The permits or members of all holds.
    pub(super) in_use: u64,
    pub(super) holds: BTreeMap<FencingToken, Arc<PermitHold>>,
    /// The holds by weight, and then the earlier first, from the end.
    pub(super) heaviest: BTreeSet<(u64, Reverse<FencingToken>)>,
    pub(super) queue: BTreeMap<QueueRank, Arc<PermitWait>>,
    /// The ranks of the queue, in which those before one are counted.
    pub(super) ranks: ChunkedSet<QueueRank, QueueRank>,
    /// The waiting requests by weight, but for those for a member by its name.
    pub(super) weights: BTreeSet<(u64, QueueRank)>,
}

/// What a semaphore or a pool gives out.
#[derive(Clone, Debug)]
pub(super) enum Stock {
    /// Of a semaphore.
    Units {
        permits: u64,
        /// If not, it is gone with its last hold and wait.
        is_configured: bool,
    },
    /// Of a pool.
    Members(Members),
}

impl Source {
    pub(super) fn new(stock: Stock, revision: Revision) -> Self {
        Self {
            stock,
            description: String::new(),
            metadata: EncodedMetadata::default(),
            revision,
            deleting: None,
            in_use: 0,
            holds: BTreeMap::new(),
            heaviest: BTreeSet::new(),
            queue: BTreeMap::new(),
            ranks: ChunkedSet::default(),
            weights: BTreeSet::new(),
        }
    }

    pub(super) fn is_configured(&self) -> bool {
        match self.stock {
            Stock::Units { is_configured, .. } => is_configured,
            Stock::Members(_) => true,
        }
    }

    pub(super) fn members(&self) -> Option<&Members> {
        if let Stock::Members(members) = &self.stock { Some(members) } else { None }
    }

    pub(super) fn members_mut(&mut self) -> Option<&mut Members> {
        if let Stock::Members(members) = &mut self.stock { Some(members) } else { None }
    }

    /// Returns the token of the hold that has a member.
    pub(super) fn holder_of(&self, member: &str) -> Option<FencingToken> {
        self.members()?.get(member)?.hold
    }

    /// Adds a waiting request to what is known of the queue, or removes one.
    pub(super) fn record_wait(&mut self, wanted: &Wanted, rank: QueueRank, waits: bool) {
        if waits {
            self.ranks.add(rank);
        } else {
            self.ranks.take(rank);
        }
        match (wanted, waits) {
            (Wanted::Member(_), _) => {}
            (_, true) => _ = self.weights.insert((wanted.weight(), rank)),
            (_, false) => _ = self.weights.remove(&(wanted.weight(), rank)),
        }
        if let Some(members) = self.members_mut() {
            members.record_wait(wanted, rank, waits);
        }
    }

    /// Returns whether so many more permits of a semaphore are free.
    pub(super) fn has_free(&self, more: u64) -> bool {
        match self.stock {
            Stock::Units { permits, .. } => permits > 0 && self.in_use.saturating_add(more) <= permits,
            Stock::Members(_) => false,
        }
    }

    /// Returns whether what is wanted is free.
    pub(super) fn fits(&self, wanted: &Wanted) -> bool {
        match &self.stock {
            Stock::Units { .. } => self.has_free(wanted.weight()),
            Stock::Members(members) => members.fits(wanted),
        }
    }

    /// Returns whether a new request of that priority would overtake nobody.
    pub(super) fn is_first(&self, wanted: &Wanted, priority: u8) -> bool {
        match &self.stock {
            Stock::Units { .. } => {
                let first = self.queue.first_key_value();
                first.is_none_or(|(rank, _)| !rank.precedes(priority)) || is_enabled(Mutation::SemOvertake)
            }
            Stock::Members(members) => members.is_first(wanted, priority),
        }
    }

    /// Returns why nobody could ever be granted that, if so. While a semaphore has no permits, no request needs too
    /// many.
    pub(super) fn impossible(&self, wanted: &Wanted) -> Option<Reason> {
        match &self.stock {
            Stock::Units { permits, .. } => (*permits > 0 && wanted.weight() > *permits).then_some(Reason::TooLarge),
            Stock::Members(members) => members.impossible(wanted),
        }
    }

    /// Returns why a new request is not granted.
    pub(super) fn reason(&self, wanted: &Wanted) -> Reason {
        match &self.stock {
            Stock::Units { .. } => self.reason_for_more(wanted, wanted.weight()),
            Stock::Members(members) => members.reason(wanted),
        }
    }

    /// Returns why a request is not granted that needs so many more permits of a semaphore than it has.
    pub(super) fn reason_for_more(&self, wanted: &Wanted, more: u64) -> Reason {
        let otherwise = if self.has_free(more) { Reason::Queued } else { Reason::Exhausted };
        self.impossible(wanted).unwrap_or(otherwise)
    }

    /// Returns a waiting request that can't be granted any more, and why.
    pub(super) fn first_impossible(&self) -> Option<(QueueRank, Reason)> {
        let heaviest = self.weights.last().filter(|_| !is_enabled(Mutation::SemShrinkStuck));
        let heaviest = heaviest.and_then(|(_, rank)| {
            let reason = self.impossible(&self.queue.get(rank)?.wanted)?;
            Some((*rank, reason))
        });
        let gone = || self.members()?.first_gone().map(|rank| (rank, Reason::NoMember));
        heaviest.or_else(gone)
    }

    /// Returns the waiting requests that may be next, and whether what each wants is free. Nobody after the first that
    /// it does not apply to is granted.
    pub(super) fn candidates(&self) -> impl Iterator<Item = (QueueRank, &PermitWait, bool)> {
        let ranks = match &self.stock {
            Stock::Units { .. } => [self.queue.first_key_value().map(|(rank, _)| *rank), None],
            Stock::Members(members) => {
                let (counting, ready) = members.first_waits();
                [ready, counting]
            }
        };
        ranks.into_iter().flatten().filter_map(|rank| {
            let wait = self.queue.get(&rank)?;
            Some((rank, wait.as_ref(), self.fits(&wait.wanted)))
        })
    }

    /// Returns whether its queue has somebody to grant or to refuse something.
    pub(super) fn is_unsettled(&self) -> bool {
        let fits = self.candidates().any(|(_, _, fits)| fits);
        self.deleting.is_none() && (fits || self.first_impossible().is_some())
    }

    /// Rejects another number of permits than that of a semaphore that was not configured.
    pub(super) fn check_figure(&self, wanted: &Wanted) -> Result<(), CommandError> {
        if let (Stock::Units { permits, is_configured: false }, Wanted::Permits { permits: Some(figure), .. }) =
            (&self.stock, wanted)
            && figure != permits
        {
            let text = format!("permits: the semaphore has {permits}; configure it to change that");
            return Err(CommandError::InvalidArgument(text));
        }
        Ok(())
    }
}
