//! How often memory is asked for on the way of a command through a replica. Counts are the same on every machine, so
//! that two builds can be compared exactly.

use holdfast_core::{Command, codec};
use stats_alloc::Region;

use crate::shard::Shard;
use crate::{ALLOCATOR, exclusive};

const PAIRS: usize = 10_000;

/// Allocations of an acquire and the release after it: to read the commands, to carry them out, and to write the
/// answers.
fn allocations_of_a_pair(shard: &mut Shard) -> [f64; 3] {
    let mut counts = [0; 3];
    for number in 0..PAIRS {
        let (name, owner) = (format!("mine-{number:06}"), format!("worker-{number:06}"));
        for command in [Shard::acquire_command(&owner, &[&name]), Shard::release_command(&owner, &[&name])] {
            let bytes = codec::encode(&Command::Locks(command));
            let region = Region::new(ALLOCATOR);
            let count = || region.change().allocations + region.change().reallocations;
            let Ok(Command::Locks(command)) = codec::decode(&bytes) else { panic!("it is not what was written") };
            let read = count();
            let reply = shard.reply(&Command::Locks(command));
            let done = count();
            let answer = codec::encode(&reply);
            let written = count();
            assert!(!answer.is_empty() && reply.outcome.is_ok());
            for (sum, more) in counts.iter_mut().zip([read, done - read, written - done]) {
                *sum += more;
            }
        }
    }
    counts.map(|count| count as f64 / PAIRS as f64)
}

#[test]
fn a_pair_asks_for_memory_a_few_times() {
    let _alone = exclusive();
    let mut shard = Shard::new();
    (0..20_000).for_each(|index| shard.hold(&format!("process-{index:06}"), &[&format!("lock-{index:06}")]));
    let [read, done, written] = allocations_of_a_pair(&mut shard);
    println!("allocations of a pair: {read:.1} to read it, {done:.1} to carry it out, {written:.1} to answer");
    assert!(read + done + written <= 52.0);
}
