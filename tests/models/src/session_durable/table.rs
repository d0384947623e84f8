//! What a leader remembers, and how reports, commands and the log change it.

use super::rules::{Omission, SessionDurable};
use super::state::{
    Answer, AnswerKind, Broken, Claim, Command, CommandKind, LOCKS, Leader, OverBound, SESSIONS, State, Status,
    TOKENS_OF_EPOCH, Table, only,
};

/// An answer about one claim.
fn about(lock: usize, claim: Claim) -> Answer {
    Answer { table: only(lock, claim), ..Answer::default() }
}

/// Queues or ends the one request of a command.
pub(super) fn change_request(leader: &mut Leader, session: usize, command: Command) {
    let table = &mut leader.tables[session];
    for (lock, claim) in command.table.iter().enumerate().filter(|(_, claim)| claim.request != 0) {
        if command.kind == CommandKind::Acquire && table[lock] == Claim::NONE {
            table[lock] = *claim;
        } else if command.kind == CommandKind::Release && table[lock].request == claim.request {
            table[lock] = Claim::NONE;
        }
    }
}

impl SessionDurable {
    /// How tokens compare.
    pub(super) fn rank(&self, token: u8) -> u8 {
        if self.omits(Omission::TokenRestart) { token % TOKENS_OF_EPOCH } else { token }
    }

    /// R5.
    pub(super) fn have_all_reported(&self, leader: &Leader) -> bool {
        (0..self.bounds.sessions).all(|session| match leader.status[session] {
            _ if leader.reported & 1 << session != 0 => true,
            Status::Open => false,
            Status::Expired => self.omits(Omission::TransitionSkipped),
            Status::Gone => true,
        })
    }

    fn is_free(&self, leader: &Leader, session: usize, lock: usize) -> bool {
        let mut others = leader.tables.iter().enumerate().filter(|(other, _)| *other != session);
        !others.any(|(_, table)| (0..LOCKS).any(|other| self.conflict(lock, other) && table[other].is_held()))
    }

    pub(super) fn can_grant(&self, leader: &Leader, session: usize, lock: usize) -> bool {
        leader.tables[session][lock].is_waiting() && self.is_free(leader, session, lock)
    }

    pub(super) fn begin_epoch(&self, next: &mut State) {
        let Leader { status, connection, forfeits, .. } = *next.log();
        next.epoch += 1;
        let epoch = next.epoch;
        let leader = next.leader_mut(epoch);
        (leader.status, leader.connection, leader.forfeits) = (status, connection, forfeits);
        self.begin_time(next);
    }

    /// Draws a token, and tells the session.
    pub(super) fn grant_one(&self, next: &mut State, epoch: u8, session: usize, lock: usize) -> Result<(), OverBound> {
        let leader = next.leader_mut(epoch);
        leader.tokens += 1;
        if leader.tokens == TOKENS_OF_EPOCH {
            return Err(OverBound);
        }
        leader.tables[session][lock].token = epoch * TOKENS_OF_EPOCH + leader.tokens;
        let claim = leader.tables[session][lock];
        self.answer(next, session, Answer { kind: AnswerKind::Granted, epoch, ..about(lock, claim) })
    }

    /// Puts an answer on its way to the gateway of the connection that its leader knows, once it has taken the first
    /// message of that connection: what happened before, it tells then.
    fn answer(&self, next: &mut State, session: usize, answer: Answer) -> Result<(), OverBound> {
        let leader = next.leader(answer.epoch);
        let connection = leader.connection[session];
        if leader.introduced & 1 << session == 0 && !self.omits(Omission::AnswerTooSoon) {
            return Ok(());
        }
        next.answers[session].push(Answer { connection, ..answer })
    }

    /// R4: one report of each session counts.
    pub(super) fn take_report(&self, next: &mut State, session: usize, command: Command) -> Result<(), OverBound> {
        let counts_again = self.omits(Omission::Unordered)
            || self.omits(Omission::RepeatedReport)
            || self.omits(Omission::AnyConnection);
        let leader = next.leader_mut(command.epoch);
        if leader.reported & 1 << session != 0 && !counts_again {
            return Ok(());
        }
        leader.reported |= 1 << session;
        if self.omits(Omission::FirstPart) && command.table[1] != Claim::NONE {
            let part = Command { kind: CommandKind::LaterPart, ..command };
            next.commands[session].push(part)?;
            return self.take_claims(next, session, command.epoch, only(0, command.table[0]), 0);
        }
        (0..LOCKS).try_for_each(|lock| self.take_claims(next, session, command.epoch, command.table, lock))
    }

