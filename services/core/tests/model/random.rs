//! Random commands about few paths and few owners, so that they meet.

use holdfast_core::{
    AccountId, Acquire, AcquireAtLeast, AskRelease, Cancel, CancelAttempts, Claim, Command, Incarnation, Kind, Limits,
    LockInfo, LocksCommand, MessageSeq, Metadata, Mode, NamespaceRef, OpenSession, Owner, Path, Reattach, Release,
    ReleaseTarget, ReportedHold, RequestId, Reset, Rules, SessionAcquire, SessionCommand, SessionRequest, SessionTerms,
    Wait,
};

use crate::state::Model;

/// A generator of numbers that a seed reproduces.
pub(crate) struct SeededRng(u64);

impl SeededRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

pub(crate) fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(7), name: "orders".into(), incarnation: Incarnation(1) }
}

pub(crate) fn paths() -> Vec<Path> {
    let all: [&[&str]; 9] =
        [&[], &["a"], &["a", "x"], &["a", "x", "1"], &["a", "y"], &["b"], &["b", "x"], &["c"], &["d"]];
    all.iter().map(|segments| Path(segments.iter().map(|segment| (*segment).to_owned()).collect())).collect()
}

pub(crate) fn limits(dice: &mut SeededRng, rules: Rules) -> Limits {
    let first = first_limits(dice);
    if rules < Rules::TWO || dice.one_in(3) {
        return first;
    }
    Limits {
        max_requests_per_hold: 1 + dice.below(3),
        max_requests_per_session: 1 + dice.below(4),
        max_owners_per_session: 1 + dice.below(2),
        max_event_bytes: dice.below(600),
        max_tangle: dice.below(4),
        max_waiting_per_owner: dice.below(4),
        max_holds_of_waiting_owner: dice.below(9),
        max_state_bytes: if dice.one_in(2) { u64::MAX / 2 } else { 8_300 + dice.below(8_000) },
        ..first
    }
}

fn first_limits(dice: &mut SeededRng) -> Limits {
    if !dice.one_in(4) {
        return Limits::default();
    }
    Limits {
        max_holds_per_namespace: 3 + dice.below(12),
        max_readers_per_lock: 1 + dice.below(3) as u32,
        max_waiting_per_namespace: 1 + dice.below(6),
        max_waiting_per_lock: 1 + dice.below(3),
        max_sessions_per_namespace: 1 + dice.below(3),
        max_path_depth: 2 + dice.below(2) as u32,
        max_claims_per_request: 1 + dice.below(3) as u32,
        ..Limits::default()
    }
}

/// What a run is like: how many take part in it, and how they wait.
pub(crate) struct Workload {
    processes: u64,
    sessions: u64,
    writes: u64,
    transitions: bool,
    flat: bool,
    max_wait_ms: u64,
    attempts: u64,
}

impl Workload {
    pub(crate) fn new(dice: &mut SeededRng) -> Self {
        Self {
            processes: 1 + dice.below(6),
            sessions: dice.below(4),
            writes: 1 + dice.below(4),
            transitions: dice.one_in(3),
            flat: dice.one_in(4),
            max_wait_ms: dice.pick(&[5, 40, 400]),
            attempts: dice.pick(&[4, 9]),
        }
    }

    fn path(&self, dice: &mut SeededRng) -> Path {
        let paths = paths();
        match self.flat {
            true => dice.pick(&paths[5..]),
            false if dice.one_in(4) => dice.pick(&paths[..3]),
            false => dice.pick(&paths[1..]),
        }
    }

    fn mode(&self, dice: &mut SeededRng) -> Mode {
        if dice.below(4) < self.writes { Mode::Write } else { Mode::Read }
    }

    fn owner(&self, dice: &mut SeededRng) -> Owner {
        if dice.below(self.processes + 2 * self.sessions) < self.processes {
            return Owner::Process(format!("p{}", dice.below(self.processes)));
        }
        let session_id = self.session(dice);
        Owner::Session { session_id, holder: dice.one_in(2).then(|| format!("h{}", dice.below(2))) }
    }

