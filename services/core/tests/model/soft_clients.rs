//! Sessions of lock tables in memory, as their clients and gateways see them.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{
    Claim, FencingToken, HolderView, LockInfo, LockView, MessageSeq, Metadata, Mode, Owner, Path, ReportedHold,
    ReportedRequest, ReportedWait, Revision, SessionAcquire, SessionNumber, SessionRequest, TableReport, Wait, WaitId,
};

use crate::random::{SeededRng, namespace};

/// A lock and the thread of the session that holds it.
pub(crate) type Held = (Option<String>, Path);

/// What a request asked for.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) holder: Option<String>,
    pub(crate) claims: Vec<Claim>,
    /// The locks that it lost since it was granted.
    pub(crate) lost: BTreeSet<Path>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// With the place that a leader gave it.
    Waits(Option<WaitId>),
    Granted,
}

/// A session as its client and its gateway see it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: String,
    pub(crate) number: SessionNumber,
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    pub(crate) transition_ms: u64,
    pub(crate) requests: BTreeMap<String, (LockRequest, State)>,
    /// What the granted requests hold together.
    pub(crate) holds: BTreeMap<Held, (Mode, FencingToken)>,
    /// The leader that it reported to last: it takes nothing of earlier ones.
    pub(crate) promised: usize,
    /// The leader that compares its list with what it has, and the job whose end that leader's answer waits for.
    pub(crate) compares: Option<(usize, Revision)>,
    /// The shard clock until which its holds count, once it has ended; absent while its client counts its life.
    pub(crate) until_ms: Option<u64>,
}

impl LockRequest {
    /// One to three claims of a thread or the session itself, in which a path may be twice.
    pub(crate) fn any(dice: &mut SeededRng) -> Self {
        let holder = dice.pick(&[None, None, Some("h")]).map(str::to_owned);
        let claims = (0..dice.pick(&[1, 1, 2, 3])).map(|_| any_claim(dice)).collect();
        Self { holder, claims, lost: BTreeSet::new() }
    }

    pub(crate) fn request(&self, request_id: &str) -> SessionRequest {
        SessionRequest::Acquire(SessionAcquire {
            holder: self.holder.clone(),
            claims: self.claims.clone(),
            transition_ms: 0,
            wait: Wait::Unlimited,
            allow_upgrade: false,
            request_id: request_id.to_owned(),
        })
    }

    /// The locks that it asks for or claims.
    fn paths(&self) -> BTreeSet<&Path> {
        self.claims.iter().map(|claim| &claim.path).filter(|path| !self.lost.contains(path)).collect()
    }

    /// The strongest mode in which it asks for a lock.
    fn mode(&self, path: &Path) -> Mode {
        let of_path = self.claims.iter().filter(|claim| claim.path == *path);
        of_path.map(|claim| claim.mode).max().unwrap_or(Mode::Read)
    }
}

impl Client {
    pub(crate) fn lives(&self) -> bool {
        self.until_ms.is_none()
    }

