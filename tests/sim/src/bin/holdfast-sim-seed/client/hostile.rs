//! A hostile account: it does what costs the service most, cares for no answer, and shares its shards with everybody.
//! Its calls are not in the history; their effect on a shard is checked entry by entry like all others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_api::{
    AcquireLocks, ApiResult, Code, CreateNamespace, CreateSession, LockName, OwnerFields, ReleaseLocks, ResetNamespace,
    Resource, Terms, WatchEvents,
};
use holdfast_backend::{AuthContext, CallContext, Service};
use holdfast_core::{Durability, Mode};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::STABLE_NAMESPACES;
use crate::plan::rng_of;
use crate::world::{Phase, Tenant, World};

const NAMESPACE: &str = STABLE_NAMESPACES[0];
/// Between two attacks, at most.
const MAX_PAUSE_MS: u64 = 400;
const TIMEOUT: Duration = Duration::from_secs(3);
const SESSION_TTL_MS: u64 = 1_500;
/// Of everything that it holds and waits for.
const TTL_AND_WAIT_MS: u64 = 900;
/// Owners that wait for one another, or that hold and wait at the same time.
const CONCURRENT_OWNERS: usize = 6;
const NAMED_REQUESTS: usize = 12;
const KEEP_ALIVES: usize = 20;
const WATCHERS: usize = 5;
const METADATA_BYTES: usize = 1_000;
const PATH_DEPTH: usize = 12;

/// Attacks for as long as the run is in its working stage.
pub(crate) async fn attack(world: Arc<World>, service: Service, tenant: Tenant, name: String) {
    let mut rng = rng_of(world.plan.seed, &format!("{name}, hostile"));
    let hostile = HostileTenant { world: Arc::clone(&world), service, tenant };
    while world.phase() == Phase::Chaos {
        sleep(Duration::from_millis(rng.random_range(0..MAX_PAUSE_MS))).await;
        world.attacks.fetch_add(1, Ordering::Relaxed);
        hostile.run_random_attack(&mut rng).await;
    }
}

#[derive(Clone)]
struct HostileTenant {
    world: Arc<World>,
    service: Service,
    tenant: Tenant,
}

/// A path of one segment.
fn flat_path(name: impl Into<String>) -> Vec<String> {
    vec![name.into()]
}

fn write_claim(path: Vec<String>) -> Resource {
    Resource { path, mode: Mode::Write }
}

fn read_claim(path: Vec<String>) -> Resource {
    Resource { path, mode: Mode::Read }
}

/// One of the threads of a session.
fn session_owner(session: &str, holder: impl Into<String>) -> OwnerFields {
    OwnerFields { process_id: None, session_id: Some(session.to_owned()), holder: Some(holder.into()) }
}

impl HostileTenant {
    async fn run_random_attack(&self, rng: &mut StdRng) {
        match rng.random_range(0..10) {
            0 => self.tangle().await,
            1 => self.wait_on_root().await,
            2 => self.close_busy_session().await,
            3 => self.expire_together().await,
            4 => self.cancel_waits(Duration::from_millis(rng.random_range(0..60))).await,
            5 => self.repeat_named_requests().await,
            6 => self.acquire_large().await,
            7 => self.reset().await,
            8 => self.create_and_delete_namespaces().await,
            _ => self.open_idle_watches().await,
        }
    }

    async fn authenticate(&self) -> ApiResult<(AuthContext, CallContext)> {
        let context = CallContext::new("hostile").with_timeout(TIMEOUT);
        Ok((self.service.authenticate(Some(&self.tenant.api_key), &context).await?, context))
    }

    /// Nothing that anybody asks may make the service fail.
    fn check_no_internal_error<T>(&self, answer: ApiResult<T>) -> Option<T> {
        answer
            .inspect_err(|error| {
                if error.code == Code::Internal {
                    let detail = &error.detail;
                    self.world
                        .record_violation(format!("[fault of the service] a hostile call failed with it: {detail}"));
                }
            })
            .ok()
    }

    async fn acquire(&self, owner: OwnerFields, resources: Vec<Resource>, wait_ms: u64, named: Option<String>) {
        self.acquire_with_terms(owner, resources, Terms { wait_ms, ..Terms::default() }, named).await;
    }

    async fn acquire_with_terms(
        &self,
        owner: OwnerFields,
        resources: Vec<Resource>,
        terms: Terms,
        request_id: Option<String>,
    ) {
        let ttl_ms = owner.process_id.is_some().then_some(TTL_AND_WAIT_MS);
        let (namespace, terms) = (NAMESPACE.to_owned(), Terms { ttl_ms, ..terms });
        let request = AcquireLocks { namespace, resources, owner, request_id, terms };
        let taken = async {
            let (caller, context) = self.authenticate().await?;
            self.service.acquire_locks(&caller, &context, request).await
        };
        self.check_no_internal_error(taken.await);
    }

