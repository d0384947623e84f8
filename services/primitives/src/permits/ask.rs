//! Asks the holders of a semaphore or of a pool to release what they have.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::PermitTable;
use super::item::PermitHold;
use super::key::{Name, Scope};
use crate::ask::{ASKED, asked_charge};
use crate::ask::{AskRecord, AskedList};
use crate::item_bytes::ItemBytes;
use crate::kit::{Kit, Notice};
use crate::{
    AskRelease, AskedHold, AskedHolds, AskedView, CommandError, EventKind, FencingToken, MAX_ASKED, ReportedPermits,
    Response, SessionNumber,
};

impl PermitTable {
    /// Asks the holders, or that of a member. The earliest are asked first.
    pub fn ask_release(&mut self, kit: &mut Kit<'_>, ask: &AskRelease) -> Result<Response, CommandError> {
        let name = Arc::new(Name::new(ask.kind, &ask.path));
        let Some(source) = self.by_name.get(&name).filter(|source| source.deleting.is_none()) else {
            return Err(CommandError::PrimitiveNotFound { kind: ask.kind, path: ask.path.clone() });
        };
        let member = ask.member.as_deref().map(|member| {
            let token = source.members().and_then(|members| members.get(member)).and_then(|member| member.hold);
            token.into_iter().collect::<Vec<FencingToken>>()
        });
        let holds = member.unwrap_or_else(|| source.holds.keys().take(MAX_ASKED).copied().collect());
        let is_truncated = ask.member.is_none() && source.holds.len() > MAX_ASKED;
        let record = self.record_of(kit, ask, &name, &holds)?;
        let is_new = |token: &FencingToken| self.hold(&name, *token).is_some_and(|it| !it.asks.has(ask.request_id));
        let new: Vec<FencingToken> = holds.iter().filter(|token| is_new(token)).copied().collect();
        // Of a hold: its place in the table and its deadline.
        kit.budget.visits = kit.budget.visits.saturating_sub(2 * new.len());
        for token in &new {
            self.change_hold(&name, *token, |hold| hold.asks.add(&record));
        }
        if !new.is_empty() {
            kit.record(EventKind::ReleaseRequested { of: ask.kind }, &ask.path);
            self.notify_asked(kit, &name, &record, &new);
        }
        let view = AskedView::Permits(self.view(kit, &name));
        Ok(Response::ReleaseAsked { asked: holds.len() as u64, truncated: is_truncated, view })
    }

    /// Returns the record of a request. Without room for it in as many holds, one with force is kept without its texts.
    fn record_of(
        &self,
        kit: &Kit<'_>,
        ask: &AskRelease,
        name: &Name,
        holds: &[FencingToken],
    ) -> Result<Arc<AskRecord>, CommandError> {
        let record = AskRecord::of(ask, kit.clock_ms(), kit.wall_ms);
        let asked = |hold: &PermitHold| asked_charge(Some(&hold.asks).filter(|asks| !asks.is_empty()));
        let before: u64 = holds.iter().filter_map(|token| self.hold(name, *token)).map(asked).sum();
        let after = (ASKED + record.text_bytes() as u64) * holds.len() as u64;
        let more = ItemBytes { charged: after.saturating_sub(before), counted: 0 };
        Ok(Arc::new(match kit.check_bytes(more) {
            Ok(()) => record,
            Err(_) if ask.force => record.without_texts(),
            Err(error) => return Err(error),
        }))
    }

    /// Tells each session once which of its holds are asked for.
    fn notify_asked(&self, kit: &mut Kit<'_>, name: &Name, record: &AskRecord, asked: &[FencingToken]) {
        let mut by_session: BTreeMap<SessionNumber, (Arc<str>, Vec<AskedHold>)> = BTreeMap::new();
        for hold in asked.iter().filter_map(|token| self.hold(name, *token)) {
            if let Scope::Session { number, session_id } = &hold.key.scope {
                let of_session = by_session.entry(*number);
                let (_, holds) = of_session.or_insert_with(|| (Arc::clone(session_id), Vec::new()));
                holds.push(hold.asked_hold());
            }
        }
        for (number, (session_id, holds)) in by_session {
            let asked = AskedHolds { kind: name.kind, request: record.view(), holds };
            kit.notify(Notice::ReleaseRequested { number, session_id, asked });
        }
    }

    /// Returns which of the holds that a session reports somebody asked for, as many as fit into a response.
    pub fn asked_of(&self, number: SessionNumber, held: &[ReportedPermits]) -> Vec<AskedHolds> {
        let mut list = AskedList::default();
        for listed in held.iter().filter(|listed| self.has_hold(number, listed)) {
            let name = Name::new(listed.kind, &listed.path);
            if let Some(hold) = self.hold(&name, listed.fencing_token) {
                list.push(listed.kind, hold.asks.view(), || hold.asked_hold());
            }
        }
        list.into_asked()
    }
}

impl PermitHold {
    fn asked_hold(&self) -> AskedHold {
        AskedHold {
            path: self.key.name.path.clone(),
            fencing_token: self.token,
            request_id: Some(self.key.request_id.to_string()),
        }
    }
}
