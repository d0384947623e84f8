//! `holdfast barrier`.

mod wait;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use holdfast_client::protocol::barrier::OnLoss;
use holdfast_client::protocol::{
    Barrier, BarrierArrival, BarrierGeneration, ConfigureBarrierRequest, DeleteBarrierRequest, GetBarrierRequest,
    GetBarrierResponse, ListBarriersRequest,
};
use serde_json::json;

use crate::calls::{CALL_TIMEOUT, call, call_once};
use crate::names::{ThingName, parse_path};
use crate::pages::{PAGE_SIZE, print_list};
use crate::render;
use crate::settings::Settings;

/// Let so many meet and go on together.
#[derive(Debug, Subcommand)]
pub(crate) enum BarrierCommand {
    /// Arrive, and wait for the others. Exits with 0 when all have come, with 75 when the time is over first, and with
    /// 4 when somebody left before all had come. When it does not exit with 0, it has left.
    Wait(wait::WaitArgs),
    /// Make a barrier, or change it. Removes metadata that it was given by other means. Needs a key with the scope
    /// locks:force.
    Set(SetArgs),
    /// Show a barrier, who has come, and how its latest generations ended.
    Get(ThingName),
    /// List the barriers.
    Ls {
        /// Only barriers at this path and below it, with segments separated by slashes.
        #[arg(value_name = "PATH")]
        prefix: Option<String>,
    },
    /// Delete a barrier: end all arrivals. Needs a key with the scope locks:force.
    Rm(ThingName),
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    barrier: ThingName,
    /// How many meet.
    #[arg(long, value_name = "N")]
    parties: u32,
    /// Whether they also leave together.
    #[arg(long)]
    double: bool,
    /// Go on gathering without those who leave before all have come, instead of breaking the generation for all.
    #[arg(long)]
    withdraw: bool,
    /// How long the barrier is kept with nobody in it; `0s` is for ever. [default: 1h]
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    retain: Option<Duration>,
    /// A description for people.
    #[arg(long, default_value = "", value_name = "TEXT")]
    description: String,
}

pub(crate) async fn run(settings: &Settings, command: BarrierCommand) -> Result<ExitCode> {
    match command {
        BarrierCommand::Wait(args) => return wait::run(settings, args).await,
        BarrierCommand::Set(args) => set(settings, args).await?,
        BarrierCommand::Get(name) => {
            let found = get(settings, &name).await?;
            settings.format.print(|| details(&found), || render::json::barrier_details(&found))?;
        }
        BarrierCommand::Ls { prefix } => list(settings, prefix.as_deref()).await?,
        BarrierCommand::Rm(name) => delete(settings, &name).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn set(settings: &Settings, args: SetArgs) -> Result<()> {
    let SetArgs { barrier, parties, double, withdraw, retain, description } = args;
    let on_loss = if withdraw { OnLoss::Withdraw } else { OnLoss::Break };
    let configure = ConfigureBarrierRequest {
        namespace: settings.namespace()?,
        path: barrier.path().segments().to_vec(),
        parties,
        double,
        on_loss: on_loss.into(),
        retain_ms: retain.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        description,
        ..Default::default()
    };
    let make = async |request| settings.client.barriers().configure_barrier(request).await;
    let barrier = call(configure, make).await?.barrier.unwrap_or_default();
    settings.format.print(|| text(&barrier), || render::json::barrier(&barrier))
}

async fn get(settings: &Settings, name: &ThingName) -> Result<GetBarrierResponse> {
    let (namespace, path) = (settings.namespace()?, name.path().segments().to_vec());
    let get = GetBarrierRequest { namespace, path, ..Default::default() };
    call(get, async |request| settings.client.barriers().get_barrier(request).await).await
}

async fn delete(settings: &Settings, name: &ThingName) -> Result<()> {
    let (namespace, path) = (settings.namespace()?, name.path().segments().to_vec());
    let delete = DeleteBarrierRequest { namespace, path, ..Default::default() };
    // Once: a second copy could end a barrier that was made in between.
    let make = async |request| settings.client.barriers().delete_barrier(request).await;
    call_once(delete, CALL_TIMEOUT, make).await?;
    settings.format.print(|| format!("{} is deleted", name.path()), || json!({"deleted": true}))
}

async fn list(settings: &Settings, prefix: Option<&str>) -> Result<()> {
    let prefix = prefix.map(parse_path).map(|path| path.segments().to_vec()).unwrap_or_default();
    let namespace = settings.namespace()?;
    let next_page = async |page_token| {
        let list = ListBarriersRequest {
            namespace: namespace.clone(),
            prefix: prefix.clone(),
            page_size: PAGE_SIZE,
            page_token,
        };
        let page = call(list, async |request| settings.client.barriers().list_barriers(request).await).await?;
        Ok((page.barriers, page.next_page_token))
    };
    print_list(settings, ["BARRIER", "ARRIVED", "INSIDE", "GENERATION"], next_page, row, render::json::barrier).await
}

fn row(barrier: &Barrier) -> [String; 4] {
    let arrived = format!("{} of {}", barrier.arrived, barrier.parties);
    [render::path(&barrier.path), arrived, barrier.inside.to_string(), barrier.generation.to_string()]
}

fn text(barrier: &Barrier) -> String {
    let (path, arrived, parties) = (render::path(&barrier.path), barrier.arrived, barrier.parties);
    let mut line = format!("{path}: {arrived} of {parties} have arrived in generation {}", barrier.generation);
    if let Some(generation) = barrier.inside_generation {
        line += &format!(", {} inside of generation {generation}", barrier.inside);
    }
    line
}

fn details(found: &GetBarrierResponse) -> String {
    let barrier = found.barrier.clone().unwrap_or_default();
    let mut lines = vec![text(&barrier)];
    lines.extend(found.arrivals.iter().map(arrival));
    lines.extend(found.generations.iter().map(generation));
    lines.join("\n")
}

fn arrival(arrival: &BarrierArrival) -> String {
    let mut line = format!("  {}", arrival.process_id);
    if let Some(holder) = &arrival.holder {
        line += &format!(" ({holder})");
    }
    line += if arrival.inside { " is inside" } else { " has arrived" };
    if let Some(left) = arrival.remaining_ms {
        line += &format!(", {} left", humantime::format_duration(Duration::from_millis(left)));
    }
    line
}

fn generation(ended: &BarrierGeneration) -> String {
    let (number, parties) = (ended.generation, ended.parties);
    let mut line = format!("  generation {number} is {} with {parties}", render::barrier_outcome(ended.outcome()));
    if let Some(lost) = ended.lost {
        line += &format!(", all have left, {lost} lost");
    }
    line
}
