//! Arrivals at barriers, until their generations have ended; at double barriers, until all have left.

use std::sync::Arc;

use holdfast_proto::v1::barrier_answer::Outcome;
use holdfast_proto::v1::client_message::{self as client, Message as Said, pending::Message as Unanswered};
use holdfast_proto::v1::server_message::{Tripped, refused::Why};
use tokio::sync::watch;

use super::entry::FRAME_BYTES;
use super::{MAX_BYTES, RequestNo, RequestTable, format_request_id, parse_request_id};
use crate::error::{Error, Reason, Refusal, Result};
use crate::view::Path;

/// An arrival that is requested.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalRequest {
    pub(crate) owner: Arc<str>,
    pub(crate) path: Path,
    /// The generation, if this client knows it.
    pub(crate) generation: Option<u64>,
    /// How many meet, if nobody configured the barrier.
    pub(crate) parties: Option<u32>,
    pub(crate) is_double: bool,
}

/// What is known of an arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Meeting {
    /// Its generation gathers.
    #[default]
    Gathering,
    /// The service's last message about it.
    Answered(Tripped),
    /// It is over.
    Failed(Error),
}

/// The phase of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gathering,
    /// It is inside a double barrier.
    Inside,
    /// It is no longer wanted.
    Leaving,
}

#[derive(Debug)]
pub(super) struct ArrivalEntry {
    request: ArrivalRequest,
    phase: Phase,
    /// How often the service was told of it.
    said: u32,
    /// Whether the service has answered that it gathers.
    is_known: bool,
    meeting: watch::Sender<Meeting>,
    size: usize,
}

impl RequestTable {
    /// Adds an arrival; the receiver reports what becomes of it.
    pub(crate) fn arrive(&mut self, request: ArrivalRequest) -> Result<(RequestNo, watch::Receiver<Meeting>)> {
        if let Some(reason) = &self.ended {
            return Err(Error::SessionEnded(reason.clone()));
        }
        self.check_supported("barrier")?;
        let is_same = |entry: &ArrivalEntry| entry.request.owner == request.owner && entry.request.path == request.path;
        if self.arrivals.values().any(|entry| entry.phase != Phase::Leaving && is_same(entry)) {
            return Err(Error::AlreadyHeld(request.path));
        }
        let segments: usize = request.path.segments().iter().map(|segment| segment.len() + 3).sum();
        let size = FRAME_BYTES + request.owner.len() + segments;
        if self.bytes + size > MAX_BYTES {
            return Err(self.too_large());
        }
        self.bytes += size;
        self.last += 1;
        let (meeting, receiver) = watch::channel(Meeting::Gathering);
        let entry = ArrivalEntry { request, phase: Phase::Gathering, said: 0, is_known: false, meeting, size };
        self.arrivals.insert(self.last, entry);
        self.to_say.push_back(self.last);
        Ok((self.last, receiver))
    }

    /// Ends an arrival, or leaves a double barrier. The service's answer says what became of it.
    pub(crate) fn leave(&mut self, no: RequestNo) {
        let Some(entry) = self.arrivals.get_mut(&no).filter(|entry| entry.phase != Phase::Leaving) else { return };
        entry.phase = Phase::Leaving;
        if entry.said > 0 {
            self.to_say.push_back(no);
        } else {
            let withdrawn = Tripped { outcome: Outcome::Withdrawn.into(), ..Default::default() };
            self.remove_arrival(no, Meeting::Answered(withdrawn));
        }
    }

    /// Handles the answer that an arrival gathers in this generation.
    pub(super) fn on_gathering(&mut self, no: RequestNo, generation: Option<u64>) {
        if let Some(entry) = self.arrivals.get_mut(&no) {
            entry.is_known = true;
            entry.request.generation = generation.or(entry.request.generation);
        }
    }

    /// Handles what became of the generation of an arrival.
    pub(crate) fn on_tripped(&mut self, mut tripped: Tripped) {
        let Some(no) = parse_request_id(&tripped.request_id) else { return };
        let Some(entry) = self.arrivals.get_mut(&no) else { return };
        let outcome = match tripped.outcome() {
            Outcome::Waiting | Outcome::Unspecified => return,
            // Whoever only repeated takes it for its outcome.
            Outcome::Past if entry.is_known || entry.said > 1 => match tripped.ended() {
                Outcome::Unspecified => Outcome::Past,
                ended => ended,
            },
            outcome => outcome,
        };
        tripped.set_outcome(outcome);
        if outcome != Outcome::Tripped || !entry.request.is_double {
            self.remove_arrival(no, Meeting::Answered(tripped));
            return;
        }
        entry.is_known = true;
        entry.request.generation = Some(tripped.generation);
        // Whoever leaves waits for the answer to that.
        if entry.phase == Phase::Gathering {
            entry.phase = Phase::Inside;
            entry.meeting.send_replace(Meeting::Answered(tripped));
        }
    }

