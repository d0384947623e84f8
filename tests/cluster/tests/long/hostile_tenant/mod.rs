//! One hostile account beside a quiet one: whatever the first does within its limits, the second keeps its locks and its
//! pace, and every shard lives. `make hostile` runs all of it in its full size.

mod attacker;
mod attacks;
mod control_load;
mod disk_probe;
mod grpc_client;
mod health;
mod pacing;
mod quiet_tenant;
mod report;
mod resource_usage;
mod session;
mod testbed;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use attacks::{ALL, Attack};
use report::{Row, table};
use testbed::{Deployment, Scale, TestBed};

const SHORT_SCALE: Scale = Scale {
    is_full: false,
    baseline: Duration::from_secs(1),
    attack: Duration::ZERO,
    attack_timeout: Duration::from_secs(60),
    memory_timeout: Duration::from_secs(5),
    // In a short form the history of events and the caches are still filling.
    retained_bytes: 192 << 20,
};

/// The default, for both services together.
const DEFAULT_MINUTES: u64 = 30;
/// How much of an attack's time is for the account alone and beside the polite one.
const BASELINE_DIVISOR: u32 = 4;

fn env_var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The attacks that were asked for.
fn selected_attacks() -> Vec<&'static Attack> {
    let Some(only) = env_var("HOLDFAST_HOSTILE_ONLY") else { return ALL.iter().collect() };
    for name in only.split_whitespace() {
        assert!(ALL.iter().any(|attack| attack.name == name), "there is no attack {name}");
    }
    ALL.iter().filter(|attack| only.split_whitespace().any(|name| name == attack.name)).collect()
}

/// Runs these attacks, one after the other. A service that did not survive one is replaced.
async fn run_attacks(
    kind: Deployment,
    scale: Scale,
    attacks: &[&'static Attack],
    on_row: &mut dyn FnMut(&Row),
) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut arena = None;
    let mut alone = quiet_tenant::Window::default();
    for attack in attacks {
        let mut standing = match arena.take() {
            Some(standing) => standing,
            None => TestBed::start(kind, scale).await.unwrap_or_else(|reason| panic!("nothing is calm: {reason}")),
        };
        // The long form measures the calm again each time; the short form once.
        if scale.is_full || alone.times.is_empty() {
            match standing.measure_alone().await {
                Ok(window) => alone = window,
                Err(reason) => {
                    println!("{}: {reason}; it is started anew", report::name(kind));
                    standing = TestBed::start(kind, scale).await.unwrap_or_else(|reason| panic!("{reason}"));
                    alone = standing.measure_alone().await.unwrap_or_else(|reason| panic!("{reason}"));
                }
            }
        }
        let row = standing.run(attack, &alone).await;
        on_row(&row);
        if !row.is_broken() {
            arena = Some(standing);
        }
        rows.push(row);
    }
    if let Some(arena) = arena {
        arena.finish().await.unwrap_or_else(|reason| panic!("in the end: {reason}"));
    }
    rows
}

async fn run_short(kind: Deployment) {
    let began = Instant::now();
    let mut wrong = Vec::new();
    let mut show = |row: &Row| {
        let faults = row.faults();
        let (name, quiet, own) = (&row.attack, &row.quiet, &row.slowest);
        println!(
            "{} {name}: {:.1} s, {} calls, refused {:?}, {own:?}; quiet p50 {}, p99 {}, longest {} ms; {:?} MiB; {faults:?}",
            row.service, row.seconds, row.calls, row.refused, quiet.p50, quiet.p99, quiet.max, row.memory
        );
        if !faults.is_empty() {
            wrong.push(format!("{}: {}", row.attack, faults.join("; ")));
        }
    };
    run_attacks(kind, SHORT_SCALE, &selected_attacks(), &mut show).await;
    println!("{} attacks on a {} took {:.1?}", ALL.len(), report::name(kind), began.elapsed());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_account_keeps_what_it_has_beside_a_hostile_one_in_one_process() {
    run_short(Deployment::Standalone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_account_keeps_what_it_has_beside_a_hostile_one_in_a_cluster() {
    run_short(Deployment::Cluster).await;
}

fn read_rows(path: &str) -> Vec<Row> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What is wrong with a row.
fn findings(row: &Row) -> Vec<String> {
    ALL.iter().find(|attack| attack.name == row.attack).map_or_else(Vec::new, |attack| row.findings(attack))
}

fn write_report(rows: &[Row], before: &[Row], seconds: f64) {
    let Some(out) = env_var("HOLDFAST_HOSTILE_OUT").map(PathBuf::from) else { return };
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut text = format!(
        "# One hostile account beside a quiet one\n\nMade by `make hostile` in {:.0} minutes on {processors} processors, \
         which the nodes, the gateways and all callers share. Times are in ms, from the time at which a call was due; \
         memory is in MiB, of the process that grew most. Calm is the quiet account alone or, where the attack left less \
         than a third of the processors idle, beside a polite account that keeps them as busy. Where the disk itself stood still, for a \
         small file of nobody else, that is shown, and what is found is judged without that time.\n\nThe attacks:\n\n",
        seconds / 60.0
    );
    for attack in ALL {
        text += &format!("- `{}`: {}.\n", attack.name, attack.what);
    }
    text += &table(rows, before, &findings);
    std::fs::create_dir_all(&out).expect("the folder can be made");
    std::fs::write(out.join("hostile.md"), text).expect("the table can be written");
    let json = serde_json::to_string_pretty(rows).expect("rows can be encoded");
    std::fs::write(out.join("hostile.json"), json + "\n").expect("the rows can be written");
}

/// All attacks in their full size; `HOLDFAST_HOSTILE_MINUTES` says how long, `…_ONLY` which, `…_ON` on which service,
/// `…_OUT` is the folder for the table, `…_BEFORE` the rows of an earlier build.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half an hour; make hostile runs it"]
async fn every_attack_in_its_full_size() {
    let began = Instant::now();
    let minutes = env_var("HOLDFAST_HOSTILE_MINUTES").map_or(DEFAULT_MINUTES, |text| text.parse().expect("a number"));
    let kinds: Vec<Deployment> = match env_var("HOLDFAST_HOSTILE_ON").as_deref() {
        None => vec![Deployment::Standalone, Deployment::Cluster],
        Some("standalone") => vec![Deployment::Standalone],
        Some("cluster") => vec![Deployment::Cluster],
        Some(other) => panic!("there is no service {other}"),
    };
    let attacks = selected_attacks();
    let each = Duration::from_secs(minutes * 60) / (kinds.len() * attacks.len()) as u32;
    let scale = Scale {
        is_full: true,
        baseline: (each / BASELINE_DIVISOR).max(Duration::from_secs(3)),
        attack: each / 3,
        attack_timeout: Duration::from_secs(180),
        memory_timeout: Duration::from_secs(30),
        retained_bytes: 48 << 20,
    };
    let before = env_var("HOLDFAST_HOSTILE_BEFORE").map_or_else(Vec::new, |path| read_rows(&path));
    let mut rows = Vec::new();
    for kind in kinds {
        let mut show = |row: &Row| print!("{}", table(std::slice::from_ref(row), &before, &findings));
        rows.extend(run_attacks(kind, scale, &attacks, &mut show).await);
        write_report(&rows, &before, began.elapsed().as_secs_f64());
    }
    println!("{}", table(&rows, &before, &findings));
    let wrong: Vec<String> =
        rows.iter().filter(|row| !findings(row).is_empty()).map(|row| row.attack.clone()).collect();
    assert!(wrong.is_empty(), "{} of {} did not show what they must: {wrong:?}", wrong.len(), rows.len());
}
