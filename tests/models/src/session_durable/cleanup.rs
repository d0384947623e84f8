//! Takes out what can have no effect any more, so that states that differ only in it are one.

use super::rules::{Omission, SessionDurable};
use super::state::{EPOCHS, Leader, Ledger, Life, Queue, SESSIONS, State, Status};

impl SessionDurable {
    /// Brings a state into the form in which it is compared.
    pub(super) fn clean_up(&self, state: &mut State) {
        let is_live = self.live_leaders(state);
        for session in 0..SESSIONS {
            for gateway in 0..state.ledgers[session].len() {
                if !self.matters(state, session, state.ledgers[session][gateway], is_live) {
                    state.ledgers[session][gateway] = Ledger::default();
                }
            }
            self.clean_queues(state, session, is_live);
            if state.clients[session].life == Life::Over {
                state.time.believed[session] = 0;
            }
        }
        for epoch in 1..state.epoch {
            if !is_live[usize::from(epoch)] {
                *state.leader_mut(epoch) = Leader::default();
            }
        }
    }

    /// By epoch: whether anybody may still take what that leader grants.
    fn live_leaders(&self, state: &State) -> [bool; EPOCHS + 1] {
        let mut is_live = [false; EPOCHS + 1];
        for epoch in 1..=state.epoch {
            is_live[usize::from(epoch)] = epoch == state.epoch
                || (0..SESSIONS).any(|session| {
                    let is_following = |ledger: &Ledger| {
                        ledger.connection != 0 && (ledger.promise <= epoch || self.omits(Omission::NoPromise))
                    };
                    state.clients[session].life == Life::Lives && state.ledgers[session].iter().any(is_following)
                });
        }
        is_live
    }

    /// Whether a ledger can be reported to anybody, or its client takes what is entered into it.
    fn matters(&self, state: &State, session: usize, ledger: Ledger, is_live: [bool; EPOCHS + 1]) -> bool {
        if ledger.connection == 0 {
            return false;
        }
        let client = &state.clients[session];
        let is_old = ledger.connection != state.log().connection[session];
        let is_used = client.life == Life::Lives && client.is_connected && client.connection == ledger.connection;
        let counts_old = self.omits(Omission::AnyConnection) || self.omits(Omission::AnyInbox);
        let mut deposed = ledger.promise..state.epoch;
        let may_report_to_deposed = deposed.any(|epoch| {
            let leader = state.leader(epoch);
            is_live[usize::from(epoch)]
                && leader.connection[session] == ledger.connection
                && leader.status[session] == Status::Open
        });
        is_used || may_report_to_deposed || state.log().status[session] == Status::Open && (!is_old || counts_old)
    }

    fn clean_queues(&self, state: &mut State, session: usize, is_live: [bool; EPOCHS + 1]) {
        let (leaders, ledgers) = (state.leaders, state.ledgers[session]);
        let counts_old = self.omits(Omission::AnyConnection);
        state.commands[session].retain(|command| {
            let leader = &leaders[usize::from(command.epoch) - 1];
            is_live[usize::from(command.epoch)]
                && leader.status[session] == Status::Open
                && (counts_old || leader.connection[session] == command.connection)
        });
        state.answers[session].retain(|answer| {
            ledgers.iter().any(|ledger| {
                let is_taken = ledger.promise <= answer.epoch || self.omits(Omission::NoPromise);
                let is_entered = answer.kind == super::state::AnswerKind::Enter;
                ledger.connection == answer.connection && (is_taken || is_entered)
            })
        });
        state.commands[session].sort_by_key(|command| (command.epoch, command.connection));
        state.answers[session].sort_by_key(|answer| (answer.epoch, answer.connection));
        if state.clients[session].life == Life::Over {
            state.clients[session].inbox = Queue::default();
        }
    }
}
