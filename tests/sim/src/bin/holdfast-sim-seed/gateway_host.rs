//! A gateway's process on a simulated host, with the clients that call it: both end together.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use holdfast_api::{ApiResult, Code, CreateAccount, CreateApiKey, LimitsPatch, UpdateAccount};
use holdfast_backend::{Backend, BackendOptions, CallContext, Service};
use holdfast_core::{Claim, Mode, Owner, Path};
use tokio::time::sleep;

use crate::client::{
    Client, STABLE_NAMESPACES, attack, create_soft_namespace, hold_asked_locks, use_soft_locks, watch,
};
use crate::history::{AcquireOp, Answer, Op};
use crate::host_clocks::HostClocks;
use crate::host_state::HostState;
use crate::network::SimConnector;
use crate::world::{Phase, Tenant, World, gateway_name};

/// How often it is looked where the run is.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Between attempts of what must succeed in the end.
const RETRY_DELAY: Duration = Duration::from_millis(50);
const TENANTS: usize = 2;
/// Clients of semaphores and latches, of each gateway that has them.
const THING_CLIENTS: usize = 3;
/// The same of pools.
const POOL_CLIENTS: usize = 3;
/// The same of barriers.
const BARRIER_CLIENTS: usize = 4;
/// The same of conditions.
const CONDITION_CLIENTS: usize = 4;
/// Clients that ask others to release what they hold, of each gateway that has them.
const ASK_CLIENTS: usize = 2;

/// Runs until the host crashes.
pub(crate) async fn run(world: Arc<World>, number: usize) -> turmoil::Result {
    let name = gateway_name(number);
    let run = world.gateway_starts[number].fetch_add(1, Ordering::Relaxed) + 1;
    world.hosts.set(&name, HostState::Up);
    world.record(format!("{name} starts, run {run}"));
    let service = start_service(&world, &name)?;
    if number == 0 && world.phase() == Phase::Setup {
        create_tenants(&world, &service).await?;
        world.set_phase(Phase::Chaos);
    }
    wait_for_phase(&world, Phase::Chaos).await;
    let name = format!("{name}.{run}");
    if world.plan.lost_answers {
        Client::new(Arc::clone(&world), service.clone(), format!("{name}.lost")).lose_answers().await;
        world.set_phase(Phase::Healed);
    }
    spawn_clients(&world, &service, number, &name);
    if let Some(tenant) = world.tenants().first().filter(|_| world.plan.has_asks) {
        hold_asked_locks(&world, tenant, &name)?;
    }
    if let Some(tenant) = world.tenants().first().filter(|_| world.plan.has_soft) {
        use_soft_locks(&world, tenant, number, &name)?;
    }
    let hostile = world.hostile.lock().clone();
    if let Some(tenant) = hostile {
        tokio::spawn(attack(Arc::clone(&world), service.clone(), tenant, name.clone()));
    }
    for (tenant, namespace) in world.tenants().into_iter().zip(STABLE_NAMESPACES) {
        tokio::spawn(watch(Arc::clone(&world), service.clone(), tenant, namespace, name.clone()));
    }
    wait_for_phase(&world, Phase::Healed).await;
    let probe = Client::new(Arc::clone(&world), service.clone(), format!("{name}.probe"));
    probe_all(&world, probe).await;
    world.served.lock().push(number);
    std::future::pending().await
}

/// Starts a gateway in this process.
///
/// # Errors
/// As [`Backend::start`].
pub(crate) fn start_service(world: &Arc<World>, name: &str) -> Result<Service> {
    let connector = match world.plan.lost_answers {
        true => SimConnector::counted(Arc::clone(world)),
        false => SimConnector::new(Arc::clone(world)),
    };
    let name = name.to_owned();
    let mut options = BackendOptions::new(world.config.clone(), world.secret.clone(), &world.operator, name);
    options.dialer = connector;
    options.clocks = Arc::new(HostClocks::default()).start();
    Ok(Backend::start(options)?)
}

fn spawn_clients(world: &Arc<World>, service: &Service, number: usize, name: &str) {
    let client = |of: String| Client::new(Arc::clone(world), service.clone(), format!("{name}.{of}"));
    let (plan, is_read_only) = (&world.plan, world.plan.read_only_gateway == Some(number));
    for number in 0..plan.clients {
        let client = client(number.to_string());
        tokio::spawn(if is_read_only { client.read_only() } else { client }.run());
    }
    if is_read_only {
        return;
    }
    let clients = |of: &'static str, is_there: bool, count: usize| {
        (0..if is_there { count } else { 0 }).map(move |number| format!("{of}{number}"))
    };
    clients("things", plan.has_things, THING_CLIENTS).for_each(|of| drop(tokio::spawn(client(of).use_things())));
    clients("pools", plan.has_pools, POOL_CLIENTS).for_each(|of| drop(tokio::spawn(client(of).use_pools())));
    clients("barriers", plan.has_barriers, BARRIER_CLIENTS)
        .for_each(|of| drop(tokio::spawn(client(of).use_barriers())));
    clients("conditions", plan.has_conditions, CONDITION_CLIENTS)
        .for_each(|of| drop(tokio::spawn(client(of).use_conditions())));
    clients("asks", plan.has_asks, ASK_CLIENTS).for_each(|of| drop(tokio::spawn(client(of).use_asks())));
}