    async fn open_session(&self) -> Option<String> {
        let request = CreateSession {
            namespace: NAMESPACE.to_owned(),
            process_id: "hostile".to_owned(),
            ttl_ms: SESSION_TTL_MS,
            metadata: Default::default(),
        };
        let made = async {
            let (caller, context) = self.authenticate().await?;
            self.service.create_session(&caller, &context, request).await
        };
        self.check_no_internal_error(made.await).map(|session| session.session_id)
    }

    async fn close_session(&self, session: &str) {
        let closed = async {
            let (caller, context) = self.authenticate().await?;
            self.service.delete_session(&caller, &context, NAMESPACE, session).await
        };
        self.check_no_internal_error(closed.await);
    }

    /// All of these at once, as the crowd that they are.
    async fn run_concurrently<F: Future<Output = ()> + Send + 'static>(&self, work: impl Iterator<Item = F>) {
        let mut running: JoinSet<()> = work.collect();
        while running.join_next().await.is_some() {}
    }

    /// Every owner holds a lock, and waits for two locks of others.
    async fn tangle(&self) {
        let Some(session) = self.open_session().await else { return };
        self.acquire(
            session_owner(&session, "x"),
            vec![write_claim(flat_path("one")), write_claim(flat_path("two"))],
            0,
            None,
        )
        .await;
        let crowd = |number: usize| {
            let (own, session) = (self.clone(), session.clone());
            async move {
                let owner = || session_owner(&session, format!("o{number}"));
                own.acquire(owner(), vec![write_claim(flat_path(format!("own-{number}")))], 0, None).await;
                let (first, second) = (own.clone(), own.clone());
                let next = flat_path(format!("own-{}", (number + 1) % CONCURRENT_OWNERS));
                tokio::join!(
                    first.acquire(owner(), vec![write_claim(flat_path("one"))], TTL_AND_WAIT_MS, None),
                    second.acquire(
                        owner(),
                        vec![write_claim(flat_path("two")), write_claim(next)],
                        TTL_AND_WAIT_MS,
                        None
                    ),
                    own.acquire(owner(), vec![write_claim(flat_path("one"))], 0, None),
                );
            }
        };
        self.run_concurrently((0..CONCURRENT_OWNERS).map(crowd)).await;
        self.close_session(&session).await;
    }

    /// Many wait for everything, above holds that end one by one.
    async fn wait_on_root(&self) {
        let below = |number: usize| {
            let own = self.clone();
            async move {
                let owner = OwnerFields::process(format!("h{number}"));
                own.acquire(owner, vec![read_claim(vec!["tree".to_owned(), number.to_string()])], 0, None).await;
            }
        };
        self.acquire(OwnerFields::process("w"), vec![write_claim(flat_path("written"))], 0, None).await;
        self.run_concurrently((0..CONCURRENT_OWNERS).map(below)).await;
        let above = |number: usize| {
            let own = self.clone();
            async move {
                own.acquire(OwnerFields::process(format!("e{number}")), vec![read_claim(vec![])], TTL_AND_WAIT_MS, None)
                    .await
            }
        };
        self.run_concurrently((0..CONCURRENT_OWNERS).map(above)).await;
    }

    /// A session with holds, waits and much below it ends.
    async fn close_busy_session(&self) {
        let Some(session) = self.open_session().await else { return };
        let hold = |number: usize| {
            let (own, session) = (self.clone(), session.clone());
            async move {
                let several = (0..CONCURRENT_OWNERS)
                    .map(|at| write_claim(vec![format!("end-{number}"), at.to_string()]))
                    .collect();
                own.acquire(session_owner(&session, format!("t{}", number % 3)), several, 0, None).await;
            }
        };
        self.run_concurrently((0..CONCURRENT_OWNERS).map(hold)).await;
        let mut waiting = JoinSet::new();
        for number in 0..CONCURRENT_OWNERS {
            let own = self.clone();
            waiting.spawn(async move {
                let owner = OwnerFields::process(format!("after-{number}"));
                own.acquire(owner, vec![write_claim(flat_path(format!("end-{number}")))], TTL_AND_WAIT_MS, None).await;
            });
        }
        self.close_session(&session).await;
        while waiting.join_next().await.is_some() {}
    }

    /// Much that was taken together ends together.
    async fn expire_together(&self) {
        let hold = |number: usize| {
            let own = self.clone();
            async move {
                let several =
                    (0..CONCURRENT_OWNERS).map(|at| write_claim(flat_path(format!("due-{number}-{at}")))).collect();
                own.acquire(OwnerFields::process(format!("due-{number}")), several, 0, None).await;
            }
        };
        self.run_concurrently((0..CONCURRENT_OWNERS).map(hold)).await;
    }

    /// Many wait and go away.
    async fn cancel_waits(&self, after: Duration) {
        self.acquire(OwnerFields::process("h"), vec![write_claim(flat_path("wanted"))], 0, None).await;
        let mut waiting = JoinSet::new();
        for number in 0..CONCURRENT_OWNERS * 2 {
            let own = self.clone();
            waiting.spawn(async move {
                let owner = OwnerFields::process(format!("c{number}"));
                own.acquire(owner, vec![write_claim(flat_path("wanted"))], TTL_AND_WAIT_MS, None).await;
            });
        }
        sleep(after).await;
        waiting.abort_all();
        while waiting.join_next().await.is_some() {}
    }

    /// The same holds repeatedly under other names, with keep-alives beside them.
    async fn repeat_named_requests(&self) {
        let Some(session) = self.open_session().await else { return };
        for number in 0..NAMED_REQUESTS {
            let same = (0..CONCURRENT_OWNERS).map(|at| write_claim(flat_path(format!("named-{at}")))).collect();
            self.acquire(session_owner(&session, "same"), same, 0, Some(format!("request-{number}"))).await;
        }
        let beat = |_| {
            let (own, session) = (self.clone(), session.clone());
            async move {
                let kept = async {
                    let (caller, context) = own.authenticate().await?;
                    own.service.keep_session_alive(&caller, &context, NAMESPACE, &session).await
                };
                own.check_no_internal_error(kept.await);
            }
        };
        self.run_concurrently((0..KEEP_ALIVES).map(beat)).await;
        // It is left to expire.
    }

    /// As much metadata and as deep paths as there may be.
    async fn acquire_large(&self) {
        let hold = |number: usize| {
            let own = self.clone();
            async move {
                let path = |at: usize| (0..PATH_DEPTH).map(|segment| format!("{number}-{at}-{segment}")).collect();
                let several = (0..CONCURRENT_OWNERS).map(|at| write_claim(path(at))).collect();
                let metadata = [("a".to_owned(), "x".repeat(METADATA_BYTES))].into();
                let terms = Terms { metadata, ..Terms::default() };
                own.acquire_with_terms(OwnerFields::process(format!("big-{number}")), several, terms, None).await;
            }
        };
        self.run_concurrently((0..CONCURRENT_OWNERS).map(hold)).await;
    }

    async fn reset(&self) {
        self.expire_together().await;
        let request =
            |live_owners| ResetNamespace { namespace: NAMESPACE.to_owned(), live_owners, before_revision: None };
        let reset = async {
            let (caller, context) = self.authenticate().await?;
            self.service.reset_namespace(&caller, &context, request(vec!["due-1".to_owned()])).await?;
            let (namespace, owner) = (NAMESPACE.to_owned(), OwnerFields::process("due-1"));
            self.service
                .release_locks(&caller, &context, ReleaseLocks { namespace, owner, paths: None, all: true })
                .await?;
            self.service.delete_lock(&caller, &context, NAMESPACE, &LockName::Path(vec![])).await
        };
        self.check_no_internal_error(reset.await);
    }

    /// Creates and deletes namespaces with locks in them, also while their shard can't be reached.
    async fn create_and_delete_namespaces(&self) {
        let make = |number: usize| {
            let own = self.clone();
            async move {
                let name = format!("gone-{number}");
                let made = async {
                    let (caller, context) = own.authenticate().await?;
                    let (new, durability) = (name.clone(), Durability::Full);
                    let request = CreateNamespace { name: new, description: None, durability };
                    own.service.create_namespace(&caller, &context, request).await?;
                    let terms = Terms { ttl_ms: Some(TTL_AND_WAIT_MS), ..Terms::default() };
                    let resources = (0..CONCURRENT_OWNERS).map(|at| write_claim(flat_path(at.to_string()))).collect();
                    let (namespace, owner) = (name.clone(), OwnerFields::process("p"));
                    let request = AcquireLocks { namespace, resources, owner, request_id: None, terms };
                    own.service.acquire_locks(&caller, &context, request).await
                };
                own.check_no_internal_error(made.await);
                let gone = async {
                    let (caller, context) = own.authenticate().await?;
                    own.service.delete_namespace(&caller, &context, &name, None).await
                };
                own.check_no_internal_error(gone.await);
            }
        };
        self.run_concurrently((0..3).map(make)).await;
    }

    /// Watchers that never receive an event, beside events.
    async fn open_idle_watches(&self) {
        let mut watching = JoinSet::new();
        for _ in 0..WATCHERS {
            let own = self.clone();
            watching.spawn(async move {
                let request = WatchEvents {
                    namespace: NAMESPACE.to_owned(),
                    prefix: flat_path("nobody"),
                    ..WatchEvents::default()
                };
                let opened = async {
                    let (caller, context) = own.authenticate().await?;
                    own.service.watch_events(&caller, &context, request).await
                };
                let Some(mut stream) = own.check_no_internal_error(opened.await) else { return };
                while stream.next().await.is_ok() {}
            });
        }
        self.expire_together().await;
        watching.abort_all();
        while watching.join_next().await.is_some() {}
    }
}
