//! The state that every shard has, whatever its application: its clock, its revision, its outbox and its inbox.

use std::sync::Arc;

use holdfast_primitives::chunks;
use holdfast_primitives::kit::{REVISION_LIMIT, next_revision};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Application;
use crate::audit::AuditLog;
use crate::codec::DecodeError;
use crate::outbox::{Inbox, Outbox, OutboxMessage};
use crate::recent_by_account::Capacity;
use crate::{AccountId, AuditRecord, Bounds, CommandError, EntryContext, Response, Revision, Rules};

/// The result of a command: a response and the number that it awaits, or an error.
pub(crate) type CommandResult = Result<(Response, Option<u64>), CommandError>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardCommon {
    pub(crate) id: String,
    pub(crate) clock_ms: u64,
    pub(crate) revision: Revision,
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
    pub(crate) audit: AuditLog,
    pub(crate) bounds: Arc<Bounds>,
    /// Whether the bounds are a test's own, so that rules do not change them.
    has_own_bounds: bool,
}

/// A snapshot item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CommonItem {
    Header {
        application: Application,
        shard_id: String,
        clock_ms: u64,
        revision: Revision,
        next_number: u64,
    },
    Inbox {
        source: String,
        number: u64,
    },
    OutboxMessage {
        number: u64,
        message: Box<OutboxMessage>,
    },
    /// In order of number.
    Audit(Box<AuditRecord>),
    /// Directly after the header, if they differ from the bounds of the first rules.
    Bounds(Box<Bounds>),
}

impl ShardCommon {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            clock_ms: 0,
            revision: 0,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            audit: AuditLog::default(),
            bounds: Arc::new(Bounds::of(Rules::ONE)),
            has_own_bounds: false,
        }
    }

    pub(crate) fn with_bounds(id: &str, bounds: Bounds) -> Self {
        Self { bounds: Arc::new(bounds), has_own_bounds: true, ..Self::new(id) }
    }

    /// Returns the state of the same shard before its first entry.
    pub(crate) fn empty(&self) -> Self {
        Self { bounds: Arc::clone(&self.bounds), has_own_bounds: self.has_own_bounds, ..Self::new(&self.id) }
    }

    /// Applies the context of an entry. The clock never goes back, whatever a new leader's clock is. The bounds become
    /// those of the entry's rules.
    pub(crate) fn advance(&mut self, context: &EntryContext) {
        self.clock_ms = self.clock_ms.max(context.now_ms);
        let bounds = Bounds::shared(context.rules);
        if !self.has_own_bounds && !Arc::ptr_eq(&self.bounds, bounds) {
            self.bounds = Arc::clone(bounds);
        }
    }

    /// Returns how many creations are cached, and how many deleted keys.
    pub(crate) fn cache_capacity(&self) -> Capacity {
        Capacity { per_account: self.bounds.cached_creations_per_account, total: self.bounds.cached_creations }
    }

    /// Rejects new work on an account with too many pending messages.
    pub(crate) fn check_outbox(&self, account: AccountId) -> Result<(), CommandError> {
        self.outbox.check_capacity(account, self.bounds.pending_messages_per_account)
    }

    /// Returns a new revision.
    pub(crate) fn next_revision(&mut self) -> Revision {
        next_revision(&mut self.revision)
    }

    /// Raises the revision by a number of changes without individual events.
    pub(crate) fn raise_revision(&mut self, changes: u64) {
        self.revision = self.revision.checked_add(changes).expect("a shard makes far fewer than 2^64 changes");
    }

    /// Returns the snapshot items, the header first.
    pub(crate) fn items(&self, application: Application) -> impl Iterator<Item = CommonItem> {
        let head = CommonItem::Header {
            application,
            shard_id: self.id.clone(),
            clock_ms: self.clock_ms,
            revision: self.revision,
            next_number: self.outbox.raw_next_number(),
        };
        let inbox = self.inbox.iter().map(|(source, number)| CommonItem::Inbox { source: source.clone(), number });
        let outbox = self.outbox.messages().iter();
        let outbox = outbox
            .map(|(number, message)| CommonItem::OutboxMessage { number: *number, message: Box::new(message.clone()) });
        let audit = self.audit.iter().map(|record| CommonItem::Audit(Box::new(record.clone())));
        let named =
            (*self.bounds != Bounds::of(Rules::ONE)).then(|| CommonItem::Bounds(Box::new(Bounds::clone(&self.bounds))));
        std::iter::once(head).chain(named).chain(inbox).chain(outbox).chain(audit)
    }

    /// Restores a snapshot item into a new state.
    pub(crate) fn restore(&mut self, application: Application, item: CommonItem) -> Result<(), DecodeError> {
        match item {
            CommonItem::Header { application: theirs, shard_id, clock_ms, revision, next_number } => {
                if theirs != application || shard_id != self.id {
                    return Err(DecodeError::Snapshot("it is of another shard"));
                }
                if revision >= REVISION_LIMIT || next_number >= REVISION_LIMIT {
                    return Err(DecodeError::Snapshot("it is of a revision that no shard can reach"));
                }
                self.clock_ms = clock_ms;
                self.revision = revision;
                self.outbox.restore_next_number(next_number);
            }
            CommonItem::Inbox { source, number } => {
                if !self.inbox.accept(&source, number) {
                    return Err(DecodeError::Snapshot("a sender comes twice"));
                }
            }
            CommonItem::OutboxMessage { number, message } => {
                if !self.outbox.restore_message(number, *message) {
                    return Err(DecodeError::Snapshot("a message has a number that was never given"));
                }
            }
            CommonItem::Audit(record) => {
                if !self.audit.restore(*record, &self.bounds) {
                    return Err(DecodeError::Snapshot("the audit log is out of order"));
                }
            }
            CommonItem::Bounds(bounds) => {
                let fits = if self.has_own_bounds { *bounds == *self.bounds } else { bounds.are_of_rules() };
                if !fits {
                    return Err(DecodeError::Snapshot(OTHER_BOUNDS));
                }
                self.bounds = Arc::from(bounds);
            }
        }
        Ok(())
    }
}

