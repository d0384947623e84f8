//! `holdfast key`.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Subcommand;
use holdfast_client::protocol::{ApiKey, CreateApiKeyRequest, DeleteApiKeyRequest, ListApiKeysRequest};
use serde_json::json;

use crate::calls::call;
use crate::output::Format;
use crate::render::{self, json::api_key as value};
use crate::settings::Settings;
use crate::table::table;

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key. Its secret is printed once and not stored.
    Create {
        /// Its purpose.
        #[arg(long, default_value = "")]
        description: String,
        /// Its scopes: locks:read, locks:write, locks:force, namespaces:admin, account:admin; may be repeated.
        /// [default: those of the calling key]
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<String>,
        /// The namespaces for which it is valid; may be repeated. [default: all]
        #[arg(long = "only-namespace", value_name = "NAME")]
        namespaces: Vec<String>,
        /// When it expires, from now. [default: never]
        #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
        expires_in: Option<Duration>,
    },
    /// List the keys of the account, without their secrets.
    Ls,
    /// Revoke a key.
    Delete {
        /// Its id.
        key_id: String,
    },
}

pub(crate) async fn run(settings: &Settings, command: KeyCommand) -> Result<()> {
    let client = &settings.client;
    match command {
        KeyCommand::Create { description, scopes, namespaces, expires_in } => {
            let expires_at = expires_in.map(|left| (SystemTime::now() + left).into());
            // Without an account id, the service uses the caller's account.
            let account_id = String::new();
            let create = CreateApiKeyRequest { account_id, description, scopes, namespaces, expires_at };
            let key = call(create, async |request| client.accounts().create_api_key(request).await).await?;
            settings.format.print(|| key.api_key.clone().unwrap_or_default(), || value(&key))
        }
        KeyCommand::Delete { key_id } => {
            let delete = DeleteApiKeyRequest { account_id: String::new(), key_id: key_id.clone() };
            call(delete, async |request| client.accounts().delete_api_key(request).await).await?;
            settings.format.print(|| format!("{key_id} is revoked"), || json!({"deleted": key_id}))
        }
        KeyCommand::Ls => {
            let list = ListApiKeysRequest::default();
            let keys = call(list, async |request| client.accounts().list_api_keys(request).await).await?.api_keys;
            if settings.format == Format::Json {
                return keys.iter().try_for_each(|key| settings.format.print(String::new, || value(key)));
            }
            let rows: Vec<_> = keys.iter().map(row).collect();
            settings.format.print(|| table(["KEY", "DESCRIPTION", "SCOPES", "EXPIRES"], &rows), Default::default)
        }
    }
}

fn row(key: &ApiKey) -> [String; 4] {
    let expires = key.expires_at.as_ref().and_then(render::timestamp).unwrap_or_else(|| "never".to_owned());
    [key.key_id.clone(), key.description.clone(), key.scopes.join(" "), expires]
}
