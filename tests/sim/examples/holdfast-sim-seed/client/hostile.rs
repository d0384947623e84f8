//! A hostile account: it does what costs the service most, cares for no answer, and shares its shards with everybody.
//! What it calls is not in the history of calls; what its calls do to a shard is checked entry by entry as all else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_core::Mode;
use holdfast_gateway::events::WatchEvents;
use holdfast_gateway::service::{
    AcquireLocks, CreateNamespace, CreateSession, LockName, OwnerFields, ReleaseLocks, ResetNamespace, Resource, Terms,
};
use holdfast_gateway::{ApiResult, CallContext, Caller, Code, Service};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::STABLE_NAMESPACES;
use crate::plan::rng_of;
use crate::world::{Stage, Tenant, World};

const NAMESPACE: &str = STABLE_NAMESPACES[0];
/// Between two attacks, at most.
const REST_MS: u64 = 400;
const TIMEOUT: Duration = Duration::from_secs(3);
const SESSION_TTL_MS: u64 = 1_500;
/// Of everything that it holds and waits for.
const SHORT_MS: u64 = 900;
/// Those who wait for one another, or hold and wait at a time.
const CROWD: usize = 6;
const NAMED_REQUESTS: usize = 12;
const BEATS: usize = 20;
const WATCHERS: usize = 5;
const METADATA_BYTES: usize = 1_000;
const DEPTH: usize = 12;

/// Attacks for as long as the run is in its working stage.
pub(crate) async fn attack(world: Arc<World>, service: Service, tenant: Tenant, name: String) {
    let mut rng = rng_of(world.plan.seed, &format!("{name}, hostile"));
    let hostile = Hostile { world: Arc::clone(&world), service, tenant };
    while world.stage() == Stage::Chaos {
        sleep(Duration::from_millis(rng.random_range(0..REST_MS))).await;
        world.attacks.fetch_add(1, Ordering::Relaxed);
        hostile.one(&mut rng).await;
    }
}

#[derive(Clone)]
struct Hostile {
    world: Arc<World>,
    service: Service,
    tenant: Tenant,
}

/// A path of one segment.
fn flat(name: impl Into<String>) -> Vec<String> {
    vec![name.into()]
}

fn write(path: Vec<String>) -> Resource {
    Resource { path, mode: Mode::Write }
}

fn read(path: Vec<String>) -> Resource {
    Resource { path, mode: Mode::Read }
}

/// One of the threads of a session.
fn thread(session: &str, holder: impl Into<String>) -> OwnerFields {
    OwnerFields { process_id: None, session_id: Some(session.to_owned()), holder: Some(holder.into()) }
}

impl Hostile {
    async fn one(&self, rng: &mut StdRng) {
        match rng.random_range(0..10) {
            0 => self.tangle().await,
            1 => self.wait_for_everything().await,
            2 => self.end_much_at_once().await,
            3 => self.expire_together().await,
            4 => self.hang_up(Duration::from_millis(rng.random_range(0..60))).await,
            5 => self.name_requests().await,
            6 => self.be_big().await,
            7 => self.reset().await,
            8 => self.make_and_delete().await,
            _ => self.watch_nothing().await,
        }
    }

    async fn caller(&self) -> ApiResult<(Caller, CallContext)> {
        let context = CallContext::new("hostile").with_timeout(TIMEOUT);
        Ok((self.service.authenticate(Some(&self.tenant.api_key), &context).await?, context))
    }

    /// Nothing that anybody asks may make the service fail.
    fn note<T>(&self, answer: ApiResult<T>) -> Option<T> {
        answer
            .inspect_err(|error| {
                if error.code == Code::Internal {
                    let detail = &error.detail;
                    self.world.violation(format!("[fault of the service] a hostile call failed with it: {detail}"));
                }
            })
            .ok()
    }

    async fn take(&self, owner: OwnerFields, resources: Vec<Resource>, wait_ms: u64, named: Option<String>) {
        self.take_on(owner, resources, Terms { wait_ms, ..Terms::default() }, named).await;
    }

    async fn take_on(&self, owner: OwnerFields, resources: Vec<Resource>, terms: Terms, request_id: Option<String>) {
        let ttl_ms = owner.process_id.is_some().then_some(SHORT_MS);
        let (namespace, terms) = (NAMESPACE.to_owned(), Terms { ttl_ms, ..terms });
        let request = AcquireLocks { namespace, resources, owner, request_id, terms };
        let taken = async {
            let (caller, context) = self.caller().await?;
            self.service.acquire_locks(&caller, &context, request).await
        };
        self.note(taken.await);
    }

