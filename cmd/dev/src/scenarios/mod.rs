//! `dev scenario-…`: one scenario for each feature of the service, step by step, from a tenant's view.
//!
//! Every scenario uses a new namespace, which is deleted afterwards. An unexpected result ends the scenario with exit
//! status 1.

mod asking_back;
mod atomic_sets;
mod barrier;
mod condition;
mod deadlock;
mod events;
mod fencing;
mod latch;
mod leader_loss;
mod lock_table;
mod pool;
mod print;
mod queue;
mod rebuild;
mod runner;
mod semaphore;
mod session_dies;
mod socket;
mod tree_locks;
mod watcher_resumes;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use holdfast_auth::Secret;
use holdfast_operator::api::{self, CallError, Client};
use holdfast_operator::{AccountId, ServiceArgs};
use serde_json::json;

pub(crate) use rebuild::RebuildArgs;
use runner::ScenarioRunner;

/// Maximum wait for steps that normally take a moment.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// The account that the first start creates.
const DEMO_EMAIL: &str = "demo@example.com";

/// Flags of the scenarios.
#[derive(Debug, Args)]
pub(crate) struct ScenarioArgs {
    /// The account: 16 digits are hex, more are decimal; the demo account of the first start when absent.
    #[arg(long, env = "HOLDFAST_ACCOUNT", value_name = "ID")]
    account_id: Option<AccountId>,
}

/// The scenarios.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scenario<'a> {
    TreeLocks,
    AtomicSets,
    Queue,
    SessionDies,
    Deadlock,
    WatcherResumes,
    Fencing,
    Condition,
    Semaphore,
    Pool,
    Latch,
    Barrier,
    AskingBack,
    Rebuild(&'a RebuildArgs),
}

impl Scenario<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::TreeLocks => "tree-locks",
            Self::AtomicSets => "atomic-sets",
            Self::Queue => "queue",
            Self::SessionDies => "session-dies",
            Self::Deadlock => "deadlock",
            Self::WatcherResumes => "watcher-resumes",
            Self::Fencing => "fencing",
            Self::Condition => "condition",
            Self::Semaphore => "semaphore",
            Self::Pool => "pool",
            Self::Latch => "latch",
            Self::Barrier => "barrier",
            Self::AskingBack => "asking-back",
            Self::Rebuild(_) => "rebuild",
        }
    }

    /// Returns where the locks of its namespace are kept.
    fn durability(self) -> &'static str {
        if matches!(self, Self::Rebuild(_)) { "SESSION" } else { "FULL" }
    }

    async fn run(self, stage: &ScenarioRunner) -> Result<()> {
        match self {
            Self::TreeLocks => tree_locks::run(stage).await,
            Self::AtomicSets => atomic_sets::run(stage).await,
            Self::Queue => queue::run(stage).await,
            Self::SessionDies => session_dies::run(stage).await,
            Self::Deadlock => deadlock::run(stage).await,
            Self::WatcherResumes => watcher_resumes::run(stage).await,
            Self::Fencing => fencing::run(stage).await,
            Self::Condition => condition::run(stage).await,
            Self::Semaphore => semaphore::run(stage).await,
            Self::Pool => pool::run(stage).await,
            Self::Latch => latch::run(stage).await,
            Self::Barrier => barrier::run(stage).await,
            Self::AskingBack => asking_back::run(stage).await,
            Self::Rebuild(args) => rebuild::run(stage, args).await,
        }
    }
}

/// Runs a scenario with a new key and a new namespace, which are deleted afterwards in any case.
pub(crate) async fn run(service: &ServiceArgs, args: &ScenarioArgs, scenario: Scenario<'_>) -> Result<()> {
    let operator = api::operator_client(service).await?;
    let account = match args.account_id {
        Some(account) => account,
        None => demo_account(&operator).await?,
    };
    let keys = format!("/v1/accounts/{account}/api-keys");
    let body = json!({"description": format!("dev scenario-{}; deleted at its end", scenario.name())});
    let key = operator.create(&keys, &body).await.context("making an API key")?;
    let key_id = api::text_field(&key, "key_id")?.to_owned();
    let secret = Secret::new(api::text_field(&key, "api_key")?);

    let played = tokio::select! {
        played = run_in_namespace(service, (&operator, account), secret, scenario) => played,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("stopped; a namespace scenario-… may be left behind")),
    };
    let deleted = operator.delete(&format!("{keys}/{key_id}")).await;
    played?;
    ignore_missing(deleted, "API_KEY_NOT_FOUND").with_context(|| format!("the API key {key_id} is left behind"))
}

async fn run_in_namespace(
    service: &ServiceArgs,
    (operator, account): (&Client, AccountId),
    secret: Secret,
    scenario: Scenario<'_>,
) -> Result<()> {
    let tenant = operator.with_bearer(secret.clone());
    let unique = uuid::Uuid::new_v4().simple().to_string();
    let namespace = format!("scenario-{}-{}", scenario.name(), &unique[..8]);
    let description = "made by dev; deleted at the end of the scenario";
    let body = json!({"name": namespace, "description": description, "durability": scenario.durability()});
    tenant.create("/v1/namespaces", &body).await.context("making a namespace")?;
    let stage = ScenarioRunner::new(service, operator, account, secret, namespace.clone());
    let played = scenario.run(&stage).await;
    let deleted = tenant.delete(&format!("/v1/namespaces/{namespace}")).await;
    played?;
    ignore_missing(deleted, "NAMESPACE_NOT_FOUND")
        .with_context(|| format!("the namespace {namespace} is left behind"))?;
    stage.print_step("All responses were as expected")
}

/// Ignores a missing object: an earlier attempt may have deleted it, and its response was lost.
fn ignore_missing(deleted: Result<(), CallError>, code: &str) -> Result<()> {
    match deleted {
        Err(error) if error.has_code(code) => Ok(()),
        deleted => Ok(deleted?),
    }
}

async fn demo_account(operator: &Client) -> Result<AccountId> {
    let mut path = "/v1/accounts?page_size=1000".to_owned();
    loop {
        let page = operator.get(&path).await.context("looking for the demo account")?;
        let accounts = page["accounts"].as_array();
        if let Some(demo) = accounts.into_iter().flatten().find(|account| account["email"] == DEMO_EMAIL) {
            return api::text_field(demo, "id")?.parse::<AccountId>().context("the id of the demo account");
        }
        let Some(token) = page["next_page_token"].as_str() else { break };
        path = format!("/v1/accounts?page_size=1000&page_token={token}");
    }
    bail!("there is no account {DEMO_EMAIL}; name one with --account-id (`dev seed-accounts` makes some)")
}
