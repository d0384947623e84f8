//! Histories in files: what a finding leaves behind, to be looked at, and to be checked again for ever.

use std::io::{BufWriter, Write};
use std::path::Path;

use crate::checker::check;
use crate::history::Record;

/// The shortest beginning of the records of as few locks as can be that still contradicts the specification; empty
/// when nothing does. Records are taken in the order of their ends, as callers saw them.
pub fn minimal_counterexample(records: &[Record]) -> Vec<Record> {
    let mut ordered = records.to_vec();
    ordered.sort_by_key(|record| record.end);
    if check(&ordered).is_empty() {
        return Vec::new();
    }
    // Of one lock, or else of one shard: tokens and revisions count there.
    let part = |is_in: &dyn Fn(&Record) -> bool| -> Option<Vec<Record>> {
        let part: Vec<Record> = ordered.iter().filter(|record| is_in(record)).cloned().collect();
        (!check(&part).is_empty()).then_some(part)
    };
    let mut locks: Vec<_> = ordered.iter().map(|record| record.lock.clone()).collect();
    locks.sort();
    locks.dedup();
    let of_a_lock = locks.iter().filter_map(|lock| part(&|record| record.lock == *lock));
    let of_a_shard = locks.iter().filter_map(|lock| part(&|record| record.lock.shard == lock.shard));
    let wrong = of_a_lock.chain(of_a_shard).min_by_key(Vec::len).unwrap_or(ordered);
    // A beginning that is wrong mostly stays so, and where it does not, any wrong one will do. Calls in flight at its end
    // belong to it: they may be the cause of what others saw.
    let beginning = |count: usize| -> Vec<Record> {
        let end = wrong[count - 1].end;
        wrong.iter().filter(|record| record.start <= end).cloned().collect()
    };
    let (mut right, mut bad) = (0, wrong.len());
    while right + 1 < bad {
        let middle = usize::midpoint(right, bad);
        if check(&beginning(middle)).is_empty() { right = middle } else { bad = middle }
    }
    beginning(bad)
}

/// Writes records to a file of their own, one a line; where, and how to check them again.
pub(crate) fn save(records: &[Record]) -> String {
    let named = tempfile::Builder::new().prefix("holdfast-history-").suffix(".jsonl").tempfile();
    let file = named.and_then(|file| {
        let mut writer = BufWriter::new(file.as_file());
        for record in records {
            serde_json::to_writer(&mut writer, record)?;
            writer.write_all(b"\n")?;
        }
        writer.flush()?;
        drop(writer);
        file.keep().map_err(|error| error.error)
    });
    match file {
        Ok((_, path)) => {
            let path = path.display();
            format!("{path}; to check it again: cargo run -p holdfast-cluster-tests --example check_history -- {path}")
        }
        Err(error) => format!("no file: {error}"),
    }
}

/// Reads what a finding left behind.
///
/// # Errors
/// When the file can't be read, with the line.
pub fn load(path: &Path) -> Result<Vec<Record>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let line = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("{}: line {}: {error}", path.display(), number + 1))
    };
    text.lines().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use holdfast_types::Mode;

    use super::*;
    use crate::history::{Answer, Call, Hold, LockId, Outcome, View};

    /// An owner takes a lock for writing at that second and that revision.
    fn acquire_record(lock: &str, owner: &str, at: u64) -> Record {
        let lock = LockId { shard: "s".into(), namespace: "n".into(), name: lock.into() };
        let hold = Hold { token: at, owner: Arc::from(owner), mode: Mode::Write };
        let view = View { revision: at, holds: vec![hold], is_whole: true };
        Record {
            owner: owner.into(),
            lock,
            call: Call::Acquire { mode: Mode::Write, ttl_ms: 3_600_000, token: None },
            start: Duration::from_secs(at),
            end: Duration::from_millis(at * 1_000 + 1),
            outcome: Outcome::Answered(Answer { success: true, token: Some(at), reason: None, lock: view }),
        }
    }

    #[test]
    fn the_shortest_wrong_history_is_found_kept_and_read_again() {
        let mut records: Vec<Record> = (1..50).map(|at| acquire_record(&format!("lock-{at}"), "a", at)).collect();
        assert!(minimal_counterexample(&records).is_empty());
        records.push(acquire_record("lock-7", "b", 50));
        records.extend((51..90).map(|at| acquire_record(&format!("lock-{at}"), "a", at)));
        let shortest = minimal_counterexample(&records);
        let owners: Vec<&str> = shortest.iter().map(|record| &*record.owner).collect();
        assert_eq!(owners, ["a", "b"]);

        let told = save(&shortest);
        let path = Path::new(told.split(';').next().expect("there is a path"));
        let again = load(path).expect("it can be read");
        assert_eq!(check(&again), check(&shortest));
        std::fs::write(path, "{}").expect("it can be changed");
        assert!(load(path).expect_err("a line is cut").contains("line 1"));
        std::fs::remove_file(path).expect("it can be removed");
    }
}
