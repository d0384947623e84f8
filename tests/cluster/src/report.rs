//! The summary of a history.

use std::sync::Arc;

use futures::future::join_all;
use holdfast_testkit::{RestClient, eventually};

use crate::checker::check;
use crate::history::{Call, History, LockId, Outcome, Record};
use crate::history_file::{minimal_counterexample, save};
use crate::lock_calls::call_lock;
use crate::outage::DurationStats;

/// Reads every lock once more, so that the record contains the final state.
pub async fn read_all_locks(api: &RestClient, locks: &[LockId], history: &History) {
    let looks = locks.iter().map(async |lock| {
        let start = history.now();
        let answer = eventually("the lock can be read", async || {
            let answer = call_lock(api, &lock.namespace, &lock.name, "", Call::Get).await;
            answer.map_err(|error| error.to_string())
        });
        let outcome = Outcome::Answered(answer.await);
        let (owner, end) = (Arc::from(""), history.now());
        history.add(Record { owner, lock: lock.clone(), call: Call::Get, start, end, outcome });
    });
    join_all(looks).await;
}

/// Panics with the first violations when something contradicts the specification. What shows them is kept in a file.
pub fn assert_no_violations(history: &History) {
    let violations = history.with_records(check);
    if violations.is_empty() {
        return;
    }
    let (count, first) = (violations.len(), violations.into_iter().take(5).collect::<Vec<_>>());
    let shown = history.with_records(minimal_counterexample);
    let file = save(&shown);
    panic!("{count} violations, the first: {first:#?}\n{} records that show it are kept in {file}", shown.len());
}

/// Prints how many calls there were, what came of them and how long they took.
pub fn print_summary(history: &History) {
    let (calls, answered, unknown, times) = history.with_records(|records| {
        let answered = records.iter().filter(|record| matches!(record.outcome, Outcome::Answered(_))).count();
        let unknown = records.iter().filter(|record| record.outcome == Outcome::Unknown).count();
        let times = records.iter().map(|record| record.end.saturating_sub(record.start)).collect();
        (records.len(), answered, unknown, DurationStats::from_durations(times))
    });
    println!("{calls} calls, {answered} answered, {unknown} of unknown outcome; {times}");
    for trouble in history.error_summaries() {
        println!("  {trouble}");
    }
}