    async fn session(&self) -> Option<String> {
        let request = CreateSession {
            namespace: NAMESPACE.to_owned(),
            process_id: "hostile".to_owned(),
            ttl_ms: SESSION_TTL_MS,
            metadata: Default::default(),
        };
        let made = async {
            let (caller, context) = self.caller().await?;
            self.service.create_session(&caller, &context, request).await
        };
        self.note(made.await).map(|session| session.session_id)
    }

    async fn close(&self, session: &str) {
        let closed = async {
            let (caller, context) = self.caller().await?;
            self.service.delete_session(&caller, &context, NAMESPACE, session).await
        };
        self.note(closed.await);
    }

    /// All of these at once, as the crowd that they are.
    async fn all<F: Future<Output = ()> + Send + 'static>(&self, work: impl Iterator<Item = F>) {
        let mut running: JoinSet<()> = work.collect();
        while running.join_next().await.is_some() {}
    }

    /// Everybody has something and waits for two things that somebody else has.
    async fn tangle(&self) {
        let Some(session) = self.session().await else { return };
        self.take(thread(&session, "x"), vec![write(flat("one")), write(flat("two"))], 0, None).await;
        let crowd = |number: usize| {
            let (own, session) = (self.clone(), session.clone());
            async move {
                let owner = || thread(&session, format!("o{number}"));
                own.take(owner(), vec![write(flat(format!("own-{number}")))], 0, None).await;
                let (first, second) = (own.clone(), own.clone());
                let next = flat(format!("own-{}", (number + 1) % CROWD));
                tokio::join!(
                    first.take(owner(), vec![write(flat("one"))], SHORT_MS, None),
                    second.take(owner(), vec![write(flat("two")), write(next)], SHORT_MS, None),
                    own.take(owner(), vec![write(flat("one"))], 0, None),
                );
            }
        };
        self.all((0..CROWD).map(crowd)).await;
        self.close(&session).await;
    }

    /// Many wait for everything, above holds that end one by one.
    async fn wait_for_everything(&self) {
        let below = |number: usize| {
            let own = self.clone();
            async move {
                let owner = OwnerFields::process(format!("h{number}"));
                own.take(owner, vec![read(vec!["tree".to_owned(), number.to_string()])], 0, None).await;
            }
        };
        self.take(OwnerFields::process("w"), vec![write(flat("written"))], 0, None).await;
        self.all((0..CROWD).map(below)).await;
        let above = |number: usize| {
            let own = self.clone();
            async move { own.take(OwnerFields::process(format!("e{number}")), vec![read(vec![])], SHORT_MS, None).await }
        };
        self.all((0..CROWD).map(above)).await;
    }

    /// A session with holds, waits and much below it ends.
    async fn end_much_at_once(&self) {
        let Some(session) = self.session().await else { return };
        let hold = |number: usize| {
            let (own, session) = (self.clone(), session.clone());
            async move {
                let several = (0..CROWD).map(|at| write(vec![format!("end-{number}"), at.to_string()])).collect();
                own.take(thread(&session, format!("t{}", number % 3)), several, 0, None).await;
            }
        };
        self.all((0..CROWD).map(hold)).await;
        let mut waiting = JoinSet::new();
        for number in 0..CROWD {
            let own = self.clone();
            waiting.spawn(async move {
                let owner = OwnerFields::process(format!("after-{number}"));
                own.take(owner, vec![write(flat(format!("end-{number}")))], SHORT_MS, None).await;
            });
        }
        self.close(&session).await;
        while waiting.join_next().await.is_some() {}
    }

    /// Much that was taken together ends together.
    async fn expire_together(&self) {
        let hold = |number: usize| {
            let own = self.clone();
            async move {
                let several = (0..CROWD).map(|at| write(flat(format!("due-{number}-{at}")))).collect();
                own.take(OwnerFields::process(format!("due-{number}")), several, 0, None).await;
            }
        };
        self.all((0..CROWD).map(hold)).await;
    }

    /// Many wait and go away.
    async fn hang_up(&self, after: Duration) {
        self.take(OwnerFields::process("h"), vec![write(flat("wanted"))], 0, None).await;
        let mut waiting = JoinSet::new();
        for number in 0..CROWD * 2 {
            let own = self.clone();
            waiting.spawn(async move {
                let owner = OwnerFields::process(format!("c{number}"));
                own.take(owner, vec![write(flat("wanted"))], SHORT_MS, None).await;
            });
        }
        sleep(after).await;
        waiting.abort_all();
        while waiting.join_next().await.is_some() {}
    }

    /// The same holds again and again under other names, and signs of life beside them.
    async fn name_requests(&self) {
        let Some(session) = self.session().await else { return };
        for number in 0..NAMED_REQUESTS {
            let same = (0..CROWD).map(|at| write(flat(format!("named-{at}")))).collect();
            self.take(thread(&session, "same"), same, 0, Some(format!("request-{number}"))).await;
        }
        let beat = |_| {
            let (own, session) = (self.clone(), session.clone());
            async move {
                let kept = async {
                    let (caller, context) = own.caller().await?;
                    own.service.keep_session_alive(&caller, &context, NAMESPACE, &session).await
                };
                own.note(kept.await);
            }
        };
        self.all((0..BEATS).map(beat)).await;
        // It is left to expire.
    }

    /// As much metadata and as deep paths as there may be.
    async fn be_big(&self) {
        let hold = |number: usize| {
            let own = self.clone();
            async move {
                let path = |at: usize| (0..DEPTH).map(|segment| format!("{number}-{at}-{segment}")).collect();
                let several = (0..CROWD).map(|at| write(path(at))).collect();
                let metadata = [("a".to_owned(), "x".repeat(METADATA_BYTES))].into();
                let terms = Terms { metadata, ..Terms::default() };
                own.take_on(OwnerFields::process(format!("big-{number}")), several, terms, None).await;
            }
        };
        self.all((0..CROWD).map(hold)).await;
    }

    async fn reset(&self) {
        self.expire_together().await;
        let request =
            |live_owners| ResetNamespace { namespace: NAMESPACE.to_owned(), live_owners, before_revision: None };
        let reset = async {
            let (caller, context) = self.caller().await?;
            self.service.reset_namespace(&caller, &context, request(vec!["due-1".to_owned()])).await?;
            let (namespace, owner) = (NAMESPACE.to_owned(), OwnerFields::process("due-1"));
            self.service
                .release_locks(&caller, &context, ReleaseLocks { namespace, owner, paths: None, all: true })
                .await?;
            self.service.delete_lock(&caller, &context, NAMESPACE, &LockName::Path(vec![])).await
        };
        self.note(reset.await);
    }

    /// Namespaces come and go with what is in them, also while their shard can't be reached.
    async fn make_and_delete(&self) {
        let make = |number: usize| {
            let own = self.clone();
            async move {
                let name = format!("gone-{number}");
                let made = async {
                    let (caller, context) = own.caller().await?;
                    let request = CreateNamespace { name: name.clone(), description: None };
                    own.service.create_namespace(&caller, &context, request).await?;
                    let terms = Terms { ttl_ms: Some(SHORT_MS), ..Terms::default() };
                    let resources = (0..CROWD).map(|at| write(flat(at.to_string()))).collect();
                    let (namespace, owner) = (name.clone(), OwnerFields::process("p"));
                    let request = AcquireLocks { namespace, resources, owner, request_id: None, terms };
                    own.service.acquire_locks(&caller, &context, request).await
                };
                own.note(made.await);
                let gone = async {
                    let (caller, context) = own.caller().await?;
                    own.service.delete_namespace(&caller, &context, &name, None).await
                };
                own.note(gone.await);
            }
        };
        self.all((0..3).map(make)).await;
    }

    /// Watchers that are never told anything, beside events.
    async fn watch_nothing(&self) {
        let mut watching = JoinSet::new();
        for _ in 0..WATCHERS {
            let own = self.clone();
            watching.spawn(async move {
                let request =
                    WatchEvents { namespace: NAMESPACE.to_owned(), prefix: flat("nobody"), from_revision: None };
                let opened = async {
                    let (caller, context) = own.caller().await?;
                    own.service.watch_events(&caller, &context, request).await
                };
                let Some(mut stream) = own.note(opened.await) else { return };
                while stream.next().await.is_ok() {}
            });
        }
        self.expire_together().await;
        watching.abort_all();
        while watching.join_next().await.is_some() {}
    }
}
