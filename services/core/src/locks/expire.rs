//! Ending what is due.

use super::LocksCore;
use super::hold::Deadline;
use crate::Phase;

impl LocksCore {
    /// Ends every phase whose deadline the clock has reached, in order of deadline. A hold with a transition goes into
    /// it first, and may come to the end of that in the same call.
    pub(crate) fn end_what_is_due(&mut self) {
        while let Some(deadline) = self.deadlines.first() {
            if deadline.at_ms > self.state.clock_ms {
                break;
            }
            let deadline = deadline.clone();
            self.end_phase(&deadline);
        }
    }

    fn end_phase(&mut self, deadline: &Deadline) {
        let (key, path) = (deadline.namespace, &deadline.path);
        let lock = self.open_namespace(key).locks.get(path).expect("a deadline belongs to a lock that is held");
        let index = lock.position_of_token(deadline.token).expect("a deadline belongs to a hold");
        let hold = &lock.holds[index];
        if hold.is_held() && hold.transition_ms > 0 {
            self.change(key, path, index, |hold| {
                hold.phase = Phase::Transition;
                hold.deadline_ms = hold.deadline_ms.saturating_add(hold.transition_ms);
            });
        } else {
            self.end(key, path, index);
        }
    }
}
