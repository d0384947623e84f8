//! The operator token: from the flags, or from the files that a first start on this machine writes.

use std::path::Path;

use anyhow::{Context, Result, bail};
use holdfast_auth::{OperatorToken, read_secret_file};

use super::Client;
use crate::{ServiceArgs, output};

/// The files that `holdfast-standalone` and `dev cluster up` write by default.
const TOKEN_FILES: [&str; 2] = ["./data/operator.token", "./data/cluster/operator.token"];

/// Returns a client with the operator token.
///
/// # Errors
/// If there is no token, or the service accepts none of the tokens found.
pub async fn operator_client(service: &ServiceArgs) -> Result<Client> {
    if let Some(text) = &service.operator_token {
        let token = OperatorToken::parse(text.trim()).context("--operator-token")?;
        return Client::new(service.url.clone(), token.reveal().clone());
    }
    let found: Vec<&str> = TOKEN_FILES.into_iter().filter(|file| Path::new(file).exists()).collect();
    for file in &found {
        let client = Client::new(service.url.clone(), read_token(file)?.reveal().clone())?;
        // A single token needs no check: the first call reports if it is wrong.
        if found.len() == 1 || is_accepted(&client).await? {
            output::info(format_args!("using the operator token of {file}"));
            return Ok(client);
        }
    }
    if found.is_empty() {
        bail!(
            "no operator token: set HOLDFAST_OPERATOR_TOKEN, or run this where one of {} is, which the first start of a \
             cluster writes",
            TOKEN_FILES.join(", ")
        );
    }
    bail!(
        "the service at {} accepts neither {}: set HOLDFAST_OPERATOR_TOKEN to the one of its first start",
        service.url,
        found.join(" nor ")
    )
}

fn read_token(file: &str) -> Result<OperatorToken> {
    Ok(read_secret_file(Path::new(file))?.operator_token()?)
}

async fn is_accepted(client: &Client) -> Result<bool> {
    match client.get("/v1/accounts?page_size=1").await {
        Ok(_) => Ok(true),
        Err(error) if error.has_code("UNAUTHENTICATED") => Ok(false),
        Err(error) => Err(error.into()),
    }
}
