//! `holdfast latch`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use holdfast_client::protocol::{Latch as LatchMessage, ListLatchesRequest, WaitForLatchRequest};
use holdfast_client::{Latch, LatchOutcome};
use serde_json::json;

use crate::calls::call;
use crate::names::{ThingName, parse_path};
use crate::pages::{PAGE_SIZE, print_list};
use crate::render;
use crate::settings::Settings;

/// Exit status of a wait whose time is over: "try again later".
const NOT_YET: u8 = 75;
/// Exit status of a wait for a latch that expired.
const EXPIRED: u8 = 3;

/// Count jobs that are done, and wait until all are.
#[derive(Debug, Subcommand)]
pub(crate) enum LatchCommand {
    /// Create a latch. A repeat with the same parameters finds it.
    Create(CreateArgs),
    /// Report jobs as done; each counts once.
    Done(DoneArgs),
    /// Wait until all jobs are done. Exits with 0 when they are, with 75 when the time is over first, and with 3 when
    /// the latch expired.
    Wait(WaitArgs),
    /// Show a latch.
    Get(ThingName),
    /// List the latches.
    Ls {
        /// Only latches at this path and below it, with segments separated by slashes.
        #[arg(value_name = "PATH")]
        prefix: Option<String>,
    },
    /// Delete a latch.
    Rm(ThingName),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    latch: ThingName,
    /// How many jobs have to be done.
    #[arg(long, value_name = "N")]
    total: u64,
    /// Count indexes from 0 to N - 1 instead of ids.
    #[arg(long)]
    indexed: bool,
    /// How long the latch may take to complete: 1 s to 30 d. [default: 1day]
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    expires_in: Option<Duration>,
    /// How long it is kept once it is completed or expired: 1 min to 30 d. [default: 1h]
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    retain: Option<Duration>,
    /// A description for people.
    #[arg(long, default_value = "", value_name = "TEXT")]
    description: String,
}

#[derive(Debug, Args)]
pub(crate) struct DoneArgs {
    #[command(flatten)]
    latch: ThingName,
    /// The ids of the jobs, at most 100.
    #[arg(long, num_args = 1.., value_name = "ID", required_unless_present = "index", conflicts_with = "index")]
    id: Vec<String>,
    /// The indexes of the jobs, for a latch that counts indexes.
    #[arg(long, num_args = 1.., value_name = "INDEX")]
    index: Vec<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    latch: ThingName,
    /// How long to wait; until the latch is completed or expired when absent.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
}

pub(crate) async fn run(settings: &Settings, command: LatchCommand) -> Result<ExitCode> {
    match command {
        LatchCommand::Create(args) => create(settings, args).await?,
        LatchCommand::Done(args) => done(settings, args).await?,
        LatchCommand::Wait(args) => return wait(settings, args).await,
        LatchCommand::Get(name) => {
            let latch = get(settings, &name).await?;
            settings.format.print(|| text(&latch), || render::json::latch(&latch))?;
        }
        LatchCommand::Ls { prefix } => list(settings, prefix.as_deref()).await?,
        LatchCommand::Rm(name) => {
            latch(settings, &name)?.delete().await?;
            settings.format.print(|| format!("{} is deleted", name.path()), || json!({"deleted": true}))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn latch(settings: &Settings, name: &ThingName) -> Result<Latch> {
    Ok(settings.client.latch(settings.namespace()?, name.path()))
}

async fn create(settings: &Settings, args: CreateArgs) -> Result<()> {
    let mut new = latch(settings, &args.latch)?.description(args.description);
    if args.indexed {
        new = new.indexed();
    }
    if let Some(time) = args.expires_in {
        new = new.expires_in(time);
    }
    if let Some(time) = args.retain {
        new = new.retain(time);
    }
    new.create(args.total).await?;
    let latch = get(settings, &args.latch).await?;
    settings.format.print(|| text(&latch), || render::json::latch(&latch))
}

async fn done(settings: &Settings, args: DoneArgs) -> Result<()> {
    let latch = latch(settings, &args.latch)?;
    let counted = if args.index.is_empty() {
        latch.count_down_all(args.id).await?
    } else {
        latch.count_down_indexes(args.index.into_iter().map(|index| index..=index)).await?
    };
    let text = || if counted == 1 { "1 job counted".to_owned() } else { format!("{counted} jobs counted") };
    settings.format.print(text, || json!({"counted": counted}))
}

async fn wait(settings: &Settings, args: WaitArgs) -> Result<ExitCode> {
    let latch = latch(settings, &args.latch)?;
    let outcome = match args.wait {
        Some(limit) => latch.wait_timeout(limit).await?,
        None => Some(latch.wait().await?),
    };
    let (name, code) = match outcome {
        Some(LatchOutcome::Completed) => ("COMPLETED", 0),
        Some(LatchOutcome::Expired) => ("EXPIRED", EXPIRED),
        None => ("TIMED_OUT", NOT_YET),
    };
    settings.format.print(|| name.to_owned(), || json!({"outcome": name}))?;
    Ok(ExitCode::from(code))
}

async fn get(settings: &Settings, name: &ThingName) -> Result<LatchMessage> {
    let (namespace, path) = (settings.namespace()?, name.path().segments().to_vec());
    let get = WaitForLatchRequest { namespace, path, ..Default::default() };
    let answer = call(get, async |request| settings.client.latches().wait_for_latch(request).await).await?;
    Ok(answer.latch.unwrap_or_default())
}

async fn list(settings: &Settings, prefix: Option<&str>) -> Result<()> {
    let prefix = prefix.map(parse_path).map(|path| path.segments().to_vec()).unwrap_or_default();
    let namespace = settings.namespace()?;
    let next_page = async |page_token| {
        let list = ListLatchesRequest {
            namespace: namespace.clone(),
            prefix: prefix.clone(),
            page_size: PAGE_SIZE,
            page_token,
        };
        let page = call(list, async |request| settings.client.latches().list_latches(request).await).await?;
        Ok((page.latches, page.next_page_token))
    };
    print_list(settings, ["LATCH", "STATUS", "DONE", "WAITING", "LEFT"], next_page, row, render::json::latch).await
}

fn row(latch: &LatchMessage) -> [String; 5] {
    let done = format!("{} of {}", latch.done, latch.total);
    let waiters = latch.waiters.map(|waiters| waiters.to_string()).unwrap_or_default();
    let (path, status) = (render::path(&latch.path), render::latch_status(latch).to_owned());
    [path, status, done, waiters, left(latch).unwrap_or_default()]
}

fn text(latch: &LatchMessage) -> String {
    let mut line = format!("{} is {}", render::path(&latch.path), render::latch_status(latch));
    line += &format!(": {} of {} done", latch.done, latch.total);
    if let Some(left) = left(latch) {
        line += &format!(", {left} left");
    }
    if let Some(waiters) = latch.waiters.filter(|waiters| *waiters > 0) {
        line += &format!(", {waiters} waiting");
    }
    line
}

fn left(latch: &LatchMessage) -> Option<String> {
    latch.remaining_ms.map(|left| humantime::format_duration(Duration::from_millis(left)).to_string())
}
