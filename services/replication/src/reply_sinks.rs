//! Where the replies to an entry's commands go.

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::ProposeError;
use crate::proposal::ProposalResult;

/// The caller of one command.
pub(crate) type ReplySink = oneshot::Sender<ProposalResult>;

/// The callers of an entry's commands, section by section. Each section answers its own as soon as it is applied.
/// Callers that are left when this is dropped hear that the outcome is unknown.
#[derive(Debug, Default)]
pub(crate) struct ReplySinks(Mutex<Vec<SectionSinks>>);

/// The callers of one section.
#[derive(Debug, Default)]
pub(crate) struct SectionSinks {
    /// One for each command.
    pub(crate) commands: Vec<ReplySink>,
    /// Callers that only wait for the shard's clock to advance.
    pub(crate) ticks: Vec<ReplySink>,
}

impl ReplySinks {
    pub(crate) fn new(sections: Vec<SectionSinks>) -> Self {
        Self(Mutex::new(sections))
    }

    /// Answers the callers of the section at this position. Callers that cancelled no longer listen.
    pub(crate) fn answer(&self, position: usize, replies: Vec<Bytes>) {
        let Some(SectionSinks { commands, ticks }) = self.0.lock().get_mut(position).map(std::mem::take) else {
            return;
        };
        let mut replies = replies.into_iter();
        for sink in commands {
            let reply = replies.next().ok_or(ProposeError::Unknown("the reply is missing"));
            let _ = sink.send(reply);
        }
        ticks.into_iter().for_each(|sink| drop(sink.send(Ok(Bytes::new()))));
    }

    /// Answers the callers of one section with an error.
    pub(crate) fn fail_section(&self, position: usize, error: &ProposeError) {
        if let Some(section) = self.0.lock().get_mut(position).map(std::mem::take) {
            section.fail(error);
        }
    }

    /// Answers all callers that are left with an error.
    pub(crate) fn fail(&self, error: &ProposeError) {
        let left = std::mem::take(&mut *self.0.lock());
        left.into_iter().for_each(|section| section.fail(error));
    }
}

impl SectionSinks {
    fn fail(self, error: &ProposeError) {
        self.commands.into_iter().chain(self.ticks).for_each(|sink| drop(sink.send(Err(error.clone()))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers(count: usize) -> (Vec<ReplySink>, Vec<oneshot::Receiver<ProposalResult>>) {
        (0..count).map(|_| oneshot::channel()).unzip()
    }

    #[test]
    fn each_section_answers_its_own_callers_once() {
        let (commands, mut first) = callers(2);
        let (ticks, mut ticking) = callers(1);
        let (others, mut second) = callers(1);
        let sinks = ReplySinks::new(vec![
            SectionSinks { commands, ticks },
            SectionSinks { commands: others, ticks: Vec::new() },
        ]);
        sinks.answer(0, vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")]);
        sinks.answer(0, vec![Bytes::from_static(b"again")]);
        assert_eq!(first[0].try_recv().unwrap(), Ok(Bytes::from_static(b"a")));
        assert_eq!(first[1].try_recv().unwrap(), Ok(Bytes::from_static(b"b")));
        assert_eq!(ticking[0].try_recv().unwrap(), Ok(Bytes::new()));
        assert!(second[0].try_recv().is_err(), "its section is not applied yet");
        sinks.fail(&ProposeError::Unknown("the end"));
        assert_eq!(second[0].try_recv().unwrap(), Err(ProposeError::Unknown("the end")));
    }

    #[test]
    fn callers_that_are_left_hear_of_the_end() {
        let (commands, mut waiting) = callers(1);
        drop(ReplySinks::new(vec![SectionSinks { commands, ticks: Vec::new() }]));
        assert_eq!(waiting[0].try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
