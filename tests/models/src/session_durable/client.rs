//! Steps of clients. What a client says reaches its gateway in the same step: whatever happens between the two is like
//! a client that says it later, or whose connection breaks first.

use super::rules::{Omission, SessionDurable};
use super::state::{
    Answer, AnswerKind, Broken, Claim, Command, CommandKind, GATEWAYS, Life, OverBound, Queue, State, Status, Table,
    only,
};
use super::{Expansion, Step};

/// The request of a claim that the liar made up.
const INVENTED: u8 = 15;

impl Expansion<'_> {
    pub(super) fn client_steps(&mut self, session: usize) {
        let client = &self.from.clients[session];
        if client.life == Life::Over {
            return;
        }
        let is_connected = client.is_connected;
        for lock in 0..self.model.bounds.locks {
            let claim = self.from.clients[session].table[lock];
            if is_connected && claim == Claim::NONE && self.from.budget.requests > 0 {
                self.acquire(session, lock);
            }
            if is_connected && (claim.is_held() || claim.is_waiting() && self.model.bounds.cancels) {
                self.release(session, lock);
            }
            if !is_connected && claim != Claim::NONE {
                self.step(Step::Forget { session, lock }, |next| {
                    let client = &mut next.clients[session];
                    client.forget(lock);
                    Ok(())
                });
            }
        }
        if is_connected && self.from.budget.moves > 0 {
            self.step(Step::Cut { session }, |next| {
                next.budget.moves -= 1;
                next.disconnect(session);
                Ok(())
            });
        }
        self.resume_steps(session);
        if !client.inbox.items().is_empty() {
            self.take(session);
        }
        self.end_steps(session);
    }

    fn acquire(&mut self, session: usize, lock: usize) {
        self.step(Step::Acquire { session, lock }, |next| {
            let client = &mut next.clients[session];
            client.requests[lock] += 1;
            let claim = Claim { request: client.requests[lock], token: 0 };
            client.table[lock] = claim;
            next.budget.requests -= 1;
            let Some(ledger) = next.ledger_in_use(session) else { return Err(OverBound) };
            ledger.table[lock] = claim;
            next.send(session, CommandKind::Acquire, only(lock, claim))
        });
    }

    fn release(&mut self, session: usize, lock: usize) {
        let is_liar = self.model.is_liar(session);
        self.step(Step::Release { session, lock }, |next| {
            let client = &mut next.clients[session];
            let claim = client.table[lock];
            if is_liar && claim.is_held() && !client.lies_about(lock) {
                client.receipts[lock] = claim;
            }
            client.forget(lock);
            let Some(ledger) = next.ledger_in_use(session) else { return Err(OverBound) };
            if ledger.table[lock].request == claim.request {
                ledger.table[lock] = Claim::NONE;
            }
            next.send(session, CommandKind::Release, only(lock, claim))
        });
    }

    /// Opens another connection, and shows on it what the client holds.
    fn resume_steps(&mut self, session: usize) {
        let log = self.from.log();
        if log.status[session] != Status::Open {
            return;
        }
        let client = &self.from.clients[session];
        let is_opened = client.connection != log.connection[session]
            && self.from.gateway_of(session, log.connection[session]).is_some();
        let is_free = !client.is_connected && !is_opened;
        if is_free || self.from.budget.moves > 0 {
            for gateway in 0..GATEWAYS {
                self.resume(session, gateway, is_free);
            }
        }
        if is_opened {
            for lies in 0..1_u8 << self.model.bounds.locks {
                self.lock_info(session, lies);
            }
        }
    }

    /// The log has the connection, and its gateway hears of the epoch in which it was opened.
    fn resume(&mut self, session: usize, gateway: usize, is_free: bool) {
        let model = self.model;
        self.step(Step::Resume { session, gateway }, |next| {
            next.budget.moves -= u8::from(!is_free);
            let epoch = next.epoch;
            let connection = next.log().connection[session] + 1;
            let log = next.leader_mut(epoch);
            log.connection[session] = connection;
            log.introduced &= !(1 << session);
            let is_early = model.omits(Omission::EmptyReport);
            let ledger = &mut next.ledgers[session][gateway];
            let was_in_use = ledger.connection == next.clients[session].connection;
            (ledger.connection, ledger.promise) = (connection, epoch);
            (ledger.is_complete, ledger.table) = (is_early, Table::default());
            if was_in_use {
                next.clients[session].is_connected = false;
            }
            model.resumed(next, session);
            if is_early {
                next.send_from(session, connection, CommandKind::Report, Table::default())?;
            }
            Ok(())
        });
    }

    /// The client uses the new connection and lists what it holds; the liar also what it gave up, or made up.
    fn lock_info(&mut self, session: usize, lies: u8) {
        let client = &self.from.clients[session];
        if lies != 0 && (!self.model.is_liar(session) || self.from.budget.lies == 0) {
            return;
        }
        let mut claimed = client.table;
        for lock in (0..self.model.bounds.locks).filter(|lock| lies & 1 << lock != 0) {
            let invented = Claim { request: INVENTED, token: u8::MAX };
            let shown = if self.model.omits(Omission::NoReceipt) { invented } else { client.receipts[lock] };
            if claimed[lock] != Claim::NONE || shown == Claim::NONE {
                return;
            }
            claimed[lock] = shown;
        }
        let keeps_inbox = self.model.omits(Omission::AnyInbox);
        self.step(Step::LockInfo { session, lies }, |next| {
            next.budget.lies -= u8::from(lies != 0);
            let connection = next.log().connection[session];
            let client = &mut next.clients[session];
            (client.connection, client.is_connected) = (connection, true);
            client.table = claimed;
            client.lies |= lies;
            if !keeps_inbox {
                client.inbox = Queue::default();
            }
            let Some(ledger) = next.ledger_in_use(session) else { return Err(OverBound) };
            (ledger.is_complete, ledger.table) = (true, claimed);
            next.send(session, CommandKind::LockInfo, claimed)
        });
    }

    fn take(&mut self, session: usize) {
        let model = self.model;
        self.step(Step::Take { session }, |next| {
            let answer = next.clients[session].inbox.remove(0);
            model.take(next, session, answer);
            Ok(())
        });
    }

    /// The client stops to count on its session, by its own clock; or it ends the session itself. Where there is no
    /// clock the first is a part of the session's expiry: who counts on nothing is like one that does nothing.
    fn end_steps(&mut self, session: usize) {
        let model = self.model;
        if model.bounds.ticks.is_some() && self.from.time.believed[session] == 0 {
            self.step(Step::EndLife { session }, |next| {
                next.end_life(session);
                Ok(())
            });
        }
        let is_open = self.from.log().status[session] == Status::Open;
        if is_open && self.from.clients[session].is_connected && self.from.budget.ends > 0 {
            self.leader_step(Step::Close { session }, self.from.epoch, |next| {
                next.budget.ends -= 1;
                next.end_life(session);
                model.end_session(next, session);
                Ok(())
            });
        }
    }
}

