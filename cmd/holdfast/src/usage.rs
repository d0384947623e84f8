//! `holdfast usage`.

use anyhow::Result;
use holdfast_client::protocol::{GetUsageRequest, LimitUsage};
use serde_json::{Value, json};

use crate::calls::call;
use crate::output::Format;
use crate::settings::Settings;
use crate::table::table;

/// Prints each limit and how much of it the account uses; as text without those of which it uses nothing.
pub(crate) async fn run(settings: &Settings) -> Result<()> {
    let client = &settings.client;
    let usage = call(GetUsageRequest::default(), async |request| client.accounts().get_usage(request).await).await?;
    if settings.format == Format::Json {
        return usage.limit_usage.iter().try_for_each(|limit| settings.format.print(String::new, || value(limit)));
    }
    let rows: Vec<_> = usage.limit_usage.iter().filter(|limit| limit.used() > 0).map(row).collect();
    settings.format.print(|| table(["LIMIT", "USED", "ALLOWED", "EACH"], &rows), Value::default)
}

fn value(usage: &LimitUsage) -> Value {
    json!({
        "limit": usage.limit,
        "each": usage.each,
        "used": usage.used,
        "max": usage.max,
        "of_this_gateway": usage.of_this_gateway,
    })
}

fn row(usage: &LimitUsage) -> [String; 4] {
    [usage.limit.clone(), usage.used().to_string(), usage.max.to_string(), usage.each.clone()]
}
