//! `holdfast ls`.

use anyhow::Result;
use clap::Args;
use holdfast_client::protocol::{ListLocksRequest, Lock};

use crate::calls::call;
use crate::names::parse_path;
use crate::pages::{PAGE_SIZE, print_list};
use crate::render;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only locks at this path and below it, with segments separated by slashes.
    #[arg(value_name = "PATH")]
    prefix: Option<String>,
}

pub(crate) async fn run(settings: &Settings, args: LsArgs) -> Result<()> {
    let prefix = args.prefix.as_deref().map(parse_path).map(|path| path.segments().to_vec()).unwrap_or_default();
    let namespace = settings.namespace()?;
    let next_page = async |page_token| {
        let list =
            ListLocksRequest { namespace: namespace.clone(), prefix: prefix.clone(), page_size: PAGE_SIZE, page_token };
        let page = call(list, async |request| settings.client.locks().list_locks(request).await).await?;
        Ok((page.locks, page.next_page_token))
    };
    print_list(settings, ["LOCK", "STATE", "HELD BY", "SINCE", "WAITING"], next_page, row, render::json::lock).await
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