impl SessionDurable {
    /// The client takes an answer. What it asked to release it no longer claims.
    pub(super) fn take(&self, next: &mut State, session: usize, answer: Answer) {
        let client = &mut next.clients[session];
        for (lock, claim) in answer.table.iter().enumerate().filter(|(_, claim)| claim.request != 0) {
            let mine = client.table[lock];
            if mine.request != claim.request {
                continue;
            }
            if answer.kind == AnswerKind::Revoked {
                client.forget(lock);
            } else if mine.token != claim.token {
                client.forget(lock);
                client.table[lock] = *claim;
                // What was opened by force meanwhile is no hold any more.
                if claim.token == next.forced[session][lock] {
                    continue;
                }
                if self.rank(claim.token) < self.rank(next.highest[lock]) {
                    next.broken = Broken::TokenFell;
                }
                next.highest[lock] = claim.token;
            }
        }
    }
}

impl State {
    /// Puts a command of the client's connection on its way to the leader that its gateway follows.
    fn send(&mut self, session: usize, kind: CommandKind, table: Table) -> Result<(), OverBound> {
        self.send_from(session, self.clients[session].connection, kind, table)
    }

    /// Puts a command of a connection on its way to the leader that its gateway follows.
    pub(super) fn send_from(
        &mut self,
        session: usize,
        connection: u8,
        kind: CommandKind,
        table: Table,
    ) -> Result<(), OverBound> {
        let gateway = self.gateway_of(session, connection).ok_or(OverBound)?;
        let epoch = self.ledgers[session][gateway].promise;
        self.commands[session].push(Command { kind, epoch, connection, table })
    }

    /// The connection that the client uses breaks, and what is on its way to the client is lost.
    pub(super) fn disconnect(&mut self, session: usize) {
        let client = &mut self.clients[session];
        client.is_connected = false;
        client.inbox = Queue::default();
    }

    /// The client counts on nothing any more. What it holds is still protected until the transition is over.
    pub(super) fn end_life(&mut self, session: usize) {
        self.disconnect(session);
        let client = &mut self.clients[session];
        client.life = Life::Over;
        for lock in 0..client.table.len() {
            if !client.table[lock].is_held() || client.lies_about(lock) {
                client.forget(lock);
            }
        }
    }
}
