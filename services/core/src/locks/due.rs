//! Ending what is due.

use super::LocksCore;
use super::owner::OwnerId;
use super::tree::NodeId;
use super::work::{Deadline, WaitEnd};
use crate::{Context, Reason};

impl LocksCore {
    /// Ends every phase of a hold and every wait whose time the clock has reached, in order of time, and grants after
    /// each what it lets in, as if the leader had been punctual. Of what is due at one time holds come first, so that
    /// nobody is told `TIMED_OUT` of a lock that was free in time.
    pub(super) fn end_what_is_due(&mut self, context: &Context) {
        let clock_ms = self.state.clock_ms;
        loop {
            let hold = self.deadlines.first().filter(|deadline| deadline.at_ms <= clock_ms).copied();
            let wait = self.wait_ends.first().filter(|end| end.at_ms <= clock_ms).copied();
            match (hold, wait) {
                (Some(hold), Some(wait)) if wait.at_ms < hold.at_ms => self.time_out(wait, context),
                (Some(hold), _) => self.end_phases(hold, context),
                (None, Some(wait)) => self.time_out(wait, context),
                (None, None) => return,
            }
        }
    }

    /// Ends the present phases that began with one grant and end at one time, in order of path.
    fn end_phases(&mut self, first: Deadline, context: &Context) {
        let last = Deadline { slot: u32::MAX, node: NodeId(u32::MAX), ..first };
        let mut nodes: Vec<NodeId> = self.deadlines.range(first..=last).map(|deadline| deadline.node).collect();
        let mut work = self.work_in(first.slot, context);
        work.sort_by_path(&mut nodes);
        for node in nodes {
            let hold = work.ns.tree.get(node).holds.of_token(first.token);
            let owner: OwnerId = hold.expect("a deadline belongs to a hold").owner;
            work.end_phase(node, owner, first.at_ms);
        }
        work.run();
    }

    fn time_out(&mut self, end: WaitEnd, context: &Context) {
        let mut work = self.work_in(end.slot, context);
        work.end_wait(end.place, Reason::TimedOut);
        work.run();
    }
}
