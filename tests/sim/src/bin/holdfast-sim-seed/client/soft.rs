//! Clients with connected sessions: each takes locks, trees and sets of locks, waits, releases, leaves its connection and
//! resumes. The locks of some are in the memory of a leader, and are forced open now and then; others have locks in the
//! log that somebody asks for, and give them back, go on, or leave their session to itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use holdfast_api::{Code, CreateNamespace, LockName};
use holdfast_backend::{CallContext, Service};
use holdfast_core::{Claim, Durability, FencingToken, Mode, Path};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::asks::{ASKED_NAMESPACE, ASKED_PATHS, Reaction};
use super::soft_session::{SOFT_NAMESPACE, SoftSession, SoftTerms, is_apart};
use super::stream_gateway::StreamGateway;
use crate::plan::rng_of;
use crate::world::{Phase, Tenant, World, now};

/// Clients of each gateway.
const CLIENTS: usize = 3;
/// The same of those that others ask for their locks.
const ASKED_CLIENTS: usize = 2;
/// A small tree, so that claims meet above and below one another.
const PATHS: [&[&str]; 5] = [&["a"], &["a", "x"], &["a", "y"], &["b"], &["c"]];

/// Where clients have their locks.
struct ClientPlace {
    namespace: &'static str,
    paths: &'static [&'static [&'static str]],
    /// Of sessions, in milliseconds.
    transitions_ms: &'static [u64],
    /// Whether the clients open locks by force.
    is_opened: bool,
}

const SOFT: ClientPlace =
    ClientPlace { namespace: SOFT_NAMESPACE, paths: &PATHS, transitions_ms: &TRANSITIONS_MS, is_opened: true };
const ASKED: ClientPlace =
    ClientPlace { namespace: ASKED_NAMESPACE, paths: &ASKED_PATHS, transitions_ms: &[0], is_opened: false };
const MAX_CLAIMS: usize = 3;
const MAX_REQUESTS: usize = 4;
/// The shortest is the least that the namespace takes.
const TTLS_MS: [u64; 3] = [2_000, 2_500, 3_000];
const TRANSITIONS_MS: [u64; 4] = [0, 0, 500, 1_000];
/// The longest time that a session lives after its last keep-alive, with its transition.
pub(crate) const MAX_SOFT_LIFE: Duration = Duration::from_millis(TTLS_MS[2] + TRANSITIONS_MS[3]);
/// Longest time between two things that a client does.
const MAX_PAUSE_MS: u64 = 250;
/// A quarter of the shortest time to live.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Between attempts of what must succeed in the end.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// How often it is looked whether a gateway is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Of calls beside the connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a repaired cluster may take until a lock is granted: an election, the time to live and the transition of
/// all sessions of before, and the attempts of the call.
const MAX_REBUILD: Duration = Duration::from_secs(15);

/// Makes the namespace of a tenant.
pub(crate) async fn create_soft_namespace(world: &World, service: &Service, tenant: &Tenant) {
    loop {
        let context = CallContext::new("setup of soft locks");
        let request =
            CreateNamespace { name: SOFT_NAMESPACE.to_owned(), description: None, durability: Durability::Session };
        let made = match service.authenticate(Some(&tenant.api_key), &context).await {
            Ok(caller) => service.create_namespace(&caller, &context, request).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match made {
            Ok(()) => return,
            Err(error) if error.code == Code::AlreadyExists => return,
            Err(error) => world.record(format!("setup of soft locks waits: {error:?}")),
        }
        sleep(RETRY_DELAY).await;
    }
}

/// Starts the clients of a gateway. They have one of their own, which can end while they go on.
///
/// # Errors
/// When the gateway can't start.
pub(crate) fn use_soft_locks(world: &Arc<World>, tenant: &Tenant, number: usize, name: &str) -> Result<()> {
    let gateway = Arc::new(StreamGateway::start(world, format!("{name}.soft"))?);
    tokio::spawn(end_gateway_when_asked(Arc::clone(world), Arc::clone(&gateway), number));
    for client in 0..CLIENTS {
        let name = format!("{name}.soft{client}");
        tokio::spawn(SoftClient::new(world, &gateway, tenant, name, &SOFT).run());
    }
    let probe = SoftClient::new(world, &gateway, tenant, format!("{name}.soft-probe"), &SOFT);
    tokio::spawn(probe.probe(number));
    Ok(())
}

/// Starts clients of a gateway that hold locks for which others ask.
///
/// # Errors
/// When their gateway can't start.
pub(crate) fn hold_asked_locks(world: &Arc<World>, tenant: &Tenant, name: &str) -> Result<()> {
    let gateway = Arc::new(StreamGateway::start(world, format!("{name}.asked"))?);
    for client in 0..ASKED_CLIENTS {
        let name = format!("{name}.asked{client}");
        tokio::spawn(SoftClient::new(world, &gateway, tenant, name, &ASKED).run());
    }
    Ok(())
}

async fn end_gateway_when_asked(world: Arc<World>, gateway: Arc<StreamGateway>, number: usize) {
    let mut seen = world.soft_falls[number].load(Ordering::Relaxed);
    loop {
        sleep(POLL_INTERVAL).await;
        let asked = world.soft_falls[number].load(Ordering::Relaxed);
        if std::mem::replace(&mut seen, asked) != asked {
            gateway.replace();
        }
    }
}

struct SoftClient {
    world: Arc<World>,
    gateway: Arc<StreamGateway>,
    tenant: Tenant,
    name: String,
    locks: &'static ClientPlace,
    rng: StdRng,
    session: SoftSession,
}

impl SoftClient {
    fn new(
        world: &Arc<World>,
        gateway: &Arc<StreamGateway>,
        tenant: &Tenant,
        name: String,
        locks: &'static ClientPlace,
    ) -> Self {
        let rng = rng_of(world.plan.seed, &name);
        let terms = SoftTerms { ttl: Duration::from_millis(TTLS_MS[0]), transition: Duration::ZERO };
        let place = (tenant.clone(), locks.namespace);
        let session = SoftSession::new(Arc::clone(world), Arc::clone(gateway), place, name.clone(), terms);
        let (world, gateway, tenant) = (Arc::clone(world), Arc::clone(gateway), tenant.clone());
        Self { world, gateway, tenant, name, locks, rng, session }
    }

    /// Works until the repaired cluster has served everybody again: what a later leader waits for is kept alive as long.
    async fn run(mut self) {
        let (mut acts_at, mut keeps_alive_at) = (Instant::now(), Instant::now());
        while self.world.phase() < Phase::Quiet {
            self.session.check_life();
            if !self.session.is_connected() {
                let terms = self.draw_terms();
                if !self.session.connect(terms).await {
                    sleep(RETRY_DELAY).await;
                }
                keeps_alive_at = Instant::now() + KEEP_ALIVE_INTERVAL;
                continue;
            }
            tokio::select! {
                biased;
                message = self.session.next() => {
                    self.session.on_outbound(message).await;
                    self.react().await;
                }
                () = sleep_until(keeps_alive_at) => {
                    self.session.keep_alive().await;
                    keeps_alive_at = Instant::now() + KEEP_ALIVE_INTERVAL;
                }
                () = sleep_until(acts_at) => {
                    self.act().await;
                    acts_at = Instant::now() + Duration::from_millis(self.rng.random_range(0..MAX_PAUSE_MS));
                }
            }
        }
        self.session.close().await;
    }

    fn draw_terms(&mut self) -> SoftTerms {
        let ms = |rng: &mut StdRng, choices: &[u64]| Duration::from_millis(choices[rng.random_range(0..choices.len())]);
        SoftTerms { ttl: ms(&mut self.rng, &TTLS_MS), transition: ms(&mut self.rng, self.locks.transitions_ms) }
    }

    /// Does something about the locks that somebody asks for, or nothing.
    async fn react(&mut self) {
        for request_id in self.session.take_wanted() {
            match Reaction::draw(&mut self.rng) {
                Reaction::GivesBack => self.session.release(&request_id).await,
                Reaction::Ignores => {}
                Reaction::Dies => self.session.forget(),
            }
        }
    }

    async fn act(&mut self) {
        match self.rng.random_range(0..100) {
            0..45 if self.session.request_count() < MAX_REQUESTS => {
                let claims = self.draw_claims();
                let only_try = self.rng.random_bool(0.2);
                if !claims.is_empty() {
                    self.session.lock(claims, only_try).await;
                }
            }
            45..75 => {
                let requests = self.session.live_requests();
                if !requests.is_empty() {
                    let request_id = &requests[self.rng.random_range(0..requests.len())];
                    self.session.release(request_id).await;
                }
            }
            75..79 => self.session.disconnect(),
            79 => self.session.forget(),
            80 => self.session.close().await,
            81..83 => self.session.release_all().await,
            83..85 if self.locks.is_opened => {
                let path = self.draw_path();
                tokio::spawn(force_open(Arc::clone(&self.world), self.gateway.service(), self.tenant.clone(), path));
            }
            85..95 => {
                let number = self.rng.random_range(0..MAX_REQUESTS);
                if let Some(hold) = self.session.one_hold(number) {
                    let (service, tenant) = (self.gateway.service(), self.tenant.clone());
                    tokio::spawn(check_hold(Arc::clone(&self.world), service, tenant, self.locks.namespace, hold));
                }
            }
            _ => {}
        }
    }

    fn draw_path(&mut self) -> Path {
        path_of(self.locks.paths[self.rng.random_range(0..self.locks.paths.len())])
    }

    /// Locks that are no part of each other. None of them is asked for: a request that extends two holds is told one
    /// token of two.
    fn draw_claims(&mut self) -> Vec<Claim> {
        let mut claims: Vec<Claim> = Vec::new();
        for _ in 0..[1, 1, 2, MAX_CLAIMS][self.rng.random_range(0..4)] {
            let mode = if self.rng.random_bool(0.7) { Mode::Write } else { Mode::Read };
            let path = self.draw_path();
            if claims.iter().all(|claim| is_apart(&claim.path, &path)) && !self.session.has_asked_for(&path) {
                claims.push(Claim { path, mode });
            }
        }
        claims
    }

    /// Once everything is repaired, takes a lock, and keeps to it that the cluster serves again.
    async fn probe(mut self, number: usize) {
        while self.world.phase() < Phase::Healed {
            sleep(POLL_INTERVAL).await;
        }
        let from = now().unwrap_or_default();
        let mut is_late = false;
        while !self.takes_a_lock().await {
            let waited = now().unwrap_or_default().saturating_sub(from);
            if waited > MAX_REBUILD && !std::mem::replace(&mut is_late, true) {
                let (name, world) = (&self.name, &self.world);
                world.record_violation(format!("[a rebuild ends] {name} waits for a lock since {waited:?}"));
            }
            sleep(RETRY_DELAY).await;
        }
        self.world.soft_served.lock().push(number);
    }

    /// Opens a session, takes a lock of its own and closes the session. Returns whether it had the lock.
    async fn takes_a_lock(&mut self) -> bool {
        let terms = SoftTerms { ttl: Duration::from_millis(TTLS_MS[0]), transition: Duration::ZERO };
        if !self.session.connect(terms).await {
            self.session.forget();
            return false;
        }
        let path = Path::flat(format!("probe of {}", self.name));
        let request_id = self.session.lock(vec![Claim { path, mode: Mode::Write }], false).await;
        let taken = timeout(terms.ttl, async {
            while self.session.is_connected() && !self.session.holds(&request_id) {
                let message = self.session.next().await;
                self.session.on_outbound(message).await;
            }
        });
        let is_in_time = taken.await.is_ok();
        let has_it = is_in_time && self.session.holds(&request_id);
        self.session.close().await;
        has_it
    }
}

/// Asks whether a hold is known: it is for as long as the client has it and counts on it, whoever leads.
async fn check_hold(
    world: Arc<World>,
    service: Service,
    tenant: Tenant,
    namespace: &'static str,
    (session, path, token): (String, Path, FencingToken),
) {
    let context = CallContext::new("look").with_timeout(CALL_TIMEOUT);
    let Ok(caller) = service.authenticate(Some(&tenant.api_key), &context).await else { return };
    match service.check_lock(&caller, &context, namespace, &LockName::Path(path.0.clone()), token).await {
        Ok(checked) if !checked.current => {
            let found = world.claims.is_unknown(&session, &path, token, now().unwrap_or_default());
            found.into_iter().for_each(|what| world.record_violation(what));
        }
        Err(error) if error.code == Code::Internal => {
            world.record_violation(format!("[fault of the service] {path:?} is looked at: {error:?}"));
        }
        _ => {}
    }
}

/// Opens a lock by force.
async fn force_open(world: Arc<World>, service: Service, tenant: Tenant, path: Path) {
    let at = || now().unwrap_or_default();
    let context = CallContext::new("force").with_timeout(CALL_TIMEOUT);
    let Ok(caller) = service.authenticate(Some(&tenant.api_key), &context).await else { return };
    let call = world.claims.opens(&path, at());
    let opened = service.delete_lock(&caller, &context, SOFT_NAMESPACE, &LockName::Path(path.0.clone())).await;
    match &opened {
        Ok(_) => world.claims.opened(call, at()),
        // It may have been done, or be done yet.
        Err(error) if error.code == Code::DeadlineExceeded => {}
        Err(error) => {
            world.claims.opened(call, at());
            if error.code == Code::Internal {
                world.record_violation(format!("[fault of the service] {path:?} is opened by force: {error:?}"));
            }
        }
    }
    world.record(format!("{path:?} is opened by force: {:?}", opened.map(|_| ()).map_err(|error| error.code)));
}

fn path_of(segments: &[&str]) -> Path {
    Path(segments.iter().map(|segment| (*segment).to_owned()).collect())
}
