//! `holdfast-admin usage`: the usage of every account since its creation, for billing, and of its limits.

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
    /// Also print each limit of which something is used; JSON always has all.
    #[arg(long, env = "HOLDFAST_LIMITS")]
    limits: bool,
}

/// Fetches the accounts page by page, and prints the usage of each.
pub(crate) async fn run(service: &ServiceArgs, args: &UsageArgs) -> Result<()> {
    let client = api::operator_client(service).await?;
    if service.output == Format::Text {
        output::print(heading())?;
    }
    if let Some(id) = args.account_id {
        let account = client.get(&format!("/v1/accounts/{id}")).await?;
        return print_usage(&client, service.output, args.limits, &account).await;
    }
    let mut path = ACCOUNTS_PATH.to_owned();
    loop {
        let page = client.get(&path).await.context("listing the accounts")?;
        for account in page["accounts"].as_array().into_iter().flatten() {
            print_usage(&client, service.output, args.limits, account).await?;
        }
        match page["next_page_token"].as_str() {
            Some(token) if !token.is_empty() => path = format!("{ACCOUNTS_PATH}&page_token={token}"),
            _ => return Ok(()),
        }
    }
}

async fn print_usage(client: &Client, format: Format, with_limits: bool, account: &Value) -> Result<()> {
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
        Format::Text if with_limits => output::print(row(&usage)? + &limit_rows(&usage)?),
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

/// The limits of which something is used, one a line below the row of the account.
fn limit_rows(usage: &Value) -> Result<String> {
    let mut lines = String::new();
    let rows = usage["limit_usage"].as_array().context("the service's answer has no \"limit_usage\"")?;
    for row in rows.iter().filter(|row| row["used"].as_u64().is_some_and(|used| used > 0)) {
        let (limit, each) = (api::text_field(row, "limit")?, api::text_field(row, "each")?);
        let figure = |name: &str| row[name].as_u64().with_context(|| format!("the service's answer has no {name:?}"));
        write!(lines, "\n  {limit:<32} {:>12} of {:<12} {each}", figure("used")?, figure("max")?)?;
    }
    Ok(lines)
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

    #[test]
    fn a_limit_that_is_used_is_a_line_of_its_own() {
        let each = "account and shard";
        let row = |limit: &str, used: u64| json!({"limit": limit, "each": each, "used": used, "max": 900});
        let without_use = json!({"limit": "max_readers_per_lock", "each": "lock", "max": 1_000});
        let shown = json!({"limit_usage": [row("max_state_bytes", 17), row("max_tangle", 0), without_use]});
        let rows = limit_rows(&shown).unwrap();
        assert_eq!(
            rows.split_whitespace().collect::<Vec<_>>().join(" "),
            "max_state_bytes 17 of 900 account and shard"
        );
        assert_eq!(rows.lines().count(), 2, "the first is the end of the account's row");
        assert!(limit_rows(&json!({})).is_err());
    }
}