const OTHER_BOUNDS: &str = "it was taken within other bounds";

/// Restores a snapshot into a new state, item by item. Checks that it has one header, before all other items, and that
/// the state is within the bounds of this shard. `common_item` returns an item's part of the common state, if it is
/// one, and `common` the common state.
pub(crate) fn restore_items<S, I: DeserializeOwned>(
    state: &mut S,
    chunks: impl IntoIterator<Item: AsRef<[u8]>>,
    common_item: impl Fn(&I) -> Option<&CommonItem>,
    restore_item: impl Fn(&mut S, I) -> Result<(), DecodeError>,
    common: impl Fn(&S) -> &ShardCommon,
) -> Result<(), DecodeError> {
    let mut header = HeaderFirst::default();
    chunks::read(chunks, |item: I| {
        header.check(common_item(&item))?;
        restore_item(state, item)
    })?;
    header.finish(common(state))
}

/// Checks that a snapshot has one header, before all other items, and that its bounds, if any, come next.
#[derive(Default)]
struct HeaderFirst {
    seen: bool,
    is_next: bool,
    names_bounds: bool,
}

impl HeaderFirst {
    /// Checks the next item, if it belongs to the common state.
    fn check(&mut self, item: Option<&CommonItem>) -> Result<(), DecodeError> {
        let is_head = matches!(item, Some(CommonItem::Header { .. }));
        if is_head == self.seen {
            return Err(DecodeError::Snapshot("it has no head, or two"));
        }
        self.seen = true;
        if matches!(item, Some(CommonItem::Bounds(_))) {
            if !std::mem::take(&mut self.is_next) {
                return Err(DecodeError::Snapshot("its bounds come too late"));
            }
            self.names_bounds = true;
        }
        self.is_next = is_head;
        Ok(())
    }

    fn finish(&self, state: &ShardCommon) -> Result<(), DecodeError> {
        if !self.seen {
            return Err(DecodeError::Snapshot("it has no head, or two"));
        }
        let is_within = self.names_bounds || *state.bounds == Bounds::of(Rules::ONE);
        if is_within { Ok(()) } else { Err(DecodeError::Snapshot(OTHER_BOUNDS)) }
    }
}
