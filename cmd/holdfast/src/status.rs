//! `holdfast status`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use holdfast_client::Client;
use holdfast_client::protocol::namespace::table::State;
use holdfast_client::protocol::{Durability, GetNamespaceRequest, ListNamespacesRequest, Namespace};
use serde_json::json;
use tokio::time::timeout;

use crate::calls::call_once;
use crate::namespace::table_text;
use crate::output::Format;
use crate::pages::PAGE_SIZE;
use crate::render::json::namespace as value;
use crate::settings::Settings;
use crate::table::table;

/// Timeout of one gateway.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout of finding out which lock tables are being rebuilt.
const REBUILDS_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes a call to each gateway that reaches a shard, and tells which lock tables are being rebuilt. Fails if no gateway
/// serves it.
pub(crate) async fn run(settings: &Settings) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut serving = None;
    for url in &settings.urls {
        let client = settings.client_of(url)?;
        let list = ListNamespacesRequest { page_size: 1, ..Default::default() };
        let began = Instant::now();
        let ask = async |request| client.namespaces().list_namespaces(request).await;
        let answer = call_once(list, ANSWER_TIMEOUT, ask).await;
        let took = began.elapsed();
        // A valid key may lack the permission for this call.
        let serves = answer.is_ok() || answer.as_ref().is_err_and(|error| error.code() == Some("PERMISSION_DENIED"));
        if serves {
            serving.get_or_insert(client);
        }
        let problem = answer.err().filter(|_| !serves).map(|error| error.to_string());
        match settings.format {
            Format::Text => {
                let state =
                    if serves { format!("serves, answered in {took:.1?}") } else { "does not serve".to_owned() };
                rows.push([url.clone(), state, problem.unwrap_or_default()]);
            }
            Format::Json => settings.format.print(
                String::new,
                || json!({"url": url, "serves": serves, "took_ms": took.as_secs_f64() * 1e3, "problem": problem}),
            )?,
        }
    }
    if settings.format == Format::Text {
        settings.format.print(|| table(["GATEWAY", "STATE", "PROBLEM"], &rows), Default::default)?;
    }
    let Some(client) = serving else { return Ok(ExitCode::FAILURE) };
    let rebuilding = timeout(REBUILDS_TIMEOUT, rebuilding(&client)).await.unwrap_or_default();
    for namespace in rebuilding {
        let name = &namespace.name;
        let text = namespace.table.as_ref().map(table_text).unwrap_or_default();
        settings.format.print(|| format!("namespace {name}: {text}"), || json!({"namespace": value(&namespace)}))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the namespaces whose lock table a leader still rebuilds, as far as the key may see them.
async fn rebuilding(client: &Client) -> Vec<Namespace> {
    let (mut found, mut page_token) = (Vec::new(), String::new());
    loop {
        let list = ListNamespacesRequest { page_size: PAGE_SIZE, page_token };
        let ask = async |request| client.namespaces().list_namespaces(request).await;
        let Ok(page) = call_once(list, ANSWER_TIMEOUT, ask).await else { return found };
        for namespace in page.namespaces.iter().filter(|it| it.durability() == Durability::Session) {
            let get = GetNamespaceRequest { name: namespace.name.clone() };
            let ask = async |request| client.namespaces().get_namespace(request).await;
            let Ok(namespace) = call_once(get, ANSWER_TIMEOUT, ask).await else { continue };
            if namespace.table.as_ref().is_some_and(|table| table.state() == State::Rebuilding) {
                found.push(namespace);
            }
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return found;
        }
    }
}