    fn session(&self, dice: &mut SeededRng) -> String {
        format!("se_{}", dice.below(self.sessions.max(1)))
    }

    fn claims(&self, dice: &mut SeededRng) -> Vec<Claim> {
        let count = dice.pick(&[1, 1, 1, 2, 2, 3]);
        (0..count).map(|_| Claim { path: self.path(dice), mode: self.mode(dice) }).collect()
    }

    fn metadata(&self, dice: &mut SeededRng) -> Metadata {
        let note = dice.one_in(4).then(|| ("note".to_owned(), dice.below(3).to_string()));
        note.into_iter().collect()
    }

    fn message(&self, dice: &mut SeededRng, model: &Model, owner: &Owner) -> Option<MessageSeq> {
        let Owner::Session { session_id, .. } = owner else { return None };
        let session = model.session(session_id).filter(|_| dice.one_in(2))?;
        let epoch = if dice.one_in(15) { session.epoch - 1 } else { session.epoch };
        let seq = if dice.one_in(12) { session.seq } else { session.seq + 1 + dice.below(2) };
        Some(MessageSeq { epoch, seq })
    }

    fn acquire(&self, dice: &mut SeededRng, model: &Model) -> Acquire {
        let owner = self.owner(dice);
        let is_session = matches!(owner, Owner::Session { .. });
        let wait = match dice.below(5) {
            0 => Wait::No,
            1 if is_session => Wait::Unlimited,
            _ => Wait::For(1 + dice.below(self.max_wait_ms)),
        };
        let mut claims = self.claims(dice);
        // Often a repeat, or something about what is held already.
        let own: Vec<Claim> = model
            .holds
            .iter()
            .filter(|hold| hold.who.owner == owner)
            .map(|hold| Claim { path: hold.path.clone(), mode: self.mode(dice) })
            .collect();
        let waiting: Vec<Vec<Claim>> =
            model.waits.iter().filter(|wait| wait.who.owner == owner).map(|wait| wait.claims.clone()).collect();
        match dice.below(8) {
            0 | 1 if !own.is_empty() => claims = vec![dice.pick(&own)],
            2 if !waiting.is_empty() => claims = dice.pick(&waiting),
            _ => {}
        }
        let fencing_token = dice.one_in(12).then(|| model.revision.saturating_sub(dice.below(6)));
        Acquire {
            namespace: namespace(),
            message: self.message(dice, model, &owner),
            ttl_ms: (!is_session).then(|| 1 + dice.below(60)),
            owner,
            transition_ms: if self.transitions { dice.below(20) } else { 0 },
            metadata: self.metadata(dice),
            fencing_token,
            requested_expires_at_ns: dice.one_in(9).then_some(-5),
            allow_upgrade: (claims.len() == 1 && dice.one_in(2)) || dice.one_in(50),
            claims,
            request_id: dice.one_in(3).then(|| format!("r{}", dice.below(4))),
            attempt: if wait == Wait::No { 0 } else { self.attempt(dice) },
            wait,
        }
    }

    fn release(&self, dice: &mut SeededRng, model: &Model) -> Release {
        let owner = self.owner(dice);
        let own: Vec<Path> =
            model.holds.iter().filter(|hold| hold.who.owner == owner).map(|hold| hold.path.clone()).collect();
        let what = match dice.below(8) {
            0 => ReleaseTarget::All,
            1 | 2 => ReleaseTarget::Request { request_id: format!("r{}", dice.below(4)) },
            _ => {
                let some = (0..dice.below(3)).map(|_| self.path(dice)).collect();
                let paths = if own.is_empty() || dice.one_in(3) { some } else { vec![dice.pick(&own)] };
                let fencing_token = dice.one_in(5).then(|| model.revision.saturating_sub(dice.below(6)));
                ReleaseTarget::Paths { paths, fencing_token }
            }
        };
        Release { namespace: namespace(), message: self.message(dice, model, &owner), owner, what }
    }

