//! `holdfast sem`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use holdfast_client::protocol::{
    ConfigureSemaphoreRequest, DeleteSemaphoreRequest, GetSemaphoreRequest, GetSemaphoreResponse,
    ListSemaphoresRequest, PermitHolder, Semaphore,
};
use serde_json::json;

use crate::calls::{CALL_TIMEOUT, call, call_once};
use crate::lock::{GuardedRun, OnRequest, Target, run_guarded};
use crate::names::{ThingName, parse_path};
use crate::pages::{PAGE_SIZE, print_list};
use crate::render;
use crate::settings::Settings;

/// Limit how many run at a time.
#[derive(Debug, Subcommand)]
pub(crate) enum SemaphoreCommand {
    /// Run a command with permits of a semaphore. Stops it before they can be lost, and exits with its status, or with
    /// 75 when the permits were not acquired.
    Run(RunArgs),
    /// Make a semaphore, or change how many permits it has. Replaces its description, and removes metadata that it was
    /// given by other means. Needs a key with the scope locks:force.
    Set(SetArgs),
    /// Show a semaphore and its holders.
    Get(ThingName),
    /// List the semaphores.
    Ls {
        /// Only semaphores at this path and below it, with segments separated by slashes.
        #[arg(value_name = "PATH")]
        prefix: Option<String>,
    },
    /// Delete a semaphore: end all its holds and waits. Needs a key with the scope locks:force.
    Rm(ThingName),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    semaphore: ThingName,
    /// How many permits the command needs.
    #[arg(long, default_value_t = 1, value_name = "N")]
    weight: u64,
    /// How many permits there are, if nobody configured the semaphore.
    #[arg(long, value_name = "N")]
    permits: Option<u64>,
    /// 0 to 9; requests of a higher priority go first.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u8).range(..=9))]
    priority: u8,
    /// How long the permits live without keep-alives: 1 s to 10 min. The command is asked to stop when a third of it is
    /// left.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    ttl: Duration,
    /// How long to wait for the permits; forever when absent. `0s` does not wait.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
    #[command(flatten)]
    on_request: OnRequest,
    /// The command to run, after `--`. Its variable HOLDFAST_FENCING_TOKEN contains the fencing token.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    semaphore: ThingName,
    /// How many permits there are; 0 pauses it. If more are in use, nobody loses any.
    #[arg(long, value_name = "N")]
    permits: u64,
    /// A description for people.
    #[arg(long, default_value = "", value_name = "TEXT")]
    description: String,
}

pub(crate) async fn run(settings: &Settings, command: SemaphoreCommand) -> Result<ExitCode> {
    match command {
        SemaphoreCommand::Run(args) => return run_command(settings, args).await,
        SemaphoreCommand::Set(args) => set(settings, args).await?,
        SemaphoreCommand::Get(name) => get(settings, &name).await?,
        SemaphoreCommand::Ls { prefix } => list(settings, prefix.as_deref()).await?,
        SemaphoreCommand::Rm(name) => delete(settings, &name).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_command(settings: &Settings, args: RunArgs) -> Result<ExitCode> {
    let RunArgs { semaphore, weight, permits, priority, ttl, wait, on_request, command } = args;
    let Some((program, arguments)) = command.split_first() else {
        crate::exit_misused("say which command to run, after `--`");
    };
    let target = Target::Permits { path: semaphore.path(), weight, permits, priority };
    run_guarded(
        settings,
        &GuardedRun { target, ttl, wait, release_signal: on_request.release_signal },
        program,
        arguments,
    )
    .await
}

async fn set(settings: &Settings, args: SetArgs) -> Result<()> {
    let (namespace, path) = (settings.namespace()?, args.semaphore.path().segments().to_vec());
    let (permits, description) = (args.permits, args.description);
    let configure = ConfigureSemaphoreRequest { namespace, path, permits, description, ..Default::default() };
    let make = async |request| settings.client.semaphores().configure_semaphore(request).await;
    let semaphore = call(configure, make).await?.semaphore.unwrap_or_default();
    settings.format.print(|| text(&semaphore), || render::json::semaphore(&semaphore))
}

async fn delete(settings: &Settings, name: &ThingName) -> Result<()> {
    let (namespace, path) = (settings.namespace()?, name.path().segments().to_vec());
    let delete = DeleteSemaphoreRequest { namespace, path, ..Default::default() };
    // Once: a second copy could end what was granted in between.
    let make = async |request| settings.client.semaphores().delete_semaphore(request).await;
    call_once(delete, CALL_TIMEOUT, make).await?;
    settings.format.print(|| format!("{} is deleted", name.path()), || json!({"deleted": true}))
}

/// Shows all holders; the semaphore as of the last page of them.
async fn get(settings: &Settings, name: &ThingName) -> Result<()> {
    let (namespace, path) = (settings.namespace()?, name.path().segments().to_vec());
    let mut get = GetSemaphoreRequest { namespace, path, page_size: PAGE_SIZE, ..Default::default() };
    let mut holders = Vec::new();
    let semaphore = loop {
        let make = async |request| settings.client.semaphores().get_semaphore(request).await;
        let page: GetSemaphoreResponse = call(get.clone(), make).await?;
        holders.extend(page.holders);
        get.page_token = page.next_page_token;
        if get.page_token.is_empty() {
            break page.semaphore.unwrap_or_default();
        }
    };
    let shown = || {
        let mut lines = vec![text(&semaphore)];
        lines.extend(holders.iter().map(holder));
        lines.join("\n")
    };
    let value = || {
        let holders: Vec<_> = holders.iter().map(render::json::permit_holder).collect();
        json!({"semaphore": render::json::semaphore(&semaphore), "holders": holders})
    };
    settings.format.print(shown, value)
}

async fn list(settings: &Settings, prefix: Option<&str>) -> Result<()> {
    let prefix = prefix.map(parse_path).map(|path| path.segments().to_vec()).unwrap_or_default();
    let namespace = settings.namespace()?;
    let next_page = async |page_token| {
        let list = ListSemaphoresRequest {
            namespace: namespace.clone(),
            prefix: prefix.clone(),
            page_size: PAGE_SIZE,
            page_token,
        };
        let page = call(list, async |request| settings.client.semaphores().list_semaphores(request).await).await?;
        Ok((page.semaphores, page.next_page_token))
    };
    print_list(settings, ["SEMAPHORE", "IN USE", "HOLDERS", "WAITING"], next_page, row, render::json::semaphore).await
}

fn row(semaphore: &Semaphore) -> [String; 4] {
    let in_use = format!("{} of {}", semaphore.in_use, semaphore.permits);
    [render::path(&semaphore.path), in_use, semaphore.holders_total.to_string(), semaphore.waiting.to_string()]
}

fn text(semaphore: &Semaphore) -> String {
    let (path, in_use, permits) = (render::path(&semaphore.path), semaphore.in_use, semaphore.permits);
    let mut line = format!("{path}: {in_use} of {permits} permits in use");
    if semaphore.waiting > 0 {
        line += &format!(", {} waiting", semaphore.waiting);
    }
    line
}

fn holder(holder: &PermitHolder) -> String {
    let name = match &holder.holder {
        Some(thread) => format!("{} ({thread})", holder.process_id),
        None => holder.process_id.clone(),
    };
    let mut line = format!("  {} for {name} with token {}", holder.weight, holder.fencing_token);
    if let Some(since) = holder.locked_at.as_ref().and_then(render::timestamp) {
        line += &format!(" since {since}");
    }
    line + &holder.release_requested.as_ref().map(render::release_request).unwrap_or_default()
}
