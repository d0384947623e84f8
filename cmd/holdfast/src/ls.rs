//! `holdfast ls`.

use anyhow::Result;
use clap::Args;
use holdfast_client::protocol::{ListLocksRequest, Lock};

use crate::calls::call;
use crate::names::parse_path;
use crate::output::Format;
use crate::render;
use crate::settings::Settings;
use crate::table::table;

const PAGE_SIZE: u32 = 1_000;

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only locks at this path and below it, with segments separated by slashes.
    #[arg(value_name = "PATH")]
    prefix: Option<String>,
}

pub(crate) async fn run(settings: &Settings, args: LsArgs) -> Result<()> {
    let prefix = args.prefix.as_deref().map(parse_path).map(|path| path.segments().to_vec()).unwrap_or_default();
    let mut list =
        ListLocksRequest { namespace: settings.namespace()?, prefix, page_size: PAGE_SIZE, ..Default::default() };
    let mut rows = Vec::new();
    loop {
        let page = call(list.clone(), async |request| settings.client.locks().list_locks(request).await).await?;
        for lock in &page.locks {
            match settings.format {
                Format::Text => rows.push(row(lock)),
                Format::Json => settings.format.print(String::new, || render::json::lock(lock))?,
            }
        }
        list.page_token = page.next_page_token;
        if list.page_token.is_empty() {
            break;
        }
    }
    if settings.format == Format::Json {
        return Ok(());
    }
    settings.format.print(|| table(["LOCK", "STATE", "HELD BY", "SINCE", "WAITING"], &rows), Default::default)
}

fn row(lock: &Lock) -> [String; 5] {
    let by = match render::holders(lock).next() {
        Some(first) if lock.holders_total > 1 => {
            format!("{} and {}", render::owner_name(first), render::others(lock.holders_total - 1))
        }
        Some(first) => render::owner_name(first),
        None => String::new(),
    };
    let since = lock.locked_at.as_ref().and_then(render::timestamp).unwrap_or_default();
    [render::path(&lock.path), render::state(lock).to_owned(), by, since, lock.waiting.to_string()]
}
