//! The operator's credential: given, or found where a first start on this machine leaves it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use holdfast_auth::{OperatorToken, read_secret_file};

use super::Client;
use crate::{Global, output};

/// Where `holdfast-standalone` and `dev cluster up` write the token by default.
const TOKEN_FILES: [&str; 2] = ["./data/operator.token", "./data/cluster/operator.token"];

/// A client with the operator token.
pub(crate) async fn operator_client(global: &Global) -> Result<Client> {
    if let Some(text) = &global.operator_token {
        let token = OperatorToken::parse(text.trim()).context("--operator-token")?;
        return Client::new(global.url.clone(), token.reveal().clone());
    }
    let found: Vec<&str> = TOKEN_FILES.into_iter().filter(|file| Path::new(file).exists()).collect();
    for file in &found {
        let client = Client::new(global.url.clone(), read_token(file)?.reveal().clone())?;
        // With one there is nothing to choose, and what is wrong with it shows at the first call.
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
        global.url,
        found.join(" nor ")
    )
}

fn read_token(file: &str) -> Result<OperatorToken> {
    let text = read_secret_file(Path::new(file))?.secret;
    OperatorToken::parse(text.expose()).with_context(|| file.to_owned())
}

async fn is_accepted(client: &Client) -> Result<bool> {
    match client.get("/v1/accounts?page_size=1").await {
        Ok(_) => Ok(true),
        Err(error) if error.has_code("UNAUTHENTICATED") => Ok(false),
        Err(error) => Err(error.into()),
    }
}
