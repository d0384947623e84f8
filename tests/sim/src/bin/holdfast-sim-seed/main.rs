//! The whole cluster in one thread: real nodes and gateways on a simulated network, simulated disks and simulated time,
//! with faults that a seed determines. This program runs one seed.
//!
//! Invariant: a run depends on its seed only. The time and the random numbers that the code under test reads come from
//! the simulation, so that the same seed gives the same run, packet for packet. Therefore a process runs only one seed:
//! statics of libraries would carry over to a second one.
//!
//! Deliberately unknown here: openraft, RocksDB, HTTP frontends. Checks inspect the commands that replicas apply and the
//! answers that clients get, and nothing else.

mod apply_log;
mod ask_calls;
mod barrier_calls;
mod check;
mod client;
mod condition_calls;
mod faults;
mod gateway_host;
mod history;
mod host_clocks;
mod host_state;
mod leaders;
mod lost_messages;
mod network;
mod node_host;
mod pause;
mod plan;
mod simulation;
mod soft_claims;
mod things;
mod told_log;
mod trace;
mod watch_log;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use holdfast_mutations::Mutation;
use rand10::SeedableRng;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use plan::Plan;
use simulation::{Report, run};
use trace::PacketDigest;

const MUTATIONS_DISABLED: &str = "this build has no mutations; build it with `--features mutations`";

/// Simulates one cluster with faults, and prints what the checks found.
#[derive(Parser)]
#[command(name = "holdfast-sim-seed")]
struct Args {
    /// The seed.
    #[arg(long, env = "SEED")]
    seed: u64,
    /// Inject no faults.
    #[arg(long)]
    calm: bool,
    /// Enable this mutation in the cluster; needs a build with mutations.
    #[arg(long)]
    mutation: Option<String>,
    /// Run a shorter simulation with less of everything.
    #[arg(long)]
    short: bool,
    /// Inject panics into tasks and state machines while they work; needs a build with mutations.
    #[arg(long)]
    panics: bool,
    /// Instead of everything else, lose each message of some calls in turn, and make the calls again.
    #[arg(long)]
    lost_answers: bool,
    /// How long clients work and faults happen, instead of the time that the seed draws.
    #[arg(long)]
    chaos_ms: Option<u64>,
    /// Digest every packet: slower, but distinguishes two runs that differ anywhere.
    #[arg(long)]
    packets: bool,
    /// Print the logs of the processes, by the directives in RUST_LOG.
    #[arg(long)]
    logs: bool,
    /// The file for the journal.
    #[arg(long)]
    journal: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(name) = &args.mutation {
        let Some(mutation) = Mutation::from_name(name) else { bail!("there is no mutation named {name:?}") };
        if !holdfast_mutations::enable(mutation) {
            bail!("{MUTATIONS_DISABLED}");
        }
    }
    if args.panics && !cfg!(feature = "mutations") {
        bail!("{MUTATIONS_DISABLED}");
    }
    mad_turmoil::rand::set_rng(rand10::rngs::StdRng::seed_from_u64(args.seed));
    let clocks = mad_turmoil::time::SimClocksGuard::init();
    let packets = PacketDigest::default();
    let digest = args.packets.then(|| packets.clone().with_filter(EnvFilter::new("turmoil=trace")));
    let logs = args.logs.then(|| {
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(EnvFilter::from_default_env())
    });
    tracing_subscriber::registry().with(digest).with(logs).init();
    let mut plan = Plan::from_seed(args.seed);
    if args.short {
        plan = plan.shortened();
    }
    plan.faults = !args.calm;
    plan.panics_at = args.mutation.as_deref().and_then(Mutation::from_name).and_then(Mutation::panic_point);
    plan.panics = args.panics || plan.panics_at.is_some();
    if let Some(chaos_ms) = args.chaos_ms {
        plan.chaos = Duration::from_millis(chaos_ms);
    }
    if args.lost_answers {
        plan = plan.for_lost_answers();
    }
    let report = run(plan)?;
    drop(clocks);
    if let Some(path) = &args.journal {
        std::fs::write(path, report.journal.join("\n"))?;
    }
    let (digest, events) = packets.finish();
    print_report(&report, &if args.packets { format!("{digest} of {events}") } else { "-".to_owned() });
    Ok(if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_report(report: &Report, packets: &str) {
    println!(
        "seed {} violations {} chaos_ms {} calls {} entries {} events {} soft_grants {} faults {} panics {} attacks {} \
         simulated_ms {} healed_ms {} digest {} packets {packets}",
        report.seed,
        report.violations.len(),
        report.chaos.as_millis(),
        report.calls,
        report.entries,
        report.events,
        report.soft_grants,
        report.faults,
        report.panics,
        report.attacks,
        report.simulated.as_millis(),
        report.healed_after.as_millis(),
        report.digest,
    );
    for violation in &report.violations {
        println!("  {violation}");
    }
}
