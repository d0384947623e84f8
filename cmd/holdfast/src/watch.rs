//! `holdfast watch`.

use anyhow::Result;
use clap::Args;
use holdfast_client::Error;
use holdfast_client::protocol::WatchRequest;
use tonic::{Request, Status, Streaming};

use crate::calls::is_transient;
use crate::names::parse_path;
use crate::render;
use crate::settings::Settings;
use holdfast_client::protocol::Event;

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Only events that concern this path, above it or below it, with segments separated by slashes.
    #[arg(value_name = "PATH")]
    prefix: Option<String>,
    /// Start with the event of this revision, or the next one after it; when absent, with future events.
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
    /// What the events are about, separated by commas: locks (with sessions), conditions, semaphores, pools,
    /// latches, barriers, requests (to release something). [default: locks]
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    kinds: Vec<String>,
}

/// Continues after a lost connection, and misses no event.
pub(crate) async fn run(settings: &Settings, args: WatchArgs) -> Result<()> {
    let prefix = args.prefix.as_deref().map(parse_path).map(|path| path.segments().to_vec()).unwrap_or_default();
    let mut watch =
        WatchRequest { namespace: settings.namespace()?, prefix, from_revision: args.from, kinds: args.kinds };
    let mut complained = false;
    loop {
        let error = match settings.client.locks().watch(Request::new(watch.clone())).await {
            Ok(events) => print_events(settings, events.into_inner(), &mut watch, &mut complained).await?,
            Err(status) => status,
        };
        let error = Error::from(error);
        if !is_transient(&error) {
            return Err(error.into());
        }
        if !std::mem::replace(&mut complained, true) {
            settings.format.info(format_args!("still trying: {error}"));
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

const RETRY_DELAY: std::time::Duration = std::time::Duration::from_millis(500);

/// Prints events until the stream ends, and returns the reason.
async fn print_events(
    settings: &Settings,
    mut events: Streaming<Event>,
    watch: &mut WatchRequest,
    complained: &mut bool,
) -> Result<Status> {
    loop {
        match events.message().await {
            Ok(Some(event)) => {
                *complained = false;
                watch.from_revision = Some(event.revision + 1);
                settings.format.print(|| render::event(&event), || render::json::event(&event))?;
            }
            Ok(None) => return Ok(Status::unavailable("the gateway ended the stream")),
            Err(status) => return Ok(status),
        }
    }
}
