//! One or two hostile accounts, and strangers, beside a quiet account: whatever they do within their limits, it keeps
//! its locks and its pace, and every shard lives. `make hostile` and `make soak` run all of it in its full size.

mod attacker;
mod attacks;
mod control_load;
mod grpc_client;
mod health;
mod quiet_tenant;
mod report;
mod session;
mod testbed;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use attacks::{ALL, Attack};
use report::{Row, table};
use rustix::process::setpriority_process;
use testbed::{Deployment, MAX_HOSTILE_ACCOUNTS, Scale, TestBed};
use tokio::runtime::Builder;

const SHORT_SCALE: Scale = Scale {
    is_full: false,
    baseline: Duration::from_secs(1),
    attack: Duration::ZERO,
    attack_timeout: Duration::from_secs(60),
    memory_timeout: Duration::from_secs(5),
    // In a short form the history of events and the caches are still filling.
    retained_bytes: 192 << 20,
    max_held_calls: 1_000,
};
/// How far the priority of hostile callers is below the usual one.
const HOSTILE_NICE: i32 = 10;
/// What a process may keep beside its memory before a full attack, in bytes; and after a start, which empties caches.
const RETAINED_BYTES: u64 = 48 << 20;
const RETAINED_BYTES_AFTER_START: u64 = 96 << 20;

/// Calls that an account may have waiting at one gateway, unless that is changed.
const MAX_HELD_CALLS: usize = 65_536;
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

/// An attack, and how many accounts make it at once.
#[derive(Clone, Copy)]
struct Step {
    attack: &'static Attack,
    accounts: usize,
}

/// All attacks by so many accounts, then all by as many as is said next.
fn steps(accounts: &[usize]) -> Vec<Step> {
    let attacks = selected_attacks();
    accounts.iter().flat_map(|&accounts| attacks.iter().map(move |&attack| Step { attack, accounts })).collect()
}

/// Runs these attacks, one after the other. A service that did not survive one is replaced. All nodes are killed at
/// once after each so many attacks; after none if it is 0.
async fn run_attacks(
    kind: Deployment,
    scale: Scale,
    steps: &[Step],
    kill_every: usize,
    on_row: &mut dyn FnMut(&Row),
) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut arena = None;
    let mut alone = quiet_tenant::Window::default();
    for (number, Step { attack, accounts }) in (1_usize..).zip(steps) {
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
                    // There is one cluster at a time.
                    drop(standing);
                    standing = TestBed::start(kind, scale).await.unwrap_or_else(|reason| panic!("{reason}"));
                    alone = standing.measure_alone().await.unwrap_or_else(|reason| panic!("{reason}"));
                }
            }
        }
        let mut row = standing.run(attack, *accounts, &alone).await;
        let is_followed_by_kill = kill_every > 0 && number.is_multiple_of(kill_every);
        if is_followed_by_kill && kind == Deployment::Cluster && !row.is_broken() {
            match standing.restart_nodes().await {
                Ok(took) => row.recovery_s = Some(took.as_secs_f64()),
                Err(reason) => row.failed = Some(reason),
            }
        }
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
        let (name, quiet, own) = (row.title(), &row.quiet, &row.slowest);
        println!(
            "{} {name}: {:.1} s, {} calls, refused {:?}, {own:?}; quiet p50 {}, p99 {}, longest {} ms; {:?} MiB; {faults:?}",
            row.service, row.seconds, row.calls, row.refused, quiet.p50, quiet.p99, quiet.max, row.memory
        );
        if !faults.is_empty() {
            wrong.push(format!("{}: {}", row.title(), faults.join("; ")));
        }
    };
    let mut steps = steps(&[1]);
    // Each attack is made once, and every other one by all hostile accounts at once.
    steps.iter_mut().step_by(2).for_each(|step| step.accounts = MAX_HOSTILE_ACCOUNTS);
    run_attacks(kind, SHORT_SCALE, &steps, 0, &mut show).await;
    println!("{} attacks on a {} took {:.1?}", steps.len(), report::name(kind), began.elapsed());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs a test with the hostile callers on threads of low priority. They stand for machines of their own: they may keep
/// the service busy, but take no processor from it and from the quiet account. Whatever starts from the test itself, and
/// not from a task of it, has the usual priority.
fn run_test<F: Future>(test: F) -> F::Output {
    let mut runtime = Builder::new_multi_thread();
    let lower = || setpriority_process(None, HOSTILE_NICE).expect("a thread may lower its priority");
    runtime.enable_all().on_thread_start(lower).build().expect("a runtime starts").block_on(test)
}

