//! What a history comes to.

use std::sync::Arc;

use futures::future::join_all;

use crate::api::Api;
use crate::checker::check;
use crate::eventually::eventually;
use crate::history::{Call, History, LockId, Outcome, Record};
use crate::outage::Figures;
use crate::saved::{save, shortest_wrong};

/// Looks at every lock once more, so that what is missing in the end is missed.
pub async fn look_at_all(api: &Api, locks: &[LockId], history: &History) {
    let looks = locks.iter().map(async |lock| {
        let start = history.now();
        let answer = eventually("the lock can be read", async || {
            let answer = api.call(&lock.namespace, &lock.name, "", Call::Get).await;
            answer.map_err(|error| error.to_string())
        });
        let outcome = Outcome::Answered(answer.await);
        let (owner, end) = (Arc::from(""), history.now());
        history.add(Record { owner, lock: lock.clone(), call: Call::Get, start, end, outcome });
    });
    join_all(looks).await;
}

/// Panics with the first violations when something contradicts the specification. What shows them is kept in a file.
pub fn assert_right(history: &History) {
    let violations = history.with(check);
    if violations.is_empty() {
        return;
    }
    let (count, first) = (violations.len(), violations.into_iter().take(5).collect::<Vec<_>>());
    let shown = history.with(shortest_wrong);
    let file = save(&shown);
    panic!("{count} violations, the first: {first:#?}\n{} records that show it are kept in {file}", shown.len());
}

/// Prints how many calls there were, what came of them and how long they took.
pub fn print_summary(history: &History) {
    let (calls, answered, unknown, times) = history.with(|records| {
        let answered = records.iter().filter(|record| matches!(record.outcome, Outcome::Answered(_))).count();
        let unknown = records.iter().filter(|record| record.outcome == Outcome::Unknown).count();
        let times = records.iter().map(|record| record.end.saturating_sub(record.start)).collect();
        (records.len(), answered, unknown, Figures::of(times))
    });
    println!("{calls} calls, {answered} answered, {unknown} of unknown outcome; {times}");
    for trouble in history.troubles() {
        println!("  {trouble}");
    }
}