    /// Handles the refusal of an arrival. Returns whether it is one.
    pub(super) fn on_arrival_refused(&mut self, no: RequestNo, why: Option<&Why>) -> bool {
        if !self.arrivals.contains_key(&no) {
            return false;
        }
        match why {
            Some(Why::Fault(fault)) if fault.code == "UNAVAILABLE" => self.to_repeat.push(no),
            Some(Why::Fault(fault)) => self.fail_arrival(no, Error::service(&fault.code, &fault.detail)),
            _ => self.fail_arrival(no, Error::Refused(Refusal::of(Reason::Other))),
        }
        true
    }

    /// Handles the failure, or possible failure, of a message about an arrival. Returns whether there is one.
    pub(super) fn on_arrival_error(&mut self, no: RequestNo, error: Error) -> bool {
        let is_there = self.arrivals.contains_key(&no);
        match (is_there, error.is_transient()) {
            (true, true) => self.to_repeat.push(no),
            (true, false) => self.fail_arrival(no, error),
            (false, _) => {}
        }
        is_there
    }

    fn fail_arrival(&mut self, no: RequestNo, error: Error) {
        self.remove_arrival(no, Meeting::Failed(error));
    }

    fn remove_arrival(&mut self, no: RequestNo, last: Meeting) {
        let Some(entry) = self.arrivals.remove(&no) else { return };
        self.bytes -= entry.size;
        entry.meeting.send_replace(last);
    }

    /// Returns the next message about an arrival.
    pub(super) fn arrival_message(&mut self, no: RequestNo) -> Option<Said> {
        let entry = self.arrivals.get_mut(&no)?;
        match entry.phase {
            Phase::Gathering => {
                entry.said += 1;
                Some(Said::Arrive(entry.to_message(no)))
            }
            Phase::Inside => None,
            Phase::Leaving => Some(Said::Leave(client::Leave { request_id: format_request_id(no) })),
        }
    }

    /// Returns the arrivals for a list of everything: those that the service knows, and those that have no answer.
    /// Whoever leaves says so once more afterwards.
    pub(super) fn list_arrivals(&mut self) -> (Vec<client::Thing>, Vec<client::Pending>) {
        let (mut things, mut pending) = (Vec::new(), Vec::new());
        for (no, entry) in &mut self.arrivals {
            match entry.request.generation.filter(|_| entry.is_known) {
                Some(generation) => things.push(entry.to_thing(*no, generation)),
                None => {
                    entry.said += 1;
                    pending.push(client::Pending {
                        message: Some(Unanswered::Arrive(entry.to_message(*no))),
                        ..Default::default()
                    });
                }
            }
            if entry.phase == Phase::Leaving {
                self.to_say.push_back(*no);
            }
        }
        (things, pending)
    }

    /// Ends all arrivals with their session.
    pub(super) fn end_arrivals(&mut self, error: &Error) {
        for entry in std::mem::take(&mut self.arrivals).into_values() {
            entry.meeting.send_replace(Meeting::Failed(error.clone()));
        }
    }
}

impl ArrivalEntry {
    fn to_message(&self, no: RequestNo) -> client::Arrive {
        let ArrivalRequest { owner, path, generation, parties, is_double } = &self.request;
        client::Arrive {
            request_id: format_request_id(no),
            path: path.segments().to_vec(),
            generation: *generation,
            parties: *parties,
            double: Some(*is_double),
            holder: Some(owner.to_string()),
        }
    }