    pub(crate) fn counts(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until_ms| until_ms > now_ms)
    }

    /// The holds that a grant leaves it with, of those that the request asked for. `locks` are shown where some of them
    /// were held before.
    pub(crate) fn granted(
        &self,
        asked: &LockRequest,
        token: FencingToken,
        locks: &[LockView],
    ) -> Vec<(Held, (Mode, FencingToken))> {
        let owner = Owner::Session { session_id: self.id.clone(), holder: asked.holder.clone() };
        let hold_of = |path: &Path| {
            let shown = locks.iter().filter(|lock| lock.path == *path).flat_map(holders).find(|it| it.owner == owner);
            shown.map_or((asked.mode(path), token), |holder| (holder.mode, holder.fencing_token))
        };
        asked.paths().into_iter().map(|path| ((asked.holder.clone(), path.clone()), hold_of(path))).collect()
    }

    /// Gives a request up, and what only that claims.
    pub(crate) fn release(&mut self, request_id: &str) {
        let Some((asked, State::Granted)) = self.requests.remove(request_id) else { return };
        let granted = self.requests.values().filter(|(_, state)| *state == State::Granted);
        let of_thread = granted.filter(|(other, _)| other.holder == asked.holder);
        let claimed: BTreeSet<Path> = of_thread.flat_map(|(other, _)| other.paths()).cloned().collect();
        for path in asked.paths().into_iter().filter(|path| !claimed.contains(path)) {
            self.holds.remove(&(asked.holder.clone(), path.clone()));
        }
    }

    /// A hold is ended by force. Requests that are left with nothing end.
    pub(crate) fn lose(&mut self, path: &Path, token: FencingToken) {
        let is_lost = |((_, held), (_, known)): &(&Held, &(Mode, FencingToken))| held == path && *known == token;
        let lost: Vec<Held> = self.holds.iter().filter(is_lost).map(|(held, _)| held.clone()).collect();
        for (holder, path) in lost {
            self.holds.remove(&(holder.clone(), path.clone()));
            for (asked, state) in self.requests.values_mut() {
                let claims = asked.holder == holder && asked.claims.iter().any(|claim| claim.path == path);
                if *state == State::Granted && claims {
                    asked.lost.insert(path.clone());
                }
            }
        }
        self.requests.retain(|_, (asked, state)| *state != State::Granted || !asked.paths().is_empty());
    }

    pub(crate) fn has_hold(&self, path: &Path, token: FencingToken) -> bool {
        self.holds.iter().any(|((_, held), (_, known))| held == path && *known == token)
    }

    pub(crate) fn next_message(&mut self) -> MessageSeq {
        self.seq += 1;
        MessageSeq { epoch: self.epoch, seq: self.seq }
    }

    /// What it lists once it is resumed.
    pub(crate) fn list(&mut self) -> LockInfo {
        let message = Some(self.next_message());
        let held = self.holds.iter().map(|((_, path), (mode, fencing_token))| ReportedHold {
            path: path.clone(),
            mode: *mode,
            fencing_token: *fencing_token,
        });
        let waiting = self.requests.iter().filter(|(_, (_, state))| matches!(state, State::Waits(_)));
        let (held, pending) = (held.collect(), waiting.map(|(id, _)| id.clone()).collect());
        LockInfo { namespace: namespace(), session_id: self.id.clone(), message, held, pending }
    }

    /// All that it has, in one part.
    pub(crate) fn report(&self, table_epoch: Revision) -> TableReport {
        let granted = self.requests.iter().filter_map(|(id, (asked, state))| {
            (*state == State::Granted).then(|| self.reported(id, asked)).filter(|request| !request.claims.is_empty())
        });
        let pending = self.requests.iter().filter_map(|(id, (asked, state))| match state {
            State::Waits(ticket) => Some(ReportedWait {
                request_id: id.clone(),
                holder: asked.holder.clone(),
                metadata: Metadata::new(),
                claims: asked.claims.clone(),
                ticket: *ticket,
            }),
            State::Granted => None,
        });
        TableReport {
            namespace: namespace(),
            session: self.number,
            connection_epoch: self.epoch,
            seq: self.seq,
            table_epoch,
            part: 1,
            parts: 1,
            granted: granted.collect(),
            pending: pending.collect(),
        }
    }

    fn reported(&self, request_id: &str, asked: &LockRequest) -> ReportedRequest {
        let claims = asked.paths().into_iter().filter_map(|path| {
            let (mode, fencing_token) = *self.holds.get(&(asked.holder.clone(), path.clone()))?;
            Some(ReportedHold { path: path.clone(), mode, fencing_token })
        });
        ReportedRequest {
            request_id: request_id.to_owned(),
            holder: asked.holder.clone(),
            metadata: Metadata::new(),
            claimed: (asked.paths().len() + asked.lost.len()) as u32,
            claims: claims.collect(),
        }
    }
}

fn holders(lock: &LockView) -> impl Iterator<Item = &HolderView> {
    lock.write_lock_holder.iter().chain(&lock.read_lock_holders)
}

pub(crate) fn paths() -> Vec<Path> {
    let all: [&[&str]; 4] = [&["a"], &["a", "x"], &["a", "y"], &["b"]];
    all.iter().map(|segments| Path(segments.iter().map(|segment| (*segment).to_owned()).collect())).collect()
}

fn any_claim(dice: &mut SeededRng) -> Claim {
    Claim { path: dice.pick(&paths()), mode: dice.pick(&[Mode::Read, Mode::Write]) }
}

/// Whether two owners can't hold these at once.
pub(crate) fn conflict((one, one_mode): (&Path, Mode), (other, other_mode): (&Path, Mode)) -> bool {
    let is_read = one_mode == Mode::Read && other_mode == Mode::Read;
    !is_read && (one.is_prefix_of(other) || other.is_prefix_of(one))
}
