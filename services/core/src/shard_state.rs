//! What every shard has, whatever its application: its clock, its revision, its outbox and its inbox.

use serde::{Deserialize, Serialize};

use crate::audit::AuditLog;
use crate::codec::DecodeError;
use crate::outbox::{Inbox, Outbox, Outgoing};
use crate::shard::Application;
use crate::{Answer, AuditRecord, Context, Refusal, Revision};

/// What a command comes to: an answer with the message that it waits for, or why there is none.
pub(crate) type Handled = Result<(Answer, Option<u64>), Refusal>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardState {
    pub(crate) id: String,
    pub(crate) clock_ms: u64,
    pub(crate) revision: Revision,
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
    pub(crate) audit: AuditLog,
}

/// A piece of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StateItem {
    Head {
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
    Outgoing {
        number: u64,
        message: Box<Outgoing>,
    },
    /// In order of number.
    Audit(Box<AuditRecord>),
}

impl ShardState {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            clock_ms: 0,
            revision: 0,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            audit: AuditLog::default(),
        }
    }

    /// The clock never goes back, whatever a new leader believes.
    pub(crate) fn advance(&mut self, context: &Context) {
        self.clock_ms = self.clock_ms.max(context.now_ms);
    }

    /// A revision that was never given before.
    pub(crate) fn next_revision(&mut self) -> Revision {
        self.revision = self.revision.checked_add(1).expect("a shard makes far fewer than 2^64 changes");
        self.revision
    }

    /// The pieces of a snapshot, the head first.
    pub(crate) fn items(&self, application: Application) -> impl Iterator<Item = StateItem> {
        let head = StateItem::Head {
            application,
            shard_id: self.id.clone(),
            clock_ms: self.clock_ms,
            revision: self.revision,
            next_number: self.outbox.raw_next_number(),
        };
        let inbox = self.inbox.iter().map(|(source, number)| StateItem::Inbox { source: source.clone(), number });
        let outbox = self.outbox.messages().iter();
        let outbox =
            outbox.map(|(number, message)| StateItem::Outgoing { number: *number, message: Box::new(message.clone()) });
        let audit = self.audit.iter().map(|record| StateItem::Audit(Box::new(record.clone())));
        std::iter::once(head).chain(inbox).chain(outbox).chain(audit)
    }

    /// Takes a piece of a snapshot into a new state.
    pub(crate) fn restore(&mut self, application: Application, item: StateItem) -> Result<(), DecodeError> {
        match item {
            StateItem::Head { application: theirs, shard_id, clock_ms, revision, next_number } => {
                if theirs != application || shard_id != self.id {
                    return Err(DecodeError::Snapshot("it is of another shard"));
                }
                self.clock_ms = clock_ms;
                self.revision = revision;
                self.outbox.restore_next_number(next_number);
            }
            StateItem::Inbox { source, number } => {
                if !self.inbox.accept(&source, number) {
                    return Err(DecodeError::Snapshot("a sender comes twice"));
                }
            }
            StateItem::Outgoing { number, message } => {
                if !self.outbox.restore_message(number, *message) {
                    return Err(DecodeError::Snapshot("a message has a number that was never given"));
                }
            }
            StateItem::Audit(record) => {
                if !self.audit.restore(*record) {
                    return Err(DecodeError::Snapshot("the audit log is out of order"));
                }
            }
        }
        Ok(())
    }
}

/// Pieces of a snapshot come after its head, and there is one head.
#[derive(Default)]
pub(crate) struct HeadFirst {
    seen: bool,
}

impl HeadFirst {
    pub(crate) fn check(&mut self, is_head: bool) -> Result<(), DecodeError> {
        if is_head == self.seen {
            return Err(DecodeError::Snapshot("it has no head, or two"));
        }
        self.seen = true;
        Ok(())
    }

    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        if self.seen { Ok(()) } else { Err(DecodeError::Snapshot("it has no head, or two")) }
    }
}

impl StateItem {
    pub(crate) fn is_head(&self) -> bool {
        matches!(self, Self::Head { .. })
    }
}
