//! `holdfast-admin usage`: the usage of every account since its creation, for billing.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::Args;
use holdfast_operator::api::{self, Client};
use holdfast_operator::output::{self, Format};
use holdfast_operator::{AccountId, ServiceArgs};
use serde_json::Value;

/// Path of the list of accounts, with the page size.
const ACCOUNTS_PATH: &str = "/v1/accounts?page_size=1000";
/// The columns of the text output; JSON contains all fields.
const COLUMNS: [&str; 5] = ["operations", "grants", "waits", "holds", "peak_holds"];

/// Flags of `holdfast-admin usage`.
#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// Only this account; 16 digits are hex, more are decimal; all when absent.
    #[arg(long, env = "HOLDFAST_ACCOUNT", value_name = "ID")]
    account_id: Option<AccountId>,
}

/// Fetches the accounts page by page, and prints the usage of each.
pub(crate) async fn run(service: &ServiceArgs, args: &UsageArgs) -> Result<()> {
    let client = api::operator_client(service).await?;
    if service.output == Format::Text {
        output::print(heading())?;
    }
    if let Some(id) = args.account_id {
        let account = client.get(&format!("/v1/accounts/{id}")).await?;
        return print_usage(&client, service.output, &account).await;
    }
    let mut path = ACCOUNTS_PATH.to_owned();
    loop {
        let page = client.get(&path).await.context("listing the accounts")?;
        for account in page["accounts"].as_array().into_iter().flatten() {
            print_usage(&client, service.output, account).await?;
        }
        match page["next_page_token"].as_str() {
            Some(token) if !token.is_empty() => path = format!("{ACCOUNTS_PATH}&page_token={token}"),
            _ => return Ok(()),
        }
    }
}

async fn print_usage(client: &Client, format: Format, account: &Value) -> Result<()> {
    let id = api::text_field(account, "id")?;
    let mut usage = match client.get(&format!("/v1/usage?account={id}")).await {
        Ok(usage) => usage,
        // The account was deleted after it was listed, and its usage with it.
        Err(error) if error.has_code("ACCOUNT_NOT_FOUND") => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("the usage of account {id}")),
    };
    for field in ["email", "status"] {
        usage[field] = account[field].clone();
    }
    match format {
        Format::Json => output::print(usage),
        Format::Text => output::print(row(&usage)?),
    }
}

fn heading() -> String {
    let mut line = format!("{:<16}", "ACCOUNT");
    for column in COLUMNS {
        let _ = write!(line, " {:>12}", column.to_uppercase());
    }
    line + "  EMAIL"
}

fn row(usage: &Value) -> Result<String> {
    let mut line = format!("{:<16}", api::text_field(usage, "account_id")?);
    for column in COLUMNS {
        let figure = usage["total"][column].as_u64();
        let figure =
            figure.with_context(|| format!("the service's answer has no {column:?}; is it of this version?"))?;
        write!(line, " {figure:>12}")?;
    }
    Ok(line + "  " + api::text_field(usage, "email")?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_account_is_a_row_below_its_headings() {
        let total = json!({"operations": 7, "grants": 5, "waits": 1, "holds": 0, "peak_holds": 4});
        let usage = json!({"account_id": "00000000000000aa", "email": "a@example.com", "total": total});
        let (heading, row) = (heading(), row(&usage).unwrap());
        assert_eq!(
            row,
            "00000000000000aa            7            5            1            0            4  a@example.com"
        );
        assert_eq!(heading.find("EMAIL"), row.find("a@"));
        assert!(super::row(&json!({"account_id": "a", "email": "b", "total": {}})).is_err());
    }
}
