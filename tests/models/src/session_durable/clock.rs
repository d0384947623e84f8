//! Time, in the configurations that have it: how long sessions live, and how long a rebuild lasts.
//!
//! A tick passes only when all that is due has happened: leaders judge and expire at once, clients stop at once.

use super::rules::{Omission, SessionDurable};
use super::state::{Broken, Life, State, Status};
use super::{Expansion, Step};

/// More ticks are not told apart.
const MAX_TICKS: u8 = 15;

impl Expansion<'_> {
    pub(super) fn clock_steps(&mut self) {
        let Some((ttl, _)) = self.model.bounds.ticks else { return };
        let (model, time) = (self.model, &self.from.time);
        let mut is_due = false;
        for session in 0..model.bounds.sessions {
            let status = self.from.log().status[session];
            let is_silent = status == Status::Open && time.left[session] == 0;
            let is_ended = status == Status::Expired && time.transition[session] == 0;
            let is_over = self.from.clients[session].life == Life::Lives && time.believed[session] == 0;
            is_due |= is_silent || is_ended || is_over;
            if is_silent && time.judged & 1 << session == 0 {
                self.step(Step::Judge { session }, |next| {
                    next.time.judged |= 1 << session;
                    Ok(())
                });
            }
            if self.counts_as_life(session) {
                self.step(Step::KeepAlive { session }, |next| {
                    (next.time.left[session], next.time.believed[session]) = (ttl, ttl);
                    Ok(())
                });
            }
        }
        if !is_due {
            self.step(Step::Tick, |next| {
                next.tick();
                Ok(())
            });
        }
    }

    /// R6: whether the present leader acknowledges a keep-alive of the session.
    fn counts_as_life(&self, session: usize) -> bool {
        let (log, client) = (self.from.log(), &self.from.clients[session]);
        let is_reported = log.reported & 1 << session != 0 || self.model.omits(Omission::LifeUnreported);
        let follows = self.from.gateway_of(session, client.connection).is_some_and(|gateway| {
            let ledger = &self.from.ledgers[session][gateway];
            ledger.promise == self.from.epoch && ledger.connection == log.connection[session]
        });
        client.life == Life::Lives
            && client.is_connected
            && log.status[session] == Status::Open
            && self.from.time.judged & 1 << session == 0
            && is_reported
            && follows
    }
}

impl State {
    fn tick(&mut self) {
        for session in 0..self.clients.len() {
            match self.log().status[session] {
                Status::Open => self.time.left[session] = self.time.left[session].saturating_sub(1),
                Status::Expired => self.time.transition[session] = self.time.transition[session].saturating_sub(1),
                Status::Gone => {}
            }
            self.time.believed[session] = self.time.believed[session].saturating_sub(1);
        }
        if !self.log().is_complete {
            self.time.rebuilding = (self.time.rebuilding + 1).min(MAX_TICKS);
        }
    }
}

impl SessionDurable {
    /// A new leader lets each session live for its full time.
    pub(super) fn begin_time(&self, next: &mut State) {
        let Some((ttl, _)) = self.bounds.ticks else { return };
        for session in 0..self.bounds.sessions {
            if next.log().status[session] == Status::Open {
                next.time.left[session] = ttl;
            }
        }
        (next.time.judged, next.time.rebuilding) = (0, 0);
    }

    /// A report counts as a keep-alive. Its acknowledgement reaches the client as if the client had sent one.
    pub(super) fn sign_of_life(&self, next: &mut State, session: usize, is_judged: bool) {
        let Some((ttl, _)) = self.bounds.ticks else { return };
        next.time.left[session] = ttl;
        if is_judged && next.clients[session].life == Life::Lives {
            next.time.believed[session] = ttl;
        }
    }

    /// R6: a resume counts as a keep-alive only if the session has reported in this epoch.
    pub(super) fn resumed(&self, next: &mut State, session: usize) {
        let Some((ttl, _)) = self.bounds.ticks else { return };
        if next.log().reported & 1 << session != 0 || self.omits(Omission::ResumeUnreported) {
            (next.time.left[session], next.time.believed[session]) = (ttl, ttl);
            next.time.judged &= !(1 << session);
        }
    }

    /// The log has the end of a session.
    pub(super) fn expired(&self, next: &mut State, session: usize) {
        if next.time.believed[session] > 0 && next.clients[session].life == Life::Lives {
            next.broken = Broken::ExpiredEarly;
        }
        if next.clients[session].life == Life::Lives {
            next.end_life(session);
        }
        let Some((_, transition)) = self.bounds.ticks else { return };
        next.time.left[session] = 0;
        next.time.transition[session] = transition;
        next.time.judged &= !(1 << session);
    }
}
