//! `dev seed-accounts`: accounts for experiments with the service.

use std::collections::HashMap;

use anyhow::{Context, Result};
use clap::Args;
use futures::{StreamExt, stream};
use holdfast_operator::ServiceArgs;
use holdfast_operator::api::{self, Client};
use holdfast_operator::output::{self, Format};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Accounts created concurrently.
const CONCURRENCY: usize = 8;

/// Flags of `dev seed-accounts`.
#[derive(Debug, Args)]
pub(crate) struct SeedAccountsArgs {
    /// The number of accounts.
    #[arg(long, env = "HOLDFAST_SEED_COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
}

/// An existing or new account.
struct Seeded {
    id: String,
    email: String,
    /// Only of a new account: a key is shown once.
    api_key: Option<String>,
}

/// Creates the missing accounts, and prints each account in order.
pub(crate) async fn run(service: &ServiceArgs, args: &SeedAccountsArgs) -> Result<()> {
    let seeder = Seeder { client: api::operator_client(service).await?, existing: OnceCell::new() };
    let (mut created, mut existed) = (0, 0);
    let mut accounts = stream::iter(1..=args.count).map(|number| seeder.seed(number)).buffered(CONCURRENCY);
    while let Some(account) = accounts.next().await {
        let account = account?;
        *(if account.api_key.is_some() { &mut created } else { &mut existed }) += 1;
        print_account(service.output, &account)?;
    }
    output::info(format_args!("{created} created, {existed} existed"));
    if existed > 0 {
        output::info("keys are shown once; POST /v1/accounts/{id}/api-keys makes another");
    }
    Ok(())
}

fn print_account(format: Format, account: &Seeded) -> Result<()> {
    let Seeded { id, email, api_key } = account;
    match (format, api_key) {
        (Format::Text, Some(api_key)) => output::print(format_args!("created account {id} {email} {api_key}")),
        (Format::Text, None) => output::print(format_args!("account {id} exists {email}")),
        (Format::Json, _) => output::print(json!({
            "account_id": id, "email": email, "created": api_key.is_some(), "api_key": api_key,
        })),
    }
}

struct Seeder {
    client: Client,
    /// Ids by e-mail, listed when the first account already exists.
    existing: OnceCell<HashMap<String, String>>,
}

impl Seeder {
    async fn seed(&self, number: u32) -> Result<Seeded> {
        let email = format!("account+{number:04}@example.com");
        let body = json!({"email": email, "full_name": format!("Account {number:04}")});
        match self.client.create("/v1/accounts", &body).await {
            Ok(account) => {
                let id = api::text_field(&account, "id")?.to_owned();
                let body = json!({"description": "made by dev seed-accounts"});
                let key = self.client.create(&format!("/v1/accounts/{id}/api-keys"), &body).await;
                let key = key.with_context(|| format!("account {id} ({email}) was made and its API key was not"))?;
                Ok(Seeded { id, email, api_key: Some(api::text_field(&key, "api_key")?.to_owned()) })
            }
            Err(error) if error.has_code("ALREADY_EXISTS") => {
                let existing = self.existing.get_or_try_init(|| list(&self.client)).await?;
                let id = existing.get(&email).cloned();
                let id = id.with_context(|| format!("{email} existed and was deleted meanwhile; run this again"))?;
                Ok(Seeded { id, email, api_key: None })
            }
            Err(error) => Err(error).with_context(|| format!("creating the account {email}")),
        }
    }
}

/// Lists all accounts: ids by e-mail.
async fn list(client: &Client) -> Result<HashMap<String, String>> {
    let mut ids = HashMap::new();
    let mut path = "/v1/accounts?page_size=1000".to_owned();
    loop {
        let page = client.get(&path).await.context("listing the accounts")?;
        for account in page["accounts"].as_array().into_iter().flatten() {
            ids.insert(api::text_field(account, "email")?.to_owned(), api::text_field(account, "id")?.to_owned());
        }
        match &page["next_page_token"] {
            Value::String(token) if !token.is_empty() => {
                path = format!("/v1/accounts?page_size=1000&page_token={token}");
            }
            _ => return Ok(ids),
        }
    }
}
