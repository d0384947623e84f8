//! `holdfast barrier wait`.
//!
//! It arrives as a process, with a time to live that it extends while it waits: the same id started again is the same
//! party, and one that was killed is gone after that time.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use holdfast_client::Error;
use holdfast_client::protocol::barrier_answer::Outcome;
use holdfast_client::protocol::{
    ArriveAtBarrierRequest, BarrierAnswer, GetBarrierRequest, LeaveBarrierRequest, WaitAtBarrierRequest,
};
use serde_json::json;
use tokio::time::Instant;

use crate::calls::{CALL_TIMEOUT, call, call_once, call_waiting};
use crate::lock::{next_terminating_signal, signal_exit_code};
use crate::names::{ThingName, process_id};
use crate::render;
use crate::settings::Settings;
use crate::signals::Signals;

/// Exit status of a wait whose time is over: "try again later".
const NOT_YET: u8 = 75;
/// Exit status of a wait for a generation that somebody left.
const BROKEN: u8 = 4;
/// How long one call waits at the service; the next one extends the arrival.
const WAIT_PER_CALL: Duration = Duration::from_secs(10);
const NOT_FOUND: &str = "PRIMITIVE_NOT_FOUND";

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    barrier: ThingName,
    /// How many meet, if nobody configured the barrier; all must say the same.
    #[arg(long, value_name = "N")]
    parties: Option<u32>,
    /// The party: 1 to 128 bytes. The same one that arrives again counts once. [default: user, host and process number]
    #[arg(long = "as", value_name = "ID")]
    party: Option<String>,
    /// How long to wait; until all have come or somebody left when absent.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
    /// How long the arrival counts if this program is killed: from 15 s.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    ttl: Duration,
}

/// An arrival of this program.
struct Party<'a> {
    settings: &'a Settings,
    namespace: String,
    path: Vec<String>,
    process_id: String,
    parties: Option<u32>,
    ttl: Duration,
    /// Known from the first answer on.
    generation: Option<u64>,
    /// Whether it is known to have arrived in that generation.
    has_arrived: bool,
}

pub(super) async fn run(settings: &Settings, args: WaitArgs) -> Result<ExitCode> {
    if args.ttl < WAIT_PER_CALL + WAIT_PER_CALL / 2 {
        crate::exit_misused("--ttl is at least 15s: it is extended every 10s");
    }
    let mut signals = Signals::listen()?;
    let deadline = args.wait.and_then(|wait| Instant::now().checked_add(wait));
    let mut party = Party {
        settings,
        namespace: settings.namespace()?,
        path: args.barrier.path().segments().to_vec(),
        process_id: args.party.unwrap_or_else(process_id),
        parties: args.parties,
        ttl: args.ttl,
        generation: None,
        has_arrived: false,
    };
    let answer = tokio::select! {
        answer = party.wait(deadline) => answer?,
        signal = next_terminating_signal(&mut signals) => {
            // So that the others learn it at once.
            party.leave().await?;
            return Ok(ExitCode::from(signal_exit_code(signal)));
        }
    };
    let (outcome, code) = match answer.outcome() {
        Outcome::Tripped => (Outcome::Tripped, 0),
        Outcome::Waiting | Outcome::Full => (Outcome::Waiting, NOT_YET),
        _ => (Outcome::Broken, BROKEN),
    };
    let (name, generation, index) = (render::barrier_outcome(outcome), answer.generation, answer.index);
    let text = || match index {
        Some(index) => format!("{name} in generation {generation}, at index {index}"),
        None => format!("{name} in generation {generation}"),
    };
    settings.format.print(text, || json!({"outcome": name, "generation": generation, "index": index}))?;
    Ok(ExitCode::from(code))
}

