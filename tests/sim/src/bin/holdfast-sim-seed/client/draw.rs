//! Draws the next call of a client.

use holdfast_core::{Claim, Mode, Owner, Path};
use rand::Rng;

use super::Client;
use crate::history::{AcquireOp, Answer, Op};

/// Made at the beginning and never deleted.
pub(crate) const STABLE_NAMESPACES: [&str; 2] = ["alpha", "beta"];
/// Created and deleted repeatedly.
const CHURNED_NAMESPACE: &str = "gamma";
/// A small tree, so that claims meet above and below one another.
const PATHS: [&[&str]; 7] = [&["a"], &["a", "x"], &["a", "x", "1"], &["a", "y"], &["b"], &["b", "x"], &[]];
/// Few, so that several clients speak for one owner at times.
const PROCESSES: usize = 6;
/// How many of the paths nearly all calls are about in some runs.
const HOT_PATHS: usize = 2;
pub(super) const TTLS_MS: [u64; 6] = [100, 300, 800, 1_500, 3_000, 6_000];
pub(super) const TRANSITIONS_MS: [u64; 4] = [0, 0, 0, 400];
/// The longest wait in a queue.
pub(super) const MAX_WAIT_MS: u64 = 5_000;
pub(super) const WAITS_MS: [u64; 6] = [0, 0, 200, 700, 2_000, MAX_WAIT_MS];
/// A lock that the client holds already need not wait.
const RENEWAL_WAIT_MS: u64 = 100;
const HOLDERS: [Option<&str>; 3] = [None, Some("h1"), Some("h2")];

/// A hold that the client believes it has, or had.
pub(super) struct KnownHold {
    tenant: usize,
    namespace: String,
    owner: Owner,
    claim: Claim,
    token: u64,
}

impl Client {
    pub(super) fn draw(&mut self, tenants: usize) -> (usize, String, Op) {
        let kind = self.rng.random_range(0..100);
        if (40..62).contains(&kind) && !self.held.is_empty() {
            return self.draw_for_held(kind < 48);
        }
        let is_hot = self.world.plan.has_hot_paths && self.rng.random_bool(0.9);
        let (mut tenant, mut namespace) = match is_hot {
            true => (0, STABLE_NAMESPACES[0].to_owned()),
            false => (self.rng.random_range(0..tenants), self.draw_namespace()),
        };
        let mut owner = Owner::Process(format!("p{}", self.rng.random_range(0..PROCESSES)));
        if let Some(session) = &self.session
            && self.rng.random_bool(0.4)
        {
            (tenant, namespace) = (session.tenant, session.namespace.to_owned());
            let holder = HOLDERS[self.rng.random_range(0..HOLDERS.len())].map(str::to_owned);
            owner = Owner::Session { session_id: session.id.clone(), holder };
        }
        let path = self.draw_path();
        let op = match kind {
            _ if self.is_read_only => Op::Get { path },
            0..62 => Op::Acquire(self.draw_acquire(owner)),
            62..68 => Op::Release { owner, path, token: None },
            68..70 => Op::ReleaseAll { owner },
            70..86 => Op::Get { path },
            86..89 => Op::Delete { path },
            89..92 => Op::GetNamespace,
            92..96 => return (tenant, CHURNED_NAMESPACE.to_owned(), Op::CreateNamespace),
            _ => return (tenant, CHURNED_NAMESPACE.to_owned(), Op::DeleteNamespace { id: None }),
        };
        (tenant, namespace, op)
    }

    fn draw_namespace(&mut self) -> String {
        let name = match self.rng.random_range(0..10) {
            0..5 => STABLE_NAMESPACES[0],
            5..8 => STABLE_NAMESPACES[1],
            _ => CHURNED_NAMESPACE,
        };
        name.to_owned()
    }

    fn draw_path(&mut self) -> Path {
        // The whole namespace is the last one, and rare, as is everything else where a few are hot.
        let few = if self.world.plan.has_hot_paths { HOT_PATHS } else { 6 };
        let paths = if self.rng.random_bool(0.05) { &PATHS[few..] } else { &PATHS[..few] };
        Path(paths[self.rng.random_range(0..paths.len())].iter().map(|segment| (*segment).to_owned()).collect())
    }

    /// One of these, which rise, in milliseconds.
    pub(super) fn draw_time(&mut self, choices: &[u64]) -> u64 {
        let few = choices.partition_point(|choice| *choice <= self.world.plan.max_request_ms).max(1);
        choices[self.rng.random_range(0..few)]
    }

    fn draw_acquire(&mut self, owner: Owner) -> AcquireOp {
        let claims = [1, 1, 1, 2, 3][self.rng.random_range(0..5)];
        let claim = |client: &mut Self| {
            let mode = if client.rng.random_bool(0.6) { Mode::Write } else { Mode::Read };
            Claim { path: client.draw_path(), mode }
        };
        let claims: Vec<Claim> = (0..claims).map(|_| claim(self)).collect();
        let ttl_ms = self.draw_time(&TTLS_MS);
        let is_session = matches!(owner, Owner::Session { .. });
        AcquireOp {
            owner,
            ttl_ms: (!is_session).then_some(ttl_ms),
            transition_ms: TRANSITIONS_MS[self.rng.random_range(0..TRANSITIONS_MS.len())],
            wait_ms: self.draw_time(&WAITS_MS),
            token: None,
            allow_upgrade: claims.len() == 1 && self.rng.random_bool(0.2),
            at_least_ms: 0,
            claims,
        }
    }

    /// Extends, releases or checks something that the client once held.
    fn draw_for_held(&mut self, extend: bool) -> (usize, String, Op) {
        let index = self.rng.random_range(0..self.held.len());
        let held = &self.held[index];
        let (owner, claim, token) = (held.owner.clone(), held.claim.clone(), held.token);
        let (tenant, namespace) = (held.tenant, held.namespace.clone());
        if extend {
            let ttl_ms = self.draw_time(&TTLS_MS);
            // By the token, or by the same call again, which must not cost the hold when its caller hangs up.
            let (wait_ms, token) = if self.rng.random_bool(0.5) { (0, Some(token)) } else { (RENEWAL_WAIT_MS, None) };
            let acquiring = AcquireOp {
                ttl_ms: matches!(owner, Owner::Process(_)).then_some(ttl_ms),
                owner,
                claims: vec![claim],
                transition_ms: 0,
                wait_ms,
                token,
                allow_upgrade: false,
                at_least_ms: 0,
            };
            return (tenant, namespace, Op::Acquire(acquiring));
        }
        if self.rng.random_bool(0.3) {
            return (tenant, namespace, Op::Check { path: claim.path, token });
        }
        self.held.swap_remove(index);
        (tenant, namespace, Op::Release { owner, path: claim.path, token: Some(token) })
    }

    pub(super) fn record_holds(&mut self, tenant: usize, namespace: &str, op: Op, answer: &Answer) {
        if let (Op::Acquire(acquiring), Answer::Acquired { outcome: Ok(token), .. }) = (op, answer)
            && acquiring.token.is_none()
        {
            let AcquireOp { owner, claims, .. } = acquiring;
            let is_new = |claim: &Claim| !self.held.iter().any(|held| held.token == *token && held.claim == *claim);
            let claims: Vec<Claim> = claims.into_iter().filter(is_new).collect();
            for claim in claims {
                let (namespace, owner) = (namespace.to_owned(), owner.clone());
                self.held.push(KnownHold { tenant, namespace, owner, claim, token: *token });
            }
        }
    }
}
