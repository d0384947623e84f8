//! `dev scenario-1`: a namespace and a lock in it, step by step.

use anyhow::{Context, Result, bail};
use clap::Args;
use holdfast_auth::Secret;
use holdfast_operator::api::{self, CallError, Client};
use holdfast_operator::output::{self, Format};
use holdfast_operator::{AccountId, ServiceArgs};
use serde_json::{Value, json};

const NAMESPACE: &str = "my-namespace";
const LOCK: &str = "my-lock-1";
const PROCESS: &str = "process-id-1";
const TTL_MS: u64 = 60_000;

/// Flags of `dev scenario-1`.
#[derive(Debug, Args)]
pub(crate) struct Scenario1Args {
    /// The account: 16 digits are hex, more are decimal.
    #[arg(long, env = "HOLDFAST_ACCOUNT", value_name = "ID")]
    account_id: AccountId,
}

/// Prints the steps and responses.
#[derive(Clone, Copy)]
struct ScenarioOutput(Format);

impl ScenarioOutput {
    /// Prints the next step.
    fn step(self, text: &str) -> Result<()> {
        match self.0 {
            Format::Text => output::print(format_args!("\n# {text}")),
            Format::Json => {
                output::info(format_args!("# {text}"));
                Ok(())
            }
        }
    }

    /// Prints the service's response to a call.
    fn answer(self, call: &str, answer: &Value) -> Result<()> {
        match self.0 {
            Format::Text => output::print(format_args!("{call}\n{answer:#}")),
            Format::Json => output::print(json!({"call": call, "answer": answer})),
        }
    }
}

/// Runs the scenario with a new key, which is deleted afterwards in any case.
pub(crate) async fn run(service: &ServiceArgs, args: &Scenario1Args) -> Result<()> {
    let narrator = ScenarioOutput(service.output);
    let operator = api::operator_client(service).await?;
    let keys = format!("/v1/accounts/{}/api-keys", args.account_id);

    narrator.step(&format!("The operator makes an API key for account {}", args.account_id))?;
    let body = json!({"description": "dev scenario-1; deleted at its end"});
    let mut key = operator.create(&keys, &body).await.context("making an API key")?;
    let key_id = api::text_field(&key, "key_id")?.to_owned();
    let own = operator.with_bearer(Secret::new(api::text_field(&key, "api_key")?));
    // Others may see the screen, and the key is valid until the end of the scenario.
    key["api_key"] = json!("[secret]");

    let result = async {
        narrator.answer(&format!("POST {keys}"), &key)?;
        tokio::select! {
            result = run_steps(narrator, &own) => result,
            _ = tokio::signal::ctrl_c() => bail!("stopped"),
        }
    }
    .await;

    let told = narrator.step("The operator deletes the API key");
    let deleted = operator.delete(&format!("{keys}/{key_id}")).await;
    result?;
    told?;
    match deleted {
        // An earlier attempt deleted it, and its response was lost.
        Err(error) if error.has_code("API_KEY_NOT_FOUND") => Ok(()),
        deleted => deleted.with_context(|| format!("the API key {key_id} of the account is left behind")),
    }
}

async fn run_steps(narrator: ScenarioOutput, client: &Client) -> Result<()> {
    let path = format!("/v1/namespaces/{NAMESPACE}");
    narrator.step(&format!("Get the namespace {NAMESPACE}"))?;
    match client.get(&path).await {
        Ok(namespace) => narrator.answer(&format!("GET {path}"), &namespace)?,
        Err(error) if error.has_code("NAMESPACE_NOT_FOUND") => {
            narrator.answer(&format!("GET {path}"), problem(&error))?;
            narrator.step("It is not there, so create it")?;
            create_namespace(narrator, client).await?;
        }
        Err(error) => return Err(error).context("getting the namespace"),
    }

    let path = format!("{path}/locks/{LOCK}/acquire");
    narrator.step(&format!("Acquire {LOCK} for writing as {PROCESS} for a minute"))?;
    let body = json!({"process_id": PROCESS, "mode": "WRITE", "ttl_ms": TTL_MS});
    let answer = client.post(&path, &body).await.context("acquiring the lock")?;
    narrator.answer(&format!("POST {path}"), &answer)?;
    if answer["success"] == true {
        narrator.step(&format!("Granted, with fencing token {}", answer["fencing_token"]))
    } else {
        narrator.step(&format!("Refused, with reason {}", answer["reason"]["code"].as_str().unwrap_or("unknown")))
    }
}

async fn create_namespace(narrator: ScenarioOutput, client: &Client) -> Result<()> {
    let call = "POST /v1/namespaces";
    match client.create("/v1/namespaces", &json!({"name": NAMESPACE, "description": "made by dev scenario-1"})).await {
        Ok(namespace) => narrator.answer(call, &namespace),
        Err(error) if error.has_code("ALREADY_EXISTS") => {
            narrator.answer(call, problem(&error))?;
            narrator.step("Somebody else has just created it, which serves as well")
        }
        Err(error) => Err(error).context("creating the namespace"),
    }
}

/// Returns the service's problem document, if the error contains one.
fn problem(error: &CallError) -> &Value {
    match error {
        CallError::Problem { body, .. } => body,
        _ => &Value::Null,
    }
}