#[test]
fn a_quiet_account_keeps_what_it_has_beside_a_hostile_one_in_one_process() {
    run_test(run_short(Deployment::Standalone));
}

#[test]
fn a_quiet_account_keeps_what_it_has_beside_a_hostile_one_in_a_cluster() {
    run_test(run_short(Deployment::Cluster));
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
        "# Hostile accounts beside a quiet one\n\nMade by `make hostile` or `make soak` in {:.0} minutes on \
         {processors} processors, which the nodes, the gateways and all callers share. Times are in ms, from the time \
         at which a call was due; memory is in MiB, of the process that grew most, and idle is before all attacks. \
         Calm is the quiet account alone or, where the attack left less than a third of the processors idle, beside a \
         polite account that keeps them as busy. Where the disk itself stood still, for a small file of nobody else, \
         that is shown, and what is found is judged without that time.\n\nThe attacks:\n\n",
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

/// How many accounts attack at once, one number after the other.
fn account_counts() -> Vec<usize> {
    let text = env_var("HOLDFAST_HOSTILE_ACCOUNTS").unwrap_or_else(|| "1".to_owned());
    let counts: Vec<usize> = text.split_whitespace().map(|count| count.parse().expect("numbers")).collect();
    let is_possible = |count: &usize| (1..=MAX_HOSTILE_ACCOUNTS).contains(count);
    assert!(counts.iter().all(is_possible), "there are {MAX_HOSTILE_ACCOUNTS} hostile accounts: {text}");
    counts
}

/// All attacks in their full size; `HOLDFAST_HOSTILE_MINUTES` says how long, `…_ONLY` which, `…_ON` on which service,
/// `…_ACCOUNTS` by how many accounts at once (`1 2` is first by one and then by two), `…_KILL_EVERY` after how many
/// attacks all nodes are killed. `…_OUT` is the folder for the table, `…_BEFORE` the rows of an earlier build.
#[test]
#[ignore = "takes half an hour; make hostile and make soak run it"]
fn every_attack_in_its_full_size() {
    run_test(run_full());
}

async fn run_full() {
    let began = Instant::now();
    let number = |name: &str| env_var(name).map(|text| text.parse::<u64>().expect("a number"));
    let minutes = number("HOLDFAST_HOSTILE_MINUTES").unwrap_or(DEFAULT_MINUTES);
    let kill_every = number("HOLDFAST_HOSTILE_KILL_EVERY").unwrap_or_default() as usize;
    let kinds: Vec<Deployment> = match env_var("HOLDFAST_HOSTILE_ON").as_deref() {
        None => vec![Deployment::Standalone, Deployment::Cluster],
        Some("standalone") => vec![Deployment::Standalone],
        Some("cluster") => vec![Deployment::Cluster],
        Some(other) => panic!("there is no service {other}"),
    };
    let steps = steps(&account_counts());
    let each = Duration::from_secs(minutes * 60) / (kinds.len() * steps.len()) as u32;
    let scale = Scale {
        is_full: true,
        baseline: (each / BASELINE_DIVISOR).max(Duration::from_secs(3)),
        attack: each / 3,
        attack_timeout: Duration::from_secs(180),
        memory_timeout: Duration::from_secs(30),
        retained_bytes: if kill_every > 0 { RETAINED_BYTES_AFTER_START } else { RETAINED_BYTES },
        max_held_calls: MAX_HELD_CALLS,
    };
    let before = env_var("HOLDFAST_HOSTILE_BEFORE").map_or_else(Vec::new, |path| read_rows(&path));
    let mut rows = Vec::new();
    for kind in kinds {
        let mut show = |row: &Row| print!("{}", table(std::slice::from_ref(row), &before, &findings));
        rows.extend(run_attacks(kind, scale, &steps, kill_every, &mut show).await);
        write_report(&rows, &before, began.elapsed().as_secs_f64());
    }
    println!("{}", table(&rows, &before, &findings));
    let wrong: Vec<String> = rows.iter().filter(|row| !findings(row).is_empty()).map(Row::title).collect();
    assert!(wrong.is_empty(), "{} of {} did not show what they must: {wrong:?}", wrong.len(), rows.len());
}
