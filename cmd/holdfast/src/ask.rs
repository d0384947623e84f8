//! `holdfast ask`.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdfast_client::protocol::{AskPoolReleaseRequest, AskReleaseRequest, AskSemaphoreReleaseRequest};
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use crate::calls::{CALL_TIMEOUT, call, call_once};
use crate::names::{LockName, parts};
use crate::render;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    thing: LockName,
    /// What it is.
    #[arg(long, value_enum, default_value_t = AskedKind::Lock)]
    kind: AskedKind,
    /// Ask only the holder of this member of a pool.
    #[arg(long, value_name = "MEMBER")]
    member: Option<String>,
    /// Why, for the holders: up to 256 bytes.
    #[arg(long, default_value = "", value_name = "TEXT")]
    reason: String,
    /// How long the holders are given, up to 10 min.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    within: Option<Duration>,
    /// End what is still held when that time is over, at once without --within. Needs a key with the scope locks:force.
    #[arg(long)]
    force: bool,
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AskedKind {
    Lock,
    Semaphore,
    Pool,
}

/// How many holders were asked, whether there may be more, and what they hold as JSON under its key.
struct Answer {
    asked: u64,
    truncated: bool,
    thing: (&'static str, Value),
}

pub(crate) async fn run(settings: &Settings, args: AskArgs) -> Result<()> {
    if args.member.is_some() && args.kind != AskedKind::Pool {
        crate::exit_misused("--member goes with --kind pool only");
    }
    let name = args.thing.path();
    let Answer { asked, truncated, thing: (key, thing) } = request_release(settings, &args).await?;
    let text = || match (asked, truncated) {
        (0, _) => format!("nobody holds {name}"),
        (1, false) => format!("1 holder of {name} is asked"),
        (_, false) => format!("{asked} holders of {name} are asked"),
        (_, true) => format!("{asked} holders of {name} are asked, and there may be more"),
    };
    settings.format.print(text, || {
        let mut shown = json!({"asked": asked, "truncated": truncated});
        shown[key] = thing;
        shown
    })
}

async fn request_release(settings: &Settings, args: &AskArgs) -> Result<Answer> {
    let (namespace, (path, whole_namespace)) = (settings.namespace()?, parts(&args.thing.path()));
    let within_ms = args.within.map(|within| u64::try_from(within.as_millis())).transpose()?;
    let (reason, force) = (args.reason.clone(), args.force);
    match args.kind {
        AskedKind::Lock => {
            let request =
                AskReleaseRequest { namespace, path, whole_namespace, reason, within_ms, force, ..Default::default() };
            let make = async |request| settings.client.locks().ask_release(request).await;
            let answer = send(force, request, make).await?;
            let thing = ("lock", render::json::lock(&answer.lock.unwrap_or_default()));
            Ok(Answer { asked: answer.asked, truncated: answer.truncated, thing })
        }
        AskedKind::Semaphore => {
            let request =
                AskSemaphoreReleaseRequest { namespace, path, reason, within_ms, force, ..Default::default() };
            let make = async |request| settings.client.semaphores().ask_release(request).await;
            let answer = send(force, request, make).await?;
            let thing = ("semaphore", render::json::semaphore(&answer.semaphore.unwrap_or_default()));
            Ok(Answer { asked: answer.asked, truncated: answer.truncated, thing })
        }
        AskedKind::Pool => {
            let member = args.member.clone();
            let request =
                AskPoolReleaseRequest { namespace, path, member, reason, within_ms, force, ..Default::default() };
            let make = async |request| settings.client.pools().ask_release(request).await;
            let answer = send(force, request, make).await?;
            let thing = ("pool", render::json::pool(&answer.pool.unwrap_or_default()));
            Ok(Answer { asked: answer.asked, truncated: answer.truncated, thing })
        }
    }
}

/// Sends a request: once with force, since a second copy could end what was granted in between.
async fn send<M: Clone, A>(
    force: bool,
    message: M,
    make: impl AsyncFn(Request<M>) -> Result<Response<A>, Status>,
) -> Result<A> {
    if force { Ok(call_once(message, CALL_TIMEOUT, make).await?) } else { call(message, make).await }
}
