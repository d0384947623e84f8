//! The kept inputs, and mutations of them, are read without a panic and within a bound on memory. `make fuzz SECONDS=n`
//! takes n seconds for each target and another seed; `make fuzz RUNS=n ONLY="name ..."` mutates n inputs of some targets.

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use holdfast_fuzz_tests::{TARGETS, Target, corpus, mutate::mutate};
use peak_alloc::PeakAlloc;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What reading one input of at most 64 KiB may take.
const MAX_MEMORY_BYTES: usize = 32 * 1024 * 1024;

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Runs a target on an input. Panics with the line for the corpus when the target does, or takes too much.
fn run(target: &Target, input: &[u8]) -> bool {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let result = catch_unwind(|| (target.run)(input));
    let used = MEMORY.peak_usage().saturating_sub(before);
    let keep =
        || format!("keep it: a line of {}:\n{}", corpus::file(target).display(), corpus::encode_line(target, input));
    let is_read = result.unwrap_or_else(|_| panic!("{} panics; {}", target.name, keep()));
    assert!(used <= MAX_MEMORY_BYTES, "{} takes {used} bytes of memory; {}", target.name, keep());
    is_read
}

#[test]
fn kept_inputs_and_their_mutations_are_read_without_a_panic_and_within_a_bound() {
    let (seconds, max_runs) = (env_number("HOLDFAST_FUZZ_SECONDS"), env_number("HOLDFAST_FUZZ_RUNS"));
    let is_long = seconds.is_some() || max_runs.is_some();
    let seed = env_number("HOLDFAST_FUZZ_SEED").unwrap_or(if is_long { rand::random() } else { 1 });
    let only = std::env::var("HOLDFAST_FUZZ_ONLY").unwrap_or_default();
    let only: Vec<&str> = only.split_whitespace().collect();
    println!("seed {seed}");
    for target in TARGETS.iter().filter(|target| only.is_empty() || only.contains(&target.name)) {
        let mut inputs = corpus::inputs(target);
        let read = inputs.iter().filter(|input| run(target, input)).count();
        assert!(read > 0, "{}: nothing in the corpus is read", target.name);
        let kept = inputs.len();
        let mut random = SmallRng::seed_from_u64(seed);
        let began = Instant::now();
        let limit = Duration::from_millis(seconds.map_or(300, |seconds| seconds * 1_000));
        let (mut runs, mut accepted) = (0, 0);
        while max_runs.map_or_else(|| began.elapsed() < limit, |most| runs < most) {
            let one = &inputs[random.random_range(0..inputs.len())];
            let other = &inputs[random.random_range(0..inputs.len())];
            let input = mutate(&mut random, one, other);
            runs += 1;
            if run(target, &input) {
                accepted += 1;
                // What is still read leads further; a few of them are enough.
                if inputs.len() < 4 * kept + 64 && input.len() < 4_096 {
                    inputs.push(input);
                }
            }
        }
        let took = began.elapsed();
        println!("{:<18} {kept:>3} kept, {runs} mutations in {took:.1?}, {accepted} of them read", target.name);
    }
}

#[test]
fn what_is_kept_is_read_back_as_it_was() {
    for target in &TARGETS {
        for input in [&b"{\"a\": 1}"[..], b"two\nlines", &[0xff, 0], b"hex:00", b""] {
            let line = corpus::encode_line(target, input);
            assert!(!line.contains('\n'), "{line:?}");
            assert_eq!(corpus::decode_line(target, &line), input, "{}: {line}", target.name);
        }
    }
}
