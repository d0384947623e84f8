//! Steps of leaders, present and deposed. What only the log can do, only the present leader does.

use super::rules::Omission;
use super::state::{Command, CommandKind, LOCKS, OverBound, SESSIONS, State, Status};
use super::{Expansion, Step, table};

impl Expansion<'_> {
    /// What can happen to a session in the log, and to its commands at leaders.
    pub(super) fn session_steps(&mut self, session: usize) {
        for index in 0..self.from.commands[session].items().len() {
            if self.is_next_command(session, index) {
                self.execute(session, index, false);
                let kind = self.from.commands[session].items()[index].kind;
                if kind == CommandKind::Report && self.model.omits(Omission::RepeatedReport) {
                    self.execute(session, index, true);
                }
            }
        }
        let (model, epoch, time) = (self.model, self.from.epoch, &self.from.time);
        let is_timed = model.bounds.ticks.is_some();
        let is_due = if is_timed { time.judged & 1 << session != 0 } else { self.from.budget.ends > 0 };
        if is_due && self.from.log().status[session] == Status::Open {
            self.leader_step(Step::Expire { session }, epoch, |next| {
                next.budget.ends -= u8::from(!is_timed);
                model.expire(next, session);
                Ok(())
            });
        }
        let is_over = !is_timed || time.transition[session] == 0;
        if is_over && self.from.log().status[session] == Status::Expired {
            self.leader_step(Step::EndTransition { session }, epoch, |next| {
                model.end_session(next, session);
                Ok(())
            });
        }
    }

    /// A new leader begins its epoch, or the present one does what no session asked for.
    pub(super) fn leader_steps(&mut self) {
        let (model, epoch) = (self.model, self.from.epoch);
        if epoch < model.bounds.epochs {
            self.leader_step(Step::BeginEpoch, epoch + 1, |next| {
                model.begin_epoch(next);
                Ok(())
            });
        }
        for epoch in 1..=epoch {
            if model.omits(Omission::Incomplete) && !self.from.leader(epoch).is_complete {
                self.leader_step(Step::StopWaiting, epoch, |next| model.enter_claims(next, epoch, [0, 1, 2]));
            }
        }
        if self.from.budget.forfeits == 0 || !self.from.log().is_complete {
            return;
        }
        for lock in 0..model.bounds.locks {
            if self.from.log().tables.iter().any(|table| table[lock].is_held()) {
                self.leader_step(Step::Forfeit { lock }, epoch, |next| {
                    next.budget.forfeits -= 1;
                    (0..SESSIONS).try_for_each(|session| model.forfeit(next, session, lock))
                });
            }
        }
    }

    /// Whether no command of the same connection to the same leader comes before it.
    fn is_next_command(&self, session: usize, index: usize) -> bool {
        let items = self.from.commands[session].items();
        let command = &items[index];
        // What was executed already, and is only kept to come again, holds nothing up.
        let is_repeat = |other: &Command| {
            self.model.omits(Omission::RepeatedReport)
                && other.kind == CommandKind::Report
                && self.from.leader(other.epoch).reported & 1 << session != 0
        };
        let is_before = |other: &Command| {
            (other.epoch, other.connection) == (command.epoch, command.connection) && !is_repeat(other)
        };
        self.model.omits(Omission::Unordered) || !items[..index].iter().any(is_before)
    }

    fn execute(&mut self, session: usize, index: usize, is_kept: bool) {
        let model = self.model;
        let command = self.from.commands[session].items()[index];
        let is_judged = command.epoch == self.from.epoch && self.from.time.judged & 1 << session != 0;
        let is_report = matches!(command.kind, CommandKind::Report | CommandKind::LockInfo);
        // R4: it waits for the outcome.
        if is_judged && is_report && !model.omits(Omission::ReportWhileExpiring) {
            return;
        }
        self.leader_step(Step::Execute { session, index, is_kept }, command.epoch, |next| {
            if !is_kept {
                next.commands[session].remove(index);
            }
            let leader = next.leader(command.epoch);
            let is_present = command.connection == leader.connection[session] || model.omits(Omission::AnyConnection);
            if leader.status[session] != Status::Open || !is_present {
                return Ok(());
            }
            if is_report {
                next.leader_mut(command.epoch).introduced |= 1 << session;
            }
            if is_report && command.epoch == next.epoch {
                model.sign_of_life(next, session, is_judged);
            }
            match command.kind {
                CommandKind::Report => model.take_report(next, session, command),
                CommandKind::LaterPart => model.take_claims(next, session, command.epoch, command.table, 1),
                CommandKind::LockInfo => model.take_lock_info(next, session, command),
                CommandKind::Acquire | CommandKind::Release | CommandKind::None => {
                    table::change_request(next.leader_mut(command.epoch), session, command);
                    Ok(())
                }
            }
        });
    }

    /// Completes the table of an epoch once all have reported, then grants all that it can.
    pub(super) fn settle(&mut self, step: Step, state: State, epoch: u8) {
        let leader = state.leader(epoch);
        if leader.is_complete {
            self.grant(step, state, epoch);
        } else if self.model.have_all_reported(leader) {
            self.complete(step, state, epoch);
        } else {
            self.add(step, state);
        }
    }

    /// R7: enters claims, those with higher tokens first.
    fn complete(&mut self, step: Step, state: State, epoch: u8) {
        let orders: &[[usize; SESSIONS]] = if self.model.omits(Omission::FirstClaim) {
            &[[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
        } else {
            &[[0, 1, 2]]
        };
        for order in orders {
            let mut next = state;
            match self.model.enter_claims(&mut next, epoch, *order) {
                Ok(()) => self.grant(step, next, epoch),
                Err(OverBound) => self.left_out += 1,
            }
        }
    }

    /// R8: grants what can be granted, in every order: the order of the queue is not part of the model.
    fn grant(&mut self, step: Step, state: State, epoch: u8) {
        let mut is_settled = true;
        for session in 0..SESSIONS {
            for lock in 0..LOCKS {
                if !self.model.can_grant(state.leader(epoch), session, lock) {
                    continue;
                }
                is_settled = false;
                let mut next = state;
                match self.model.grant_one(&mut next, epoch, session, lock) {
                    Ok(()) => self.grant(step, next, epoch),
                    Err(OverBound) => self.left_out += 1,
                }
            }
        }
        if is_settled {
            self.add(step, state);
        }
    }
}