    fn session_command(&self, dice: &mut SeededRng, model: &Model) -> SessionCommand {
        let sessions: Vec<(u64, Owner)> = model
            .sessions
            .iter()
            .map(|session| (session.number, Owner::Session { session_id: session.id.clone(), holder: None }))
            .collect();
        let (session, owner) = match sessions.is_empty() || dice.one_in(30) {
            true => (dice.below(model.revision + 1), Owner::Process(String::new())),
            false => dice.pick(&sessions),
        };
        let message = self.message(dice, model, &owner).unwrap_or(MessageSeq { epoch: session, seq: dice.below(3) });
        let mut account = namespace().account;
        account.0 += u64::from(dice.one_in(40));
        let request_id = format!("r{}", dice.below(4));
        if dice.one_in(3) {
            let request = SessionRequest::Release { request_id, is_known: !dice.one_in(4) };
            return SessionCommand { account, session, message, request };
        }
        let Acquire { claims, transition_ms, wait, allow_upgrade, metadata, .. } = self.acquire(dice, model);
        let holder = dice.one_in(2).then(|| format!("h{}", dice.below(2)));
        let acquire = SessionAcquire { holder, claims, transition_ms, wait, allow_upgrade, request_id };
        let request = match dice.one_in(4) {
            true => {
                let terms = SessionTerms { at_least_ms: self.at_least_ms(dice), metadata };
                SessionRequest::AcquireWith { acquire, terms }
            }
            false => SessionRequest::Acquire(acquire),
        };
        SessionCommand { account, session, message, request }
    }

    fn cancel(&self, dice: &mut SeededRng, model: &Model) -> Cancel {
        let mut cancel = Cancel {
            namespace: namespace(),
            owner: self.owner(dice),
            request_id: dice.one_in(3).then(|| format!("r{}", dice.below(4))),
            claims: self.claims(dice),
            attempt: self.attempt(dice),
        };
        if !model.waits.is_empty() && dice.one_in(2) {
            let wait = dice.pick(&model.waits);
            cancel.owner = wait.who.owner;
            (cancel.request_id, cancel.claims) = (wait.request_id, wait.claims);
        } else if !model.holds.is_empty() && dice.one_in(2) {
            let hold = dice.pick(&model.holds);
            cancel.owner = hold.who.owner;
            cancel.request_id = None;
            cancel.claims.push(Claim { path: hold.path, mode: hold.mode });
            if !hold.attempts.tracked.is_empty() {
                cancel.attempt = dice.pick(&hold.attempts.tracked);
            }
        }
        cancel
    }

    /// Few, so that calls meet, and more than are told apart.
    fn attempt(&self, dice: &mut SeededRng) -> u64 {
        dice.below(self.attempts)
    }

    fn abandoned_attempts(&self, dice: &mut SeededRng) -> Vec<u64> {
        (0..dice.below(4)).map(|_| self.attempt(dice)).collect()
    }

    fn open(&self, dice: &mut SeededRng, model: &Model) -> OpenSession {
        let session_id = self.session(dice);
        let resume = model.session(&session_id).is_some() != dice.one_in(8);
        OpenSession {
            namespace: namespace(),
            session_id,
            resume,
            request_id: RequestId([dice.below(200) as u8; 16]),
            process_id: format!("host{}", dice.below(2)),
            ttl_ms: 1_000 + dice.below(3),
            metadata: self.metadata(dice),
        }
    }

    fn lock_info(&self, dice: &mut SeededRng, model: &Model) -> LockInfo {
        let session_id = self.session(dice);
        let its = |owner: &Owner| matches!(owner, Owner::Session { session_id: id, .. } if *id == session_id);
        let held = model.holds.iter().filter(|hold| its(&hold.who.owner) && !dice.one_in(4));
        let mut held: Vec<ReportedHold> = held
            .map(|hold| ReportedHold { path: hold.path.clone(), mode: hold.mode, fencing_token: hold.token })
            .collect();
        if dice.one_in(3) {
            let fencing_token = model.revision.saturating_sub(dice.below(6));
            held.push(ReportedHold { path: self.path(dice), mode: self.mode(dice), fencing_token });
        }
        let pending = (0..4).filter(|_| dice.one_in(2)).map(|number| format!("r{number}")).collect();
        let owner = Owner::Session { session_id: session_id.clone(), holder: None };
        LockInfo { namespace: namespace(), session_id, message: self.message(dice, model, &owner), held, pending }
    }