impl Party<'_> {
    /// Arrives, and waits until its generation has ended or until that instant. Then it leaves; if the trip came first,
    /// the answer says so.
    async fn wait(&mut self, deadline: Option<Instant>) -> Result<BarrierAnswer> {
        self.generation = self.present_generation().await?;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // The first call at a barrier that is not there is made once, and only to learn the generation.
            let wait = self.generation.and(left.or(Some(WAIT_PER_CALL))).unwrap_or_default();
            let mut answer = self.arrive(wait.min(WAIT_PER_CALL)).await?;
            let (outcome, has_time) = (answer.outcome(), left.is_none_or(|left| !left.is_zero()));
            match outcome {
                Outcome::Waiting => {
                    (self.generation, self.has_arrived) = (Some(answer.generation), true);
                    if !has_time {
                        return Ok(self.leave().await?.filter(is_tripped).unwrap_or(answer));
                    }
                }
                Outcome::Full if has_time => self.wait_for_end(&answer, left).await?,
                // A repeat takes it for its outcome; whoever had not arrived came late, and arrives in the next one.
                Outcome::Past if self.has_arrived => {
                    answer.set_outcome(answer.ended());
                    return Ok(answer);
                }
                Outcome::Past => self.generation = Some(answer.next_generation),
                _ => return Ok(answer),
            }
        }
    }

    /// Returns the generation that gathers, if there is a barrier: a call that names it may be made again.
    async fn present_generation(&self) -> Result<Option<u64>> {
        let (namespace, path) = (self.namespace.clone(), self.path.clone());
        let get = GetBarrierRequest { namespace, path, ..Default::default() };
        let found = call(get, async |request| self.settings.client.barriers().get_barrier(request).await).await;
        match found {
            Ok(found) => Ok(found.barrier.map(|barrier| barrier.generation)),
            Err(error) if has_code(&error, NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Arrives, or extends the arrival.
    async fn arrive(&self, wait: Duration) -> Result<BarrierAnswer> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let arrive = ArriveAtBarrierRequest {
            namespace: self.namespace.clone(),
            path: self.path.clone(),
            process_id: Some(self.process_id.clone()),
            generation: self.generation,
            parties: self.parties,
            ttl_ms: Some(millis(self.ttl)),
            wait_ms: millis(wait),
            ..Default::default()
        };
        let make = async |request| self.settings.client.barriers().arrive_at_barrier(request).await;
        if self.generation.is_some() {
            return call_waiting(arrive, wait, make).await;
        }
        Ok(call_once(arrive, wait + CALL_TIMEOUT, make).await?)
    }

    /// Waits for the end of a generation that needs no further party.
    async fn wait_for_end(&mut self, full: &BarrierAnswer, left: Option<Duration>) -> Result<()> {
        let wait = left.unwrap_or(WAIT_PER_CALL).min(WAIT_PER_CALL);
        let request = WaitAtBarrierRequest {
            namespace: self.namespace.clone(),
            path: self.path.clone(),
            generation: full.generation,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            ..Default::default()
        };
        let make = async |request| self.settings.client.barriers().wait_at_barrier(request).await;
        self.generation = Some(call_waiting(request, wait, make).await?.next_generation);
        Ok(())
    }

    /// Leaves the generation, if it may have arrived in one.
    async fn leave(&self) -> Result<Option<BarrierAnswer>> {
        let generation = match self.generation {
            Some(generation) => Some(generation),
            None => self.present_generation().await?,
        };
        let Some(generation) = generation else { return Ok(None) };
        let leave = LeaveBarrierRequest {
            namespace: self.namespace.clone(),
            path: self.path.clone(),
            process_id: Some(self.process_id.clone()),
            generation,
            ..Default::default()
        };
        let make = async |request| self.settings.client.barriers().leave_barrier(request).await;
        match call(leave, make).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if has_code(&error, NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_tripped(answer: &BarrierAnswer) -> bool {
    answer.outcome() == Outcome::Tripped
}

fn has_code(error: &anyhow::Error, code: &str) -> bool {
    error.downcast_ref::<Error>().and_then(Error::code) == Some(code)
}
