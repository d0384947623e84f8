//! A connection to a gateway, and the calls on it that wait.

use holdfast_proto::v1;
use holdfast_proto::v1::barriers_service_client::BarriersServiceClient;
use holdfast_proto::v1::latches_service_client::LatchesServiceClient;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::pools_service_client::PoolsServiceClient;
use holdfast_proto::v1::semaphores_service_client::SemaphoresServiceClient;
use holdfast_testkit::{Cluster, RestClient, Tenant, wait_before_retry};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::things::{NAMESPACE, TTL_MS, Thing, ThingKind, release};

/// Longer than the test takes.
const WAIT_MS: u64 = 600_000;

/// What a caller was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    /// With this token.
    Granted(u64),
    Completed,
    Expired,
    /// As this one of those who met.
    Met(u64),
    Broken,
}

/// A connection to a gateway with a key.
#[derive(Clone)]
pub(super) struct Connection {
    channel: Channel,
    key: MetadataValue<Ascii>,
}

impl Connection {
    pub(super) async fn open(cluster: &Cluster, tenant: &Tenant, gateway: usize) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", cluster.gateway_address(gateway)));
        let endpoint = endpoint.expect("an address makes a URL").tcp_nodelay(true);
        let channel = endpoint.connect().await.expect("the gateway listens");
        Self { channel, key: format!("Bearer {}", tenant.key).parse().expect("a key is ASCII") }
    }

    fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.key.clone());
        request
    }

    async fn lock(&self, name: String, owner: &str) -> Result<Told, Status> {
        let (namespace, name, process_id) = (NAMESPACE.to_owned(), Some(name), Some(owner.to_owned()));
        let (ttl_ms, wait_ms) = (Some(TTL_MS), WAIT_MS);
        let request = v1::AcquireLockRequest { namespace, name, process_id, ttl_ms, wait_ms, ..Default::default() };
        let answer = LocksServiceClient::new(self.channel.clone()).acquire_lock(self.signed(request)).await?;
        let answer = answer.into_inner();
        Ok(Told::granted(answer.fencing_token, &answer.reason))
    }

    /// Gives up the lock with this token until there is a signal.
    async fn await_signal(&self, name: String, owner: &str, fencing_token: u64) -> Result<Told, Status> {
        let request = v1::AwaitRequest {
            namespace: NAMESPACE.to_owned(),
            name: Some(name),
            process_id: Some(owner.to_owned()),
            fencing_token,
            wait_ms: WAIT_MS,
            relock_ms: Some(WAIT_MS),
            ttl_ms: Some(TTL_MS),
            ..Default::default()
        };
        let answer = LocksServiceClient::new(self.channel.clone()).r#await(self.signed(request)).await?.into_inner();
        let told = Told::granted(answer.fencing_token, &answer.reason);
        assert_eq!(answer.woken(), v1::Woken::Signalled, "{owner}");
        Ok(told)
    }

    /// Arrives in this generation.
    async fn meet(&self, name: String, owner: &str, generation: u64) -> Result<Told, Status> {
        let request = v1::ArriveAtBarrierRequest {
            namespace: NAMESPACE.to_owned(),
            name: Some(name),
            process_id: Some(owner.to_owned()),
            generation: Some(generation),
            ttl_ms: Some(TTL_MS),
            wait_ms: WAIT_MS,
            ..Default::default()
        };
        let mut client = BarriersServiceClient::new(self.channel.clone());
        let answer = client.arrive_at_barrier(self.signed(request)).await?.into_inner();
        assert_eq!(answer.generation, generation, "{owner}");
        Ok(match (answer.outcome(), answer.index) {
            (v1::barrier_answer::Outcome::Tripped, Some(index)) => Told::Met(index.into()),
            (v1::barrier_answer::Outcome::Broken, _) => Told::Broken,
            other => panic!("{owner} was told {other:?}"),
        })
    }

    /// Waits for a thing with one call. `since` is the generation of a barrier, or the token that an await gives up.
    async fn wait_for(&self, thing: Thing, owner: &str, since: u64) -> Result<Told, Status> {
        let (namespace, name, channel) = (NAMESPACE.to_owned(), Some(thing.name()), self.channel.clone());
        let (process_id, ttl_ms, wait_ms) = (Some(owner.to_owned()), Some(TTL_MS), WAIT_MS);
        let request_id = owner.to_owned();
        match thing.kind {
            ThingKind::Lock => self.lock(thing.name(), owner).await,
            ThingKind::Condition => self.await_signal(thing.name(), owner, since).await,
            ThingKind::Barrier => self.meet(thing.name(), owner, since).await,
            ThingKind::Semaphore => {
                let rest = v1::AcquirePermitsRequest::default();
                let request =
                    v1::AcquirePermitsRequest { namespace, name, process_id, request_id, ttl_ms, wait_ms, ..rest };
                let mut client = SemaphoresServiceClient::new(channel);
                let answer = client.acquire_permits(self.signed(request)).await?.into_inner();
                Ok(Told::granted(answer.fencing_token, &answer.reason))
            }
            ThingKind::Pool => {
                let rest = v1::TakeMembersRequest::default();
                let request =
                    v1::TakeMembersRequest { namespace, name, process_id, request_id, ttl_ms, wait_ms, ..rest };
                let answer = PoolsServiceClient::new(channel).take_members(self.signed(request)).await?.into_inner();
                Ok(Told::granted(answer.fencing_token, &answer.reason))
            }
            ThingKind::Latch => {
                let request = v1::WaitForLatchRequest { namespace, name, wait_ms, ..Default::default() };
                let mut client = LatchesServiceClient::new(channel);
                let answer = client.wait_for_latch(self.signed(request)).await?.into_inner();
                Ok(match answer.outcome() {
                    v1::wait_for_latch_response::Outcome::Completed => Told::Completed,
                    v1::wait_for_latch_response::Outcome::Expired => Told::Expired,
                    other => panic!("{owner} was told {other:?} of {}", thing.name()),
                })
            }
        }
    }

    /// What the wait for a thing begins with.
    async fn begin(&self, api: &RestClient, thing: Thing, owner: &str) -> u64 {
        match thing.kind {
            ThingKind::Barrier => thing.generation(api).await,
            ThingKind::Condition => loop {
                if let Some(Told::Granted(token)) = outcome_or_retry(self.lock(thing.name(), owner).await).await {
                    break token;
                }
            },
            _ => 0,
        }
    }
}

impl Told {
    fn granted(token: Option<u64>, reason: &Option<v1::Refusal>) -> Self {
        Self::Granted(token.unwrap_or_else(|| panic!("a request that waits is refused: {reason:?}")))
    }
}

/// Whether the call may be repeated: it was not answered, or not taken.
fn is_repeatable(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled)
}

/// What a call was told; nothing if it has to be made again.
async fn outcome_or_retry(answer: Result<Told, Status>) -> Option<Told> {
    match answer {
        Ok(told) => Some(told),
        Err(status) => {
            assert!(is_repeatable(&status), "a wait: {status}");
            wait_before_retry().await;
            None
        }
    }
}

/// Waits until it is told an outcome, and gives back what it was granted.
pub(super) async fn wait_until_told(connection: Connection, api: RestClient, thing: Thing, owner: String) -> Told {
    let since = connection.begin(&api, thing, &owner).await;
    let told = loop {
        if let Some(told) = outcome_or_retry(connection.wait_for(thing, &owner, since).await).await {
            break told;
        }
    };
    if let Told::Granted(_) = told {
        release(&api, thing, &owner).await;
    }
    told
}
