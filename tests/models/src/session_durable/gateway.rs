//! Steps of gateways: R2 and R3 are steps of one task for each session, so each session's task follows by itself.
//! Answers of a leader may overtake each other.

use super::rules::{Omission, SessionDurable};
use super::state::{Answer, AnswerKind, Claim, CommandKind, GATEWAYS, Ledger, Life, OverBound, State};
use super::{Expansion, Fate, Step};

impl Expansion<'_> {
    pub(super) fn gateway_steps(&mut self, session: usize) {
        for gateway in 0..GATEWAYS {
            let ledger = self.from.ledgers[session][gateway];
            if ledger.connection != 0 {
                for epoch in ledger.promise + 1..=self.from.epoch {
                    self.follow(session, gateway, epoch);
                }
            }
        }
        for index in 0..self.from.answers[session].items().len() {
            self.relay(session, index, Fate::Passed);
            if self.model.bounds.takes_at_once && self.from.budget.moves > 0 {
                self.relay(session, index, Fate::Lost);
            }
            if self.model.omits(Omission::SingleCalls) {
                self.relay(session, index, Fate::NotEntered);
            }
        }
    }

    /// R3: hears of a later epoch, promises to drop what is older, and reports.
    fn follow(&mut self, session: usize, gateway: usize, epoch: u8) {
        self.step(Step::Follow { session, gateway, epoch }, |next| {
            let ledger = &mut next.ledgers[session][gateway];
            ledger.promise = epoch;
            let Ledger { connection, is_complete, table, .. } = *ledger;
            if is_complete {
                next.send_from(session, connection, CommandKind::Report, table)?;
            }
            Ok(())
        });
    }

    /// R2: takes an answer of a leader, enters it into the ledger and passes it on.
    fn relay(&mut self, session: usize, index: usize, fate: Fate) {
        let model = self.model;
        self.step(Step::Relay { session, index, fate }, |next| {
            let answer = next.answers[session].remove(index);
            let Some(gateway) = next.gateway_of(session, answer.connection) else { return Ok(()) };
            let ledger = &mut next.ledgers[session][gateway];
            let Some(lock) = answer.table.iter().position(|claim| claim.request != 0) else { return Ok(()) };
            let claim = answer.table[lock];
            if answer.kind == AnswerKind::Enter {
                if ledger.table[lock].request == claim.request {
                    ledger.table[lock] = claim;
                }
                return Ok(());
            }
            if answer.epoch < ledger.promise && !model.omits(Omission::NoPromise) {
                return Ok(());
            }
            let is_known = ledger.table[lock].request == claim.request;
            let is_late = ledger.table[lock] == Claim::NONE && model.omits(Omission::GrantAfterRelease);
            let is_late_grant = is_late && answer.kind == AnswerKind::Granted;
            if !is_known && !is_late_grant {
                return Ok(());
            }
            match answer.kind {
                AnswerKind::Revoked => ledger.table[lock] = Claim::NONE,
                _ if model.omits(Omission::LedgerLate) => {
                    next.answers[session].push(Answer { kind: AnswerKind::Enter, ..answer })?;
                }
                _ if fate == Fate::NotEntered => ledger.table[lock] = Claim::NONE,
                _ => ledger.table[lock] = claim,
            }
            if fate == Fate::Lost {
                next.budget.moves -= 1;
                next.disconnect(session);
                return Ok(());
            }
            model.deliver(next, session, answer)
        });
    }

    /// A gateway's process ends, with its ledgers and connections, and is started again.
    pub(super) fn crash_steps(&mut self) {
        if self.from.budget.crashes == 0 {
            return;
        }
        for gateway in 0..GATEWAYS {
            self.step(Step::Crash { gateway }, |next| {
                next.budget.crashes -= 1;
                for session in 0..next.clients.len() {
                    let is_used = next.gateway_of(session, next.clients[session].connection) == Some(gateway);
                    if is_used && next.clients[session].is_connected {
                        next.disconnect(session);
                    }
                    next.ledgers[session][gateway] = Ledger::default();
                }
                Ok(())
            });
        }
    }
}

impl SessionDurable {
    /// Writes an answer to the client, if it still uses that connection.
    fn deliver(&self, next: &mut State, session: usize, answer: Answer) -> Result<(), OverBound> {
        let client = &mut next.clients[session];
        let is_used = client.is_connected && client.connection == answer.connection;
        if client.life == Life::Over || !(is_used || self.omits(Omission::AnyInbox)) {
            return Ok(());
        }
        if self.bounds.takes_at_once {
            self.take(next, session, answer);
            return Ok(());
        }
        client.inbox.push(Answer { epoch: 0, connection: 0, ..answer })
    }
}
