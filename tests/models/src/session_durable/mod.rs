//! Session-durable namespaces: a lock table in a leader's memory, rebuilt by the next leader from those who hold.
//!
//! The rules, and what is left out, stand in `docs/models/session-durable.md`. Steps are in files by who takes them:
//! clients, gateways, leaders and the clock.

mod cleanup;
mod client;
mod clock;
pub mod configurations;
mod gateway;
pub mod invariants;
mod leader;
pub mod rules;
pub mod state;
mod symmetry;
mod table;

use crate::search::Model;
use invariants::Invariant;
use rules::SessionDurable;
use state::{Broken, GATEWAYS, OverBound, State};

/// What happened between two states. Sessions, gateways and locks count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say by their names what they number")]
pub enum Step {
    /// A client asks for a lock.
    Acquire { session: usize, lock: usize },
    /// A client releases a lock, or gives up its request.
    Release { session: usize, lock: usize },
    /// A client without a connection gives up what it has, and nobody learns of it.
    Forget { session: usize, lock: usize },
    /// A connection breaks.
    Cut { session: usize },
    /// Another connection is in the log.
    Resume { session: usize, gateway: usize },
    /// A client uses its new connection, and lists what it has; the liar more, one bit for each lock.
    LockInfo { session: usize, lies: u8 },
    /// A client takes the next answer of its gateway.
    Take { session: usize },
    /// A client's own count of its session's life ends.
    EndLife { session: usize },
    /// A client ends its session.
    Close { session: usize },
    /// The task of a session at a gateway learns of an epoch, and reports.
    Follow { session: usize, gateway: usize, epoch: u8 },
    /// A gateway takes the answer at this index.
    Relay { session: usize, index: usize, fate: Fate },
    /// A gateway's process ends.
    Crash { gateway: usize },
    /// A new leader begins its epoch.
    BeginEpoch,
    /// A leader executes the command at this index, which may come again.
    Execute { session: usize, index: usize, is_kept: bool },
    /// A leader completes its table without waiting for all reports.
    StopWaiting,
    /// The log has the expiry of a session.
    Expire { session: usize },
    /// The transition of an expired session is over.
    EndTransition { session: usize },
    /// A lock is opened by force.
    Forfeit { lock: usize },
    /// Time passes.
    Tick,
    /// A keep-alive is acknowledged.
    KeepAlive { session: usize },
    /// A leader proposes the end of a silent session.
    Judge { session: usize },
}

/// What becomes of an answer at a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is entered into the ledger and written to the client.
    Passed,
    /// It is entered, and the client's connection breaks before it arrives.
    Lost,
    /// It goes to the client, and no ledger ever has it.
    NotEntered,
}

/// Collects the steps that can be taken in one state.
struct Expansion<'a> {
    model: &'a SessionDurable,
    from: &'a State,
    found: &'a mut Vec<(Step, State)>,
    left_out: u64,
}

impl Expansion<'_> {
    /// A step after which no leader has anything to decide.
    fn step(&mut self, step: Step, change: impl FnOnce(&mut State) -> Result<(), OverBound>) {
        let mut next = State { broken: Broken::Nothing, ..*self.from };
        match change(&mut next) {
            Ok(()) => self.add(step, next),
            Err(OverBound) => self.left_out += 1,
        }
    }

    /// A step after which the leader of an epoch completes its table and grants what it can, in every order.
    fn leader_step(&mut self, step: Step, epoch: u8, change: impl FnOnce(&mut State) -> Result<(), OverBound>) {
        let mut next = State { broken: Broken::Nothing, ..*self.from };
        match change(&mut next) {
            Ok(()) => self.settle(step, next, epoch),
            Err(OverBound) => self.left_out += 1,
        }
    }

    fn add(&mut self, step: Step, mut next: State) {
        self.model.clean_up(&mut next);
        self.found.push((step, next));
    }
}

impl Model for SessionDurable {
    type State = State;
    type Step = Step;
    type Invariant = Invariant;

    fn initial(&self) -> State {
        let mut state = State { epoch: 1, budget: self.bounds.budget, ..State::default() };
        for session in 0..self.bounds.sessions {
            state.leader_mut(1).connection[session] = 1;
            let ledger = &mut state.ledgers[session][session % GATEWAYS];
            (ledger.connection, ledger.promise, ledger.is_complete) = (1, 1, true);
            let client = &mut state.clients[session];
            (client.connection, client.is_connected) = (1, true);
            state.leader_mut(1).reported |= 1 << session;
            state.leader_mut(1).introduced |= 1 << session;
        }
        state.leader_mut(1).is_complete = true;
        if let Some((ttl, _)) = self.bounds.ticks {
            state.time.left[..self.bounds.sessions].fill(ttl);
            state.time.believed[..self.bounds.sessions].fill(ttl);
        }
        state
    }

    fn successors(&self, state: &State, found: &mut Vec<(Step, State)>) -> u64 {
        let mut expansion = Expansion { model: self, from: state, found, left_out: 0 };
        for session in 0..self.bounds.sessions {
            expansion.client_steps(session);
            expansion.gateway_steps(session);
            expansion.session_steps(session);
        }
        expansion.crash_steps();
        expansion.leader_steps();
        expansion.clock_steps();
        expansion.left_out
    }

    fn fingerprint(&self, state: &State) -> u64 {
        self.smallest_fingerprint(state)
    }

    fn broken(&self, state: &State) -> Option<Invariant> {
        self.broken_invariant(state)
    }
}
