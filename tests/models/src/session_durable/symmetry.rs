//! States that differ only in the names of sessions, gateways or locks count as one.
//!
//! A fingerprint is made of one for each session and one for what they share. Those of sessions that are alike are
//! sorted. Of the names of gateways and locks the smallest result counts.

use std::hash::Hasher;

use super::rules::SessionDurable;
use super::state::{Answer, Command, GATEWAYS, LOCKS, Queue, SESSIONS, State, Table};
use crate::fingerprint::Fingerprint;

/// Where each gateway and lock of a renamed state is found in the state.
#[derive(Clone, Copy)]
struct Names {
    gateways: [usize; GATEWAYS],
    locks: [usize; LOCKS],
}

impl SessionDurable {
    /// The smallest fingerprint under all names.
    pub(super) fn smallest_fingerprint(&self, state: &State) -> u64 {
        // A lock below another is not like it.
        let has_like_locks = self.bounds.locks == LOCKS && !self.bounds.is_tree;
        let lock_orders: &[[usize; LOCKS]] = if has_like_locks { &[[0, 1], [1, 0]] } else { &[[0, 1]] };
        let gateway_orders = [[0, 1], [1, 0]];
        let names = lock_orders
            .iter()
            .flat_map(|locks| gateway_orders.iter().map(|gateways| Names { gateways: *gateways, locks: *locks }));
        names.map(|names| self.fingerprint_under(state, names)).min().unwrap_or_default()
    }

    fn fingerprint_under(&self, state: &State, names: Names) -> u64 {
        let mut sessions = [0; SESSIONS];
        for (session, fingerprint) in sessions.iter_mut().enumerate().take(self.bounds.sessions) {
            *fingerprint = names.fingerprint_of(state, session);
        }
        let alike = self.bounds.sessions - usize::from(self.bounds.has_liar);
        sessions[..alike].sort_unstable();
        let mut hasher = Fingerprint::default();
        hash_shared(state, names, &mut hasher);
        sessions.iter().for_each(|fingerprint| hasher.write_u64(*fingerprint));
        hasher.finish()
    }
}

fn hash_shared(state: &State, names: Names, hasher: &mut Fingerprint) {
    for leader in &state.leaders[..usize::from(state.epoch)] {
        hasher.write(&[u8::from(leader.is_complete), leader.tokens]);
    }
    let budget = &state.budget;
    hasher.write(&[budget.requests, budget.moves, budget.crashes, budget.ends, budget.forfeits, budget.lies]);
    hasher.write(&[state.epoch, state.broken as u8, state.time.rebuilding]);
    hasher.write(&names.locks.map(|lock| state.highest[lock]));
}

impl Names {
    /// Of all that belongs to one session.
    fn fingerprint_of(self, state: &State, session: usize) -> u64 {
        let mut hasher = Fingerprint::default();
        for leader in &state.leaders[..usize::from(state.epoch)] {
            let is_reported = u8::from(leader.reported & 1 << session != 0);
            let is_introduced = u8::from(leader.introduced & 1 << session != 0);
            hasher.write(&[leader.status[session] as u8, leader.connection[session], is_reported, is_introduced]);
            hasher.write(&self.locks.map(|lock| leader.forfeits[session][lock]));
            self.hash_table(leader.tables[session], &mut hasher);
        }
        for gateway in self.gateways {
            let ledger = &state.ledgers[session][gateway];
            hasher.write(&[ledger.connection, ledger.promise, u8::from(ledger.is_complete)]);
            if ledger.connection != 0 {
                self.hash_table(ledger.table, &mut hasher);
            }
        }
        let client = &state.clients[session];
        hasher.write(&[client.life as u8, client.connection, u8::from(client.is_connected)]);
        hasher.write(&self.locks.map(|lock| client.requests[lock]));
        hasher.write(&self.locks.map(|lock| u8::from(client.lies_about(lock))));
        hasher.write(&self.locks.map(|lock| state.forced[session][lock]));
        self.hash_table(client.table, &mut hasher);
        self.hash_table(client.receipts, &mut hasher);
        self.hash_answers(&client.inbox, &mut hasher);
        self.hash_answers(&state.answers[session], &mut hasher);
        self.hash_commands(&state.commands[session], &mut hasher);
        let time = &state.time;
        let is_judged = u8::from(time.judged & 1 << session != 0);
        hasher.write(&[time.left[session], time.believed[session], time.transition[session], is_judged]);
        hasher.finish()
    }

    fn hash_table(self, table: Table, hasher: &mut Fingerprint) {
        for lock in self.locks {
            hasher.write(&[table[lock].request, table[lock].token]);
        }
    }

    fn hash_answers(self, answers: &Queue<Answer>, hasher: &mut Fingerprint) {
        for answer in answers.items() {
            hasher.write(&[answer.kind as u8, answer.epoch, answer.connection]);
            self.hash_table(answer.table, hasher);
        }
        hasher.write_u8(u8::MAX);
    }

    fn hash_commands(self, commands: &Queue<Command>, hasher: &mut Fingerprint) {
        for command in commands.items() {
            hasher.write(&[command.kind as u8, command.epoch, command.connection]);
            self.hash_table(command.table, hasher);
        }
        hasher.write_u8(u8::MAX);
    }
}