    /// Replaces what a session has at one lock. Where the table is complete, which only an omission leads to, what
    /// conflicts with it is refused.
    pub(super) fn take_claims(
        &self,
        next: &mut State,
        session: usize,
        epoch: u8,
        table: Table,
        lock: usize,
    ) -> Result<(), OverBound> {
        let claim = table[lock];
        let leader = next.leader_mut(epoch);
        leader.tables[session][lock] = Claim::NONE;
        if leader.is_complete && claim.is_held() && !self.is_free(leader, session, lock) {
            return self.revoke(next, epoch, session, lock, claim);
        }
        leader.tables[session][lock] = claim;
        if self.omits(Omission::CoveredEarly) && !leader.is_complete && claim.is_held() {
            return self.grant_one(next, epoch, session, lock);
        }
        Ok(())
    }

    /// R4: stands for a report, or takes away from the one that was taken.
    pub(super) fn take_lock_info(&self, next: &mut State, session: usize, command: Command) -> Result<(), OverBound> {
        let epoch = command.epoch;
        if next.leader(epoch).reported & 1 << session == 0 {
            return self.take_report(next, session, command);
        }
        for (lock, listed) in command.table.into_iter().enumerate() {
            let leader = next.leader_mut(epoch);
            let known = leader.tables[session][lock];
            if known.request == listed.request {
                // A grant that was lost with the earlier connection is told again, or waits to be granted anew.
                if known.is_held() && listed.is_waiting() && !self.omits(Omission::PendingUntold) {
                    if leader.is_complete {
                        self.answer(next, session, Answer { kind: AnswerKind::Granted, epoch, ..about(lock, known) })?;
                    } else {
                        leader.tables[session][lock] = listed;
                    }
                }
                continue;
            }
            leader.tables[session][lock] = if listed.is_waiting() { listed } else { Claim::NONE };
            if listed.is_held() {
                self.revoke(next, epoch, session, lock, listed)?;
            }
        }
        Ok(())
    }

    /// R7.
    pub(super) fn enter_claims(&self, next: &mut State, epoch: u8, order: [usize; SESSIONS]) -> Result<(), OverBound> {
        let reported = next.leader(epoch).tables;
        let mut claims: Vec<(usize, usize)> = order
            .into_iter()
            .flat_map(|session| (0..LOCKS).map(move |lock| (session, lock)))
            .filter(|(session, lock)| reported[*session][*lock].is_held())
            .collect();
        if !self.omits(Omission::FirstClaim) {
            claims.sort_by_key(|(session, lock)| std::cmp::Reverse(self.rank(reported[*session][*lock].token)));
        }
        let leader = next.leader_mut(epoch);
        leader.is_complete = true;
        for (session, lock) in &claims {
            leader.tables[*session][*lock] = Claim::NONE;
        }
        for (session, lock) in claims {
            let claim = reported[session][lock];
            let leader = next.leader_mut(epoch);
            if leader.forfeits[session][lock] == claim.token || !self.is_free(leader, session, lock) {
                self.revoke(next, epoch, session, lock, claim)?;
            } else {
                leader.tables[session][lock] = claim;
            }
        }
        if self.omits(Omission::ForfeitDropped) {
            next.leader_mut(epoch).forfeits = Default::default();
        }
        Ok(())
    }

    /// R9: ends what a session holds at a lock, in the log.
    pub(super) fn forfeit(&self, next: &mut State, session: usize, lock: usize) -> Result<(), OverBound> {
        let epoch = next.epoch;
        let leader = next.leader_mut(epoch);
        let claim = leader.tables[session][lock];
        if !claim.is_held() {
            return Ok(());
        }
        leader.tables[session][lock] = Claim::NONE;
        if !self.omits(Omission::ForfeitLost) {
            leader.forfeits[session][lock] = claim.token;
        }
        next.forced[session][lock] = claim.token;
        self.revoke(next, epoch, session, lock, claim)
    }

    /// Tells a session that a claim is lost. Nobody loses what it really holds unless it was opened by force.
    fn revoke(&self, next: &mut State, epoch: u8, session: usize, lock: usize, claim: Claim) -> Result<(), OverBound> {
        if next.holds(session, lock) && next.clients[session].table[lock] == claim && epoch == next.epoch {
            next.broken = Broken::HonestLost;
        }
        if next.leader(epoch).status[session] != Status::Open {
            return Ok(());
        }
        self.answer(next, session, Answer { kind: AnswerKind::Revoked, epoch, ..about(lock, claim) })
    }

    /// The session's holds are in transition, and what it waits for is over.
    pub(super) fn expire(&self, next: &mut State, session: usize) {
        let epoch = next.epoch;
        let leader = next.leader_mut(epoch);
        leader.status[session] = Status::Expired;
        for claim in &mut leader.tables[session] {
            if claim.is_waiting() {
                *claim = Claim::NONE;
            }
        }
        self.expired(next, session);
    }

    /// The session is gone, and all that it held.
    pub(super) fn end_session(&self, next: &mut State, session: usize) {
        let epoch = next.epoch;
        let leader = next.leader_mut(epoch);
        leader.status[session] = Status::Gone;
        leader.tables[session] = Table::default();
        leader.forfeits[session] = Default::default();
        leader.reported |= 1 << session;
        next.forced[session] = Default::default();
        next.clients[session].table = Table::default();
    }
}
