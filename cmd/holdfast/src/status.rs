//! `holdfast status`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use holdfast_client::protocol::ListNamespacesRequest;
use serde_json::json;

use crate::calls::call_once;
use crate::output::Format;
use crate::settings::Settings;
use crate::table::table;

/// Timeout of one gateway.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes a call to each gateway that reaches a shard. Fails if no gateway serves it.
pub(crate) async fn run(settings: &Settings) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut serve = false;
    for url in &settings.urls {
        let client = settings.client_of(url)?;
        let list = ListNamespacesRequest { page_size: 1, ..Default::default() };
        let began = Instant::now();
        let ask = async |request| client.namespaces().list_namespaces(request).await;
        let answer = call_once(list, ANSWER_TIMEOUT, ask).await;
        let took = began.elapsed();
        // A valid key may lack the permission for this call.
        let serves = answer.is_ok() || answer.as_ref().is_err_and(|error| error.code() == Some("PERMISSION_DENIED"));
        serve |= serves;
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
    Ok(if serve { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
