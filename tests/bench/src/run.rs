//! A whole run: every system is started once, and every measurement is made on all of them in turns.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::clients::Target;
use crate::cluster::{self, EntryPoint};
use crate::load::{self, LoadShape, Window};
use crate::options::{Options, Peer, WorkloadName};
use crate::report::{Machine, Measurement, Report};
use crate::scenarios::{self, Overload};
use crate::systems::{Etcd, Redis, System};
use crate::workloads::{Kind, Worker};
use holdfast_testkit::{Cluster, Setup};

/// One thing that is measured on every system that can do it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    kind: Kind,
    clients: usize,
    namespaces: usize,
    pace: LoadShape,
}

/// Measures what the options say, prints the tables, and writes the files.
///
/// # Errors
/// When a system can't be started or fails, or does too little in an overload. Errors of single operations are reported
/// in the results instead.
pub async fn run(options: &Options) -> Result<()> {
    ensure!(
        options.doors.iter().all(|door| door.is_holdfast()),
        "--doors takes this service's own: rest, grpc, stream, memory"
    );
    ensure!(options.namespaces > 0 && options.rounds > 0, "--namespaces and --rounds are at least 1");
    let mut report = Report::new(Machine::detect()?);
    let cases = cases(options);
    if !cases.is_empty() {
        measure(options, &cases, &mut report).await?;
    }
    let setup = cluster::setup(options.shards, &options.data_dir, EntryPoint::Gateway);
    if options.workloads.contains(&WorkloadName::Holds) {
        eprintln!("holds: {}", options.holds);
        report.holds = Some(scenarios::holds(&setup, options.holds).await?);
    }
    if options.workloads.contains(&WorkloadName::Idle) {
        eprintln!("idle");
        report.idle.push(scenarios::idle(&setup).await?);
        if options.compare.contains(&Peer::Etcd) {
            report.idle.push(scenarios::idle_etcd(&options.data_dir).await?);
        }
    }
    if options.workloads.contains(&WorkloadName::Growth) {
        let length = Duration::from_secs_f64(options.seconds);
        report.growth = Some(scenarios::growth(&setup, options.holds, length).await?);
    }
    if options.workloads.contains(&WorkloadName::Failover) {
        eprintln!("failover: {} kills", options.kills);
        report.failover = Some(scenarios::failover(&setup, options.kills).await?);
    }
    if options.workloads.contains(&WorkloadName::Watchers) {
        eprintln!("watchers: {}", options.watchers);
        let length = Duration::from_secs_f64(options.seconds);
        report.watchers = Some(scenarios::watchers(&setup, options.watchers, length).await?);
    }
    if options.workloads.contains(&WorkloadName::LatchWaiters) {
        eprintln!("latch-waiters: {}", options.latch_waiters);
        report.latch_waiters = Some(scenarios::latch_waiters(&setup, options.latch_waiters, options.rounds).await?);
    }
    if options.workloads.contains(&WorkloadName::Rebuild) {
        let (sessions, holds) = (options.rebuild_sessions, options.rebuild_holds);
        eprintln!("rebuild: {sessions} sessions with {holds} holds each");
        report.rebuild = Some(scenarios::rebuild(&setup, sessions, holds, options.rounds).await?);
    }
    run_tenant_scenarios(options, &setup, &mut report).await?;
    println!("{}", report.to_text());
    if let Some(out) = &options.out {
        report.write(out).with_context(|| format!("the results can't be written to {}", out.display()))?;
    }
    // Last, so that the results are there.
    report.overload.as_ref().map_or(Ok(()), Overload::check)
}

/// What tenants do to one another, and all of them together to the service.
async fn run_tenant_scenarios(options: &Options, setup: &Setup, report: &mut Report) -> Result<()> {
    let length = Duration::from_secs_f64(options.seconds);
    if options.workloads.contains(&WorkloadName::Neighbours) {
        eprintln!("neighbours: {} waiting, {} slow readers", options.loud_waiting, options.slow_readers);
        let (rate, waiting, slow_readers) = (options.loud_rate, options.loud_waiting, options.slow_readers);
        let loudness = scenarios::LoadLevel { rate, waiting, slow_readers };
        report.neighbours = Some(scenarios::noisy_neighbour(setup, loudness, length, options.rounds).await?);
    }
    if options.workloads.contains(&WorkloadName::Overload) {
        report.overload = Some(scenarios::overload(setup, length).await?);
    }
    Ok(())
}

