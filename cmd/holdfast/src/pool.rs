//! `holdfast pool`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use holdfast_client::Error;
use holdfast_client::protocol::{
    ChangePoolRequest, ConfigurePoolRequest, DeletePoolRequest, GetPoolRequest, GetPoolResponse, ListPoolsRequest,
    Pool, PoolMember, PoolMemberState,
};
use serde_json::json;

use crate::calls::{CALL_TIMEOUT, call, call_once};
use crate::lock::{self, GuardedRun, OnRequest, Target, run_guarded};
use crate::names::{ThingName, parse_path};
use crate::pages::{PAGE_SIZE, print_list};
use crate::render;
use crate::settings::Settings;

/// Hold named members of a pool.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Run a command with members of a pool. Stops it before they can be lost, and exits with its status, or with 75
    /// when they were not acquired.
    Run(RunArgs),
    /// Make a pool, or change which members it has. Replaces its description; members that it has already stay disabled
    /// if they are, and everything keeps its metadata. Needs a key with the scopes locks:force and locks:read.
    Set(SetArgs),
    /// Give members out again, at once also if they rest. Needs a key with the scope locks:force.
    Enable(MembersArgs),
    /// Give members out no more; who has one keeps it. Needs a key with the scope locks:force.
    Disable(MembersArgs),
    /// Show a pool and its members.
    Get(ThingName),
    /// List the pools.
    Ls {
        /// Only pools at this path and below it, with segments separated by slashes.
        #[arg(value_name = "PATH")]
        prefix: Option<String>,
    },
    /// Delete a pool: end all its holds and waits. Needs a key with the scope locks:force.
    Rm(ThingName),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pool: ThingName,
    /// How many members the command needs.
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "member")]
    count: u64,
    /// The one member that the command needs.
    #[arg(long, value_name = "MEMBER")]
    member: Option<String>,
    /// 0 to 9; requests of a higher priority go first.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u8).range(..=9))]
    priority: u8,
    /// How long the members live without keep-alives: 1 s to 10 min. The command is asked to stop when a third of it is
    /// left.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    ttl: Duration,
    /// How long to wait for the members; forever when absent. `0s` does not wait.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
    #[command(flatten)]
    on_request: OnRequest,
    /// The command to run, after `--`. Its variable HOLDFAST_MEMBERS has the members, one a line, and
    /// HOLDFAST_FENCING_TOKEN the fencing token. It does not run if the name of a member has a line break.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    pool: ThingName,
    /// All members. One that is missing leaves once it is free.
    #[arg(required = true, value_name = "MEMBER", value_parser = parse_member)]
    members: Vec<String>,
    /// How long a member rests after its hold ended.
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    cooldown: Duration,
    /// A description for people.
    #[arg(long, default_value = "", value_name = "TEXT")]
    description: String,
}

#[derive(Debug, Args)]
pub(crate) struct MembersArgs {
    #[command(flatten)]
    pool: ThingName,
    /// The members.
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<String>,
}

/// Reads the name of a member that commands can be told of.
fn parse_member(text: &str) -> Result<String, String> {
    if lock::is_line(text) { Ok(text.to_owned()) } else { Err("a name without line breaks is needed".to_owned()) }
}