    fn to_thing(&self, no: RequestNo, generation: u64) -> client::Thing {
        client::Thing {
            kind: "barrier".to_owned(),
            path: self.request.path.segments().to_vec(),
            request_id: format_request_id(no),
            holder: Some(self.request.owner.to_string()),
            generation: Some(generation),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::v1::server_message::{self as server, Fault};

    use super::*;
    use crate::error::EndReason;

    fn request(owner: &str, generation: Option<u64>, is_double: bool) -> ArrivalRequest {
        ArrivalRequest { owner: owner.into(), path: "b".into(), generation, parties: Some(2), is_double }
    }

    fn tripped(no: RequestNo, outcome: Outcome, ended: Option<Outcome>) -> Tripped {
        Tripped {
            request_id: format_request_id(no),
            outcome: outcome.into(),
            generation: 7,
            next_generation: 9,
            ended: ended.map(Into::into),
            ..Default::default()
        }
    }

    fn gathering(table: &mut RequestTable, no: RequestNo) {
        let state = server::state::Value::Enqueued.into();
        let request_id = Some(format_request_id(no));
        table.on_state(server::State { request_id, state, generation: Some(7), ..Default::default() });
    }

    fn said(table: &mut RequestTable) -> Vec<String> {
        let name = |said| match said {
            Said::Arrive(arrive) => format!("arrive {} {:?}", arrive.request_id, arrive.generation),
            Said::Leave(leave) => format!("leave {}", leave.request_id),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| table.next_message()).map(name).collect()
    }

    fn outcome(receiver: &watch::Receiver<Meeting>) -> Option<Outcome> {
        match &*receiver.borrow() {
            Meeting::Answered(tripped) => Some(tripped.outcome()),
            _ => None,
        }
    }

    #[test]
    fn an_arrival_is_over_with_its_generation() {
        let mut table = RequestTable::default();
        let (no, receiver) = table.arrive(request("a", None, false)).unwrap();
        assert_eq!(table.arrive(request("a", None, false)).unwrap_err(), Error::AlreadyHeld("b".into()));
        assert_eq!(said(&mut table), ["arrive r1 None"]);
        gathering(&mut table, no);
        assert_eq!(outcome(&receiver), None);
        table.on_tripped(tripped(no, Outcome::Tripped, None));
        assert_eq!(outcome(&receiver), Some(Outcome::Tripped));
        assert_eq!((table.len(), table.bytes), (0, 0));
    }

    #[test]
    fn whoever_leaves_waits_for_the_answer() {
        let mut table = RequestTable::default();
        let (unsaid, first) = table.arrive(request("a", None, false)).unwrap();
        table.leave(unsaid);
        assert_eq!(outcome(&first), Some(Outcome::Withdrawn));
        let (no, receiver) = table.arrive(request("a", None, false)).unwrap();
        said(&mut table);
        table.leave(no);
        table.leave(no);
        assert_eq!((said(&mut table), outcome(&receiver)), (vec!["leave r2".to_owned()], None));
        table.on_tripped(tripped(no, Outcome::Tripped, None));
        assert_eq!(outcome(&receiver), Some(Outcome::Tripped), "the trip came first");
    }

    #[test]
    fn at_a_double_barrier_it_is_inside_until_it_leaves() {
        let mut table = RequestTable::default();
        let (no, receiver) = table.arrive(request("a", None, true)).unwrap();
        said(&mut table);
        table.on_tripped(tripped(no, Outcome::Tripped, None));
        assert_eq!((outcome(&receiver), table.len()), (Some(Outcome::Tripped), 1));
        let info = table.lock_info();
        assert_eq!((info[0].things[0].generation, info[0].pending.len()), (Some(7), 0));
        table.leave(no);
        assert_eq!(said(&mut table), ["leave r1"]);
        // On another connection it is listed, told that it is inside, and leaves once more.
        assert_eq!(table.lock_info()[0].things.len(), 1);
        table.on_tripped(tripped(no, Outcome::Tripped, None));
        assert_eq!(said(&mut table), ["leave r1"]);
        table.on_tripped(tripped(no, Outcome::Left, None));
        assert_eq!((outcome(&receiver), table.len()), (Some(Outcome::Left), 0));
    }

    #[test]
    fn an_ended_generation_is_the_outcome_of_whoever_only_repeats() {
        let mut table = RequestTable::default();
        let (no, receiver) = table.arrive(request("late", Some(7), false)).unwrap();
        assert_eq!(said(&mut table), ["arrive r1 Some(7)"]);
        table.on_tripped(tripped(no, Outcome::Past, Some(Outcome::Tripped)));
        assert_eq!(outcome(&receiver), Some(Outcome::Past), "it had not arrived");
        let (no, receiver) = table.arrive(request("known", None, false)).unwrap();
        said(&mut table);
        gathering(&mut table, no);
        table.on_tripped(tripped(no, Outcome::Past, Some(Outcome::Broken)));
        assert_eq!(outcome(&receiver), Some(Outcome::Broken));
        let (no, receiver) = table.arrive(request("again", Some(7), false)).unwrap();
        said(&mut table);
        assert_eq!(table.lock_info()[0].pending.len(), 1, "the answer was lost");
        table.on_tripped(tripped(no, Outcome::Past, Some(Outcome::Tripped)));
        assert_eq!(outcome(&receiver), Some(Outcome::Tripped));
    }

    #[test]
    fn what_may_succeed_later_is_said_again_and_other_errors_end_it() {
        let mut table = RequestTable::default();
        let fault = |no: RequestNo, code: &str| server::Refused {
            request_id: format_request_id(no),
            why: Some(Why::Fault(Fault { code: code.into(), ..Default::default() })),
        };
        let (no, receiver) = table.arrive(request("a", None, false)).unwrap();
        said(&mut table);
        table.on_refused(fault(no, "UNAVAILABLE"));
        table.on_error("r1", "INTERNAL", "");
        table.retry_all();
        assert_eq!(said(&mut table), ["arrive r1 None", "arrive r1 None"]);
        table.on_refused(fault(no, "PRIMITIVE_NOT_FOUND"));
        let failed = |receiver: &watch::Receiver<Meeting>| match &*receiver.borrow() {
            Meeting::Failed(error) => error.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(&receiver).code(), Some("PRIMITIVE_NOT_FOUND"));
        let (_, receiver) = table.arrive(request("b", None, false)).unwrap();
        table.end(&EndReason::Expired);
        assert_eq!(failed(&receiver), Error::SessionEnded(EndReason::Expired));
        assert_eq!((table.len(), table.bytes), (0, 0));
    }
}