/// Everything that is measured under load, in the order of the report.
fn cases(options: &Options) -> Vec<Case> {
    let (many, other) = (options.namespaces, options.other_clients);
    let closed = |kind, clients, namespaces| Case { kind, clients, namespaces, pace: LoadShape::Closed };
    let mut cases = Vec::new();
    for workload in &options.workloads {
        match workload {
            WorkloadName::Pairs => {
                cases.extend(options.clients.iter().map(|clients| closed(Kind::Pairs, *clients, many)));
                let open = |rate: &f64| Case { pace: LoadShape::Open(*rate), ..closed(Kind::Pairs, other, many) };
                cases.extend(options.rates.iter().map(open));
            }
            WorkloadName::PairsOneNamespace => {
                cases.extend(options.clients.iter().map(|clients| closed(Kind::Pairs, *clients, 1)));
            }
            WorkloadName::Contended => {
                cases.extend(options.fighters.iter().map(|clients| closed(Kind::Contended, *clients, 1)));
            }
            WorkloadName::Permits => {
                // One after the other, so that the machine is the same for both.
                for clients in &options.clients {
                    cases.extend([Kind::Pairs, Kind::PermitPairs].map(|kind| closed(kind, *clients, many)));
                }
                for clients in &options.fighters {
                    cases.extend([Kind::Contended, Kind::PermitHandOffs].map(|kind| closed(kind, *clients, 1)));
                }
            }
            WorkloadName::ReadersWriters => cases.push(closed(Kind::ReadersWriters, other, many)),
            WorkloadName::Extend => {
                cases.extend([Kind::Extend, Kind::KeepAlive].map(|kind| closed(kind, other, many)));
            }
            WorkloadName::Get => cases.push(closed(Kind::Look, other, many)),
            WorkloadName::Holds
            | WorkloadName::Idle
            | WorkloadName::Growth
            | WorkloadName::Failover
            | WorkloadName::Watchers
            | WorkloadName::LatchWaiters
            | WorkloadName::Rebuild
            | WorkloadName::Neighbours
            | WorkloadName::Overload => {}
        }
    }
    // What several workloads have is measured once.
    let mut known = Vec::new();
    for case in cases {
        if !known.contains(&case) {
            known.push(case);
        }
    }
    known
}

/// Rounds over all cases; in each case all systems, one after the other, and in every other round the other way round:
/// what one leaves behind is not always left to the same.
async fn measure(options: &Options, cases: &[Case], report: &mut Report) -> Result<()> {
    let systems = start(options).await?;
    for system in &systems {
        report.servers.extend(system.version()?);
    }
    let names: Vec<String> = (0..options.namespaces).map(|number| format!("bench-{number:04}")).collect();
    let session_names = create_session_namespaces(options, &systems).await?;
    let window = Window {
        warm_up: Duration::from_secs_f64(options.warm_up),
        measured: Duration::from_secs_f64(options.seconds),
    };
    for round in 0..options.rounds {
        for case in cases {
            let mut targets: Vec<_> = targets(options, &systems).filter(|(_, door)| case.kind.runs_on(*door)).collect();
            if round % 2 == 1 {
                targets.reverse();
            }
            for (system, door) in targets {
                let Case { kind, clients, namespaces, pace } = *case;
                let names = if door == Target::Memory { &session_names } else { &names };
                let workers = Worker::prepare(system, door, kind, clients, &names[..namespaces]).await;
                let workers = workers.with_context(|| format!("preparing {} on {door}", kind.name()))?;
                let outcome = load::run(system, workers, pace, window).await?;
                let at = system.entry_point();
                let measurement = Measurement::new(kind, door, at, clients, namespaces, pace, outcome);
                eprintln!("round {}/{}: {measurement}", round + 1, options.rounds);
                report.measurements.push(measurement);
            }
        }
    }
    Ok(())
}

async fn start(options: &Options) -> Result<Vec<System>> {
    let mut systems = Vec::new();
    if !options.doors.is_empty() {
        let setup = cluster::setup(options.shards, &options.data_dir, options.at);
        let cluster = if options.standalone { Cluster::start_standalone().await } else { Cluster::start(setup).await };
        let tenant = cluster::create_tenant(&cluster, options.namespaces).await?;
        systems.push(System::Holdfast(Box::new(cluster), tenant));
    }
    for peer in &options.compare {
        systems.push(match peer {
            Peer::Etcd => System::Etcd(Etcd::start(&options.data_dir).await?),
            Peer::Redis => System::Redis(Box::new(Redis::start(&options.data_dir, true).await?)),
            Peer::RedisMemory => System::Redis(Box::new(Redis::start(&options.data_dir, false).await?)),
        });
    }
    Ok(systems)
}

/// Returns the namespaces for what is measured in the memory of leaders; none if nothing is.
async fn create_session_namespaces(options: &Options, systems: &[System]) -> Result<Vec<String>> {
    let of_service = systems.iter().find_map(|system| match system {
        System::Holdfast(cluster, tenant) => Some((cluster, tenant)),
        System::Etcd(_) | System::Redis(_) => None,
    });
    match of_service.filter(|_| options.doors.contains(&Target::Memory)) {
        Some((cluster, tenant)) => cluster::create_session_namespaces(cluster, tenant).await,
        None => Ok(Vec::new()),
    }
}

/// Every target with its system.
fn targets<'a>(options: &'a Options, systems: &'a [System]) -> impl Iterator<Item = (&'a System, Target)> {
    let doors = options.doors.iter().copied().chain([Target::Etcd, Target::Redis, Target::RedisMemory]);
    doors.filter_map(|door| Some((systems.iter().find(|system| system.supports(door))?, door)))
}