async fn wait_for_phase(world: &World, stage: Phase) {
    while world.phase() < stage {
        sleep(POLL_INTERVAL).await;
    }
}

/// Makes the tenants and the namespaces that stay. Nothing goes wrong yet, but leaders must be found first.
async fn create_tenants(world: &Arc<World>, service: &Service) -> Result<()> {
    let hostile = usize::from(world.plan.hostile);
    for number in 0..TENANTS + hostile {
        let tenant = loop {
            match create_tenant(world, service, number).await {
                Ok(tenant) => break tenant,
                Err(error) => {
                    world.record(format!("setup waits: {error:?}"));
                    sleep(RETRY_DELAY).await;
                }
            }
        };
        if number < TENANTS {
            world.tenants.lock().push(tenant);
        } else {
            *world.hostile.lock() = Some(tenant);
        }
    }
    if let Some(tenant) = world.tenants().first().filter(|_| world.plan.has_soft) {
        create_soft_namespace(world, service, tenant).await;
    }
    let mut client = Client::new(Arc::clone(world), service.clone(), "setup".to_owned()).with_long_deadlines();
    let attacker = world.hostile.lock().clone();
    for tenant in world.tenants().into_iter().chain(attacker) {
        for namespace in STABLE_NAMESPACES {
            while !matches!(client.call(&tenant, namespace, Op::CreateNamespace).await, Answer::Namespace { .. }) {
                sleep(RETRY_DELAY).await;
            }
        }
    }
    Ok(())
}

async fn create_tenant(world: &World, service: &Service, number: usize) -> ApiResult<Tenant> {
    let context = |what: &str| CallContext::new("setup").with_idempotency_key(Some(format!("{what}-{number}")));
    let operator = service.authenticate(Some(world.operator.reveal().expose()), &context("who")).await?;
    let request = CreateAccount {
        email: format!("tenant-{number}@example.com"),
        full_name: "Tenant".to_owned(),
        max_number_of_namespaces: None,
    };
    let account = service.create_account(&operator, &context("account"), request).await?;
    // Rates are counted on the machine's own clock, which stands still here.
    let limits = LimitsPatch { max_requests_per_second: Some(0), ..LimitsPatch::default() };
    let update = UpdateAccount { limits: Some(limits), ..UpdateAccount::default() };
    service.update_account(&operator, &context("limits"), &account.id, update).await?;
    let request = CreateApiKey::default();
    let key = service.create_api_key(&operator, &context("key"), Some(&account.id), request).await?;
    let account = account.id.parse().map_err(|_| holdfast_api::ApiError::internal("an account id is no id"))?;
    Ok(Tenant { account, api_key: key.api_key })
}

/// Takes and releases a lock in every namespace that stays, and makes and deletes a namespace of every tenant, trying
/// until it succeeds: so every shard of locks and of names has to write, and to tell others what they must know.
async fn probe_all(world: &World, mut client: Client) {
    for tenant in world.tenants() {
        // What was done without an answer is refused when it is done again.
        let made = |answer: &Answer| matches!(answer, Answer::Namespace { .. } | Answer::Refused(Code::AlreadyExists));
        let gone = |answer: &Answer| matches!(answer, Answer::Done | Answer::Refused(Code::NamespaceNotFound));
        let name = client.name().replace('.', "-");
        while !made(&client.call(&tenant, &name, Op::CreateNamespace).await) {
            sleep(RETRY_DELAY).await;
        }
        while !gone(&client.call(&tenant, &name, Op::DeleteNamespace { id: None }).await) {
            sleep(RETRY_DELAY).await;
        }
        for namespace in STABLE_NAMESPACES {
            let path = Path::flat(format!("probe of {}", client.name()));
            let owner = Owner::Process("probe".to_owned());
            let acquire = Op::Acquire(AcquireOp {
                owner: owner.clone(),
                claims: vec![Claim { path: path.clone(), mode: Mode::Write }],
                ttl_ms: Some(1_000),
                transition_ms: 0,
                wait_ms: 0,
                token: None,
                allow_upgrade: false,
                at_least_ms: 0,
            });
            while !matches!(
                client.call(&tenant, namespace, acquire.clone()).await,
                Answer::Acquired { outcome: Ok(_), .. }
            ) {
                sleep(RETRY_DELAY).await;
            }
            let release = Op::Release { owner, path, token: None };
            while !matches!(client.call(&tenant, namespace, release.clone()).await, Answer::Released { .. }) {
                sleep(RETRY_DELAY).await;
            }
        }
    }
}