pub(crate) async fn run(settings: &Settings, command: PoolCommand) -> Result<ExitCode> {
    match command {
        PoolCommand::Run(args) => return run_command(settings, args).await,
        PoolCommand::Set(args) => set(settings, args).await?,
        PoolCommand::Enable(MembersArgs { pool, members: enable }) => {
            change(settings, &pool, ChangePoolRequest { enable, ..Default::default() }).await?;
        }
        PoolCommand::Disable(MembersArgs { pool, members: disable }) => {
            change(settings, &pool, ChangePoolRequest { disable, ..Default::default() }).await?;
        }
        PoolCommand::Get(name) => get(settings, &name).await?,
        PoolCommand::Ls { prefix } => list(settings, prefix.as_deref()).await?,
        PoolCommand::Rm(name) => delete(settings, &name).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_command(settings: &Settings, args: RunArgs) -> Result<ExitCode> {
    let RunArgs { pool, count, member, priority, ttl, wait, on_request, command } = args;
    let Some((program, arguments)) = command.split_first() else {
        crate::exit_misused("say which command to run, after `--`");
    };
    let target = Target::Members { path: pool.path(), count, member, priority };
    run_guarded(
        settings,
        &GuardedRun { target, ttl, wait, release_signal: on_request.release_signal },
        program,
        arguments,
    )
    .await
}

async fn set(settings: &Settings, args: SetArgs) -> Result<()> {
    let (namespace, path) = (settings.namespace()?, args.pool.path().segments().to_vec());
    let (present, known) = match load(settings, &args.pool).await {
        Ok(known) => known,
        Err(error) if is_absent(&error) => Default::default(),
        Err(error) => return Err(error),
    };
    let mut known: HashMap<String, PoolMemberState> =
        known.into_iter().map(|member| (member.name.clone(), member)).collect();
    let member = |name: String| {
        let PoolMemberState { disabled, metadata, .. } = known.remove(&name).unwrap_or_default();
        PoolMember { name, disabled, metadata }
    };
    let members = args.members.into_iter().map(member).collect();
    let cooldown_ms = u64::try_from(args.cooldown.as_millis()).unwrap_or(u64::MAX);
    let (description, metadata) = (args.description, present.metadata);
    let configure = ConfigurePoolRequest { namespace, path, members, cooldown_ms, description, metadata, name: None };
    let make = async |request| settings.client.pools().configure_pool(request).await;
    let pool = call(configure, make).await?.pool.unwrap_or_default();
    settings.format.print(|| text(&pool), || render::json::pool(&pool))
}

async fn change(settings: &Settings, name: &ThingName, change: ChangePoolRequest) -> Result<()> {
    let (namespace, path) = (settings.namespace()?, name.path().segments().to_vec());
    let change = ChangePoolRequest { namespace, path, ..change };
    let make = async |request| settings.client.pools().change_pool(request).await;
    let pool = call(change, make).await?.pool.unwrap_or_default();
    settings.format.print(|| text(&pool), || render::json::pool(&pool))
}

async fn delete(settings: &Settings, name: &ThingName) -> Result<()> {
    let (namespace, path) = (settings.namespace()?, name.path().segments().to_vec());
    let delete = DeletePoolRequest { namespace, path, ..Default::default() };
    // Once: a second copy could end what was granted in between.
    let make = async |request| settings.client.pools().delete_pool(request).await;
    call_once(delete, CALL_TIMEOUT, make).await?;
    settings.format.print(|| format!("{} is deleted", name.path()), || json!({"deleted": true}))
}

fn is_absent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().and_then(Error::code) == Some("PRIMITIVE_NOT_FOUND")
}

/// Returns all members, and the pool as of the last page of them.
async fn load(settings: &Settings, name: &ThingName) -> Result<(Pool, Vec<PoolMemberState>)> {
    let (namespace, path) = (settings.namespace()?, name.path().segments().to_vec());
    let mut get = GetPoolRequest { namespace, path, page_size: PAGE_SIZE, ..Default::default() };
    let mut members = Vec::new();
    loop {
        let make = async |request| settings.client.pools().get_pool(request).await;
        let page: GetPoolResponse = call(get.clone(), make).await?;
        members.extend(page.members);
        get.page_token = page.next_page_token;
        if get.page_token.is_empty() {
            return Ok((page.pool.unwrap_or_default(), members));
        }
    }
}

async fn get(settings: &Settings, name: &ThingName) -> Result<()> {
    let (pool, members) = load(settings, name).await?;
    let shown = || {
        let mut lines = vec![text(&pool)];
        lines.extend(members.iter().map(member));
        lines.join("\n")
    };
    let value = || {
        let members: Vec<_> = members.iter().map(render::json::pool_member).collect();
        json!({"pool": render::json::pool(&pool), "members": members})
    };
    settings.format.print(shown, value)
}

async fn list(settings: &Settings, prefix: Option<&str>) -> Result<()> {
    let prefix = prefix.map(parse_path).map(|path| path.segments().to_vec()).unwrap_or_default();
    let namespace = settings.namespace()?;
    let next_page = async |page_token| {
        let list =
            ListPoolsRequest { namespace: namespace.clone(), prefix: prefix.clone(), page_size: PAGE_SIZE, page_token };
        let page = call(list, async |request| settings.client.pools().list_pools(request).await).await?;
        Ok((page.pools, page.next_page_token))
    };
    print_list(settings, ["POOL", "IN USE", "FREE", "WAITING"], next_page, row, render::json::pool).await
}

fn row(pool: &Pool) -> [String; 4] {
    let in_use = format!("{} of {}", pool.in_use, pool.members_total);
    [render::path(&pool.path), in_use, pool.free.to_string(), pool.waiting.to_string()]
}

fn text(pool: &Pool) -> String {
    let (path, in_use, members) = (render::path(&pool.path), pool.in_use, pool.members_total);
    let mut line = format!("{path}: {in_use} of {members} members in use, {} free", pool.free);
    if pool.waiting > 0 {
        line += &format!(", {} waiting", pool.waiting);
    }
    line
}

fn member(member: &PoolMemberState) -> String {
    let mut about = Vec::new();
    if let Some(holder) = &member.holder {
        let asked = holder.release_requested.as_ref().map(render::release_request).unwrap_or_default();
        about.push(format!("held by {} with token {}{asked}", holder.process_id, holder.fencing_token));
    }
    if let Some(rests_ms) = member.rests_ms {
        about.push(format!("rests for {}", humantime::format_duration(Duration::from_millis(rests_ms))));
    }
    for (is_so, what) in [(member.disabled, "disabled"), (member.leaving, "leaves")] {
        if is_so {
            about.push(what.to_owned());
        }
    }
    let about = if about.is_empty() { "free".to_owned() } else { about.join(", ") };
    format!("  {}: {about}", member.name)
}
