//! Counts what is done of each latch, without the core: each job once.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{CountDown, Jobs, LatchCommand, LatchStatus, LatchView, NamespaceRef, Reply, Response, Revision};

/// A latch as it must be.
#[derive(Debug, Default)]
struct Counted {
    total: u64,
    done: BTreeSet<String>,
}

/// All latches that there ever were.
#[derive(Default)]
pub(crate) struct LatchCounts(BTreeMap<(NamespaceRef, Revision), Counted>);

impl LatchCounts {
    /// Compares the reply to a command with what is known.
    pub(crate) fn check(&mut self, command: &LatchCommand, reply: &Reply, find: &mut dyn FnMut(String)) {
        match (command, &reply.outcome) {
            (LatchCommand::Create(create), Ok(Response::LatchCreated { latch, is_new: true })) => {
                let counted = Counted { total: create.total, ..Counted::default() };
                if self.0.insert((create.namespace.clone(), latch.id), counted).is_some() {
                    find(format!("[latches] {latch:?} has the id of an earlier one"));
                }
                self.compare(&create.namespace, latch, find);
            }
            (LatchCommand::Create(create), Ok(Response::LatchCreated { latch, is_new: false })) => {
                self.compare(&create.namespace, latch, find);
            }
            (LatchCommand::CountDown(count), Ok(Response::CountedDown { counted, latch })) => {
                if count.latch.id.is_some_and(|id| id != latch.id) {
                    find(format!("[latches] {count:?} is counted by another latch, {latch:?}"));
                }
                let expected = self.count(count, latch);
                if *counted != expected {
                    find(format!("[latches] {count:?} counts {counted}, not {expected}, of {latch:?}"));
                }
                self.compare(&count.latch.namespace, latch, find);
            }
            _ => {}
        }
    }

    /// Counts the jobs of a command. Returns how many of them are new.
    fn count(&mut self, count: &CountDown, latch: &LatchView) -> u64 {
        let known = self.0.get_mut(&(count.latch.namespace.clone(), latch.id));
        // What came too late is not counted.
        let known = known.filter(|_| latch.status != LatchStatus::Expired);
        let (Some(known), Jobs::Named(jobs)) = (known, &count.jobs) else { return 0 };
        let mut new = 0;
        for job in jobs {
            if (known.done.len() as u64) < known.total && known.done.insert(job.clone()) {
                new += 1;
            }
        }
        new
    }

    fn compare(&self, namespace: &NamespaceRef, latch: &LatchView, find: &mut dyn FnMut(String)) {
        let Some(known) = self.0.get(&(namespace.clone(), latch.id)) else {
            find(format!("[latches] nobody made {latch:?}"));
            return;
        };
        let done = known.done.len() as u64;
        let is_complete = latch.status == LatchStatus::Completed;
        if (latch.total, latch.done, is_complete) != (known.total, done, done == known.total) {
            find(format!("[latches] {latch:?} should have {known:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, CreateLatch, Incarnation, LatchIds, LatchRef, Metadata, Path};

    use super::*;

    const ID: Revision = 3;

    fn namespace() -> NamespaceRef {
        NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) }
    }

    fn view(id: Revision, status: LatchStatus, done: u64) -> LatchView {
        LatchView {
            path: Path::flat("l"),
            id,
            status,
            total: 2,
            done,
            ids: LatchIds::Named,
            deadline_ms: 1_000,
            finished_at_ms: None,
            retain_ms: 60_000,
            description: String::new(),
            metadata: Metadata::new(),
            revision: id,
            waiters: None,
        }
    }

    fn create() -> LatchCommand {
        LatchCommand::Create(CreateLatch {
            namespace: namespace(),
            path: Path::flat("l"),
            total: 2,
            ids: LatchIds::Named,
            expires_in_ms: 1_000,
            retain_ms: 60_000,
            description: String::new(),
            metadata: Metadata::new(),
        })
    }

    fn count_down(id: Option<Revision>, jobs: &[&str]) -> LatchCommand {
        let latch = LatchRef { namespace: namespace(), path: Path::flat("l"), id };
        let jobs = Jobs::Named(jobs.iter().map(|job| (*job).to_owned()).collect());
        LatchCommand::CountDown(CountDown { latch, jobs })
    }

    /// How much is wrong in the replies to these commands about a latch that was just made.
    fn count_findings(replies: &[(LatchCommand, u64, LatchView)]) -> usize {
        let (mut counts, mut findings) = (LatchCounts::default(), 0);
        let mut check = |command: &LatchCommand, response| {
            let reply = Reply { outcome: Ok(response), clock_ms: 0, awaits: None };
            counts.check(command, &reply, &mut |_| findings += 1);
        };
        check(&create(), Response::LatchCreated { latch: view(ID, LatchStatus::Active, 0), is_new: true });
        for (command, counted, latch) in replies {
            check(command, Response::CountedDown { counted: *counted, latch: latch.clone() });
        }
        findings
    }

    #[test]
    fn each_job_counts_once_and_no_more_than_there_are() {
        let (active, completed) = (view(ID, LatchStatus::Active, 1), view(ID, LatchStatus::Completed, 2));
        let right = [
            (count_down(None, &["a", "a"]), 1, active.clone()),
            (count_down(Some(ID), &["a"]), 0, active.clone()),
            (count_down(None, &["b", "c"]), 1, completed.clone()),
            (count_down(None, &["d"]), 0, completed),
        ];
        assert_eq!(count_findings(&right), 0);
        let expired = view(ID, LatchStatus::Expired, 1);
        assert_eq!(count_findings(&[right[0].clone(), (count_down(None, &["b"]), 0, expired)]), 0);
    }

    #[test]
    fn a_job_that_counts_twice_or_elsewhere_is_found() {
        let active = view(ID, LatchStatus::Active, 1);
        let first = (count_down(None, &["a"]), 1, active.clone());
        let twice = (count_down(None, &["a"]), 1, view(ID, LatchStatus::Completed, 2));
        assert_eq!(count_findings(&[first.clone(), twice]), 2);
        assert_eq!(count_findings(&[first, (count_down(None, &["a"]), 1, active.clone())]), 1);
        assert_eq!(count_findings(&[(count_down(Some(ID - 1), &["a"]), 1, active)]), 1);
        assert_eq!(count_findings(&[(count_down(None, &[]), 0, view(ID + 1, LatchStatus::Active, 0))]), 1);
    }
}