    fn reset(&self, dice: &mut SeededRng, model: &Model) -> Reset {
        let live = ["p0", "p1", "p2", "p3", "se_0", "se_1", "se_2"];
        let live_owners = live.iter().filter(|_| dice.one_in(2)).map(|name| (*name).to_owned()).collect();
        let before_revision = dice.one_in(2).then(|| model.revision.saturating_sub(dice.below(20)));
        Reset { namespace: namespace(), live_owners, before_revision }
    }

    fn acquire_at_least(&self, dice: &mut SeededRng, model: &Model) -> AcquireAtLeast {
        let abandoned = if dice.one_in(2) { self.abandoned_attempts(dice) } else { vec![] };
        AcquireAtLeast { acquire: self.acquire(dice, model), abandoned, at_least_ms: self.at_least_ms(dice) }
    }

    fn at_least_ms(&self, dice: &mut SeededRng) -> u64 {
        dice.below(60)
    }

    fn ask_release(&self, dice: &mut SeededRng, model: &Model) -> AskRelease {
        let held: Vec<Path> = model.holds.iter().map(|hold| hold.path.clone()).collect();
        let is_held = !held.is_empty() && !dice.one_in(3);
        AskRelease {
            namespace: namespace(),
            kind: Kind::Lock,
            path: if is_held { dice.pick(&held) } else { self.path(dice) },
            member: None,
            request_id: RequestId([dice.below(6) as u8; 16]),
            by: format!("hfk_{}", dice.below(2)),
            reason: dice.pick(&["", "deploy"]).to_owned(),
            within_ms: dice.one_in(2).then(|| dice.below(30)),
            force: dice.one_in(2),
        }
    }

    pub(crate) fn command(&self, dice: &mut SeededRng, model: &Model) -> Command {
        let roll = dice.below(108);
        Command::Locks(match roll {
            100..104 => LocksCommand::AskRelease(self.ask_release(dice, model)),
            104..108 => LocksCommand::AcquireAtLeast(self.acquire_at_least(dice, model)),
            0..40 => LocksCommand::Acquire(self.acquire(dice, model)),
            40..50 => LocksCommand::Session(self.session_command(dice, model)),
            50..55 => LocksCommand::Reattach(Reattach {
                acquire: self.acquire(dice, model),
                abandoned: self.abandoned_attempts(dice),
            }),
            55..75 => LocksCommand::Release(self.release(dice, model)),
            75..79 => LocksCommand::Delete { namespace: namespace(), path: self.path(dice) },
            79..84 => LocksCommand::Cancel(self.cancel(dice, model)),
            84..86 => LocksCommand::CancelAttempts(CancelAttempts {
                cancel: self.cancel(dice, model),
                abandoned: self.abandoned_attempts(dice),
            }),
            86..87 => LocksCommand::Reset(self.reset(dice, model)),
            87..94 => LocksCommand::OpenSession(self.open(dice, model)),
            94..95 => {
                let session_id = self.session(dice);
                let owner = Owner::Session { session_id: session_id.clone(), holder: None };
                let message = self.message(dice, model, &owner);
                LocksCommand::CloseSession { namespace: namespace(), session_id, message }
            }
            95..97 => {
                let open = model.sessions.iter().filter(|_| dice.one_in(3)).map(|session| session.number);
                let ids = open.collect();
                LocksCommand::ExpireSessions { ids, known_revision: model.revision.saturating_sub(dice.below(12)) }
            }
            _ if dice.one_in(2) => LocksCommand::LockInfoPart(self.lock_info(dice, model)),
            _ => LocksCommand::LockInfo(self.lock_info(dice, model)),
        })
    }
}
