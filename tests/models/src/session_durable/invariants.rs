//! What must hold in every state.

use super::rules::SessionDurable;
use super::state::{Broken, LOCKS, Life, SESSIONS, State, Status};

/// What must hold in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No two sessions hold conflicting claims, also not while one's are in transition.
    OneHolder,
    /// No client is told that it lost what it holds, unless it was opened by force.
    HonestNeverLose,
    /// Clients take the holds of a lock in the order of their tokens.
    TokensRise,
    /// What was opened by force is in no later table.
    OpenedStaysOpen,
    /// Once nothing is on its way, leader, ledger and client agree.
    NothingLeft,
    /// No session expires while its client counts on it.
    NoEarlyExpiry,
    /// A rebuild lasts no longer than time to live and transition together.
    RebuildEnds,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::OneHolder,
        Self::HonestNeverLose,
        Self::TokensRise,
        Self::OpenedStaysOpen,
        Self::NothingLeft,
        Self::NoEarlyExpiry,
        Self::RebuildEnds,
    ];
}

impl SessionDurable {
    /// The first invariant that does not hold, of those that are looked at.
    pub(super) fn broken_invariant(&self, state: &State) -> Option<Invariant> {
        let is_checked = |invariant: &Invariant| self.only.is_none_or(|only| only == *invariant);
        Invariant::ALL.into_iter().filter(is_checked).find(|invariant| !self.satisfies(state, *invariant))
    }

    fn satisfies(&self, state: &State, invariant: Invariant) -> bool {
        match invariant {
            Invariant::OneHolder => self.is_exclusive(state),
            Invariant::HonestNeverLose => state.broken != Broken::HonestLost,
            Invariant::TokensRise => state.broken != Broken::TokenFell,
            Invariant::OpenedStaysOpen => !has_forced_claim(state),
            Invariant::NothingLeft => !(0..self.bounds.sessions).any(|session| is_left_over(state, session)),
            Invariant::NoEarlyExpiry => state.broken != Broken::ExpiredEarly,
            Invariant::RebuildEnds => {
                self.bounds.ticks.is_none_or(|(ttl, transition)| state.time.rebuilding <= ttl + transition)
            }
        }
    }

    /// No two sessions really hold what conflicts.
    fn is_exclusive(&self, state: &State) -> bool {
        let mut pairs = (0..SESSIONS).flat_map(|session| (session + 1..SESSIONS).map(move |other| (session, other)));
        pairs.all(|(session, other)| {
            let mut locks = (0..LOCKS).flat_map(|lock| (0..LOCKS).map(move |below| (lock, below)));
            locks.all(|(lock, below)| {
                !(self.conflict(lock, below) && state.holds(session, lock) && state.holds(other, below))
            })
        })
    }
}

/// Whether a complete table has a claim that was ended by force.
fn has_forced_claim(state: &State) -> bool {
    let log = state.log();
    let mut claims = (0..SESSIONS).flat_map(|session| (0..LOCKS).map(move |lock| (session, lock)));
    log.is_complete
        && claims.any(|(session, lock)| {
            let claim = log.tables[session][lock];
            claim.is_held() && claim.token == state.forced[session][lock]
        })
}

/// Whether leader, ledger and client disagree about a session though nothing is on its way any more.
fn is_left_over(state: &State, session: usize) -> bool {
    let (log, client) = (state.log(), &state.clients[session]);
    let is_quiet = log.is_complete
        && log.status[session] == Status::Open
        && client.life == Life::Lives
        && client.is_connected
        && client.connection == log.connection[session]
        && client.lies == 0
        && client.inbox.items().is_empty()
        && state.answers[session].items().iter().all(|answer| answer.epoch < state.epoch)
        && state.commands[session].items().iter().all(|command| command.epoch < state.epoch);
    let Some(gateway) = state.gateway_of(session, client.connection).filter(|_| is_quiet) else { return false };
    let ledger = &state.ledgers[session][gateway];
    let is_following = ledger.promise == state.epoch && ledger.is_complete;
    is_following && !(ledger.table == client.table && log.tables[session] == client.table)
}
