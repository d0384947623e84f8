//! Validates client messages: their order, and the content of requests.

use holdfast_api::session_message::{ClientPayload, Lock};
use holdfast_api::{ApiError, ApiResult, Code, validate};
use holdfast_types::{Claim, Limits};

/// The order of a client's messages after `open`.
#[derive(Debug)]
pub(super) struct MessageSequence {
    last_seq: u64,
    resumed: bool,
    /// Whether a message other than a keep-alive has arrived since.
    started: bool,
}

impl MessageSequence {
    /// Starts the sequence after an `open` with this number.
    pub(super) fn after_open(seq: u64, resumed: bool) -> Self {
        Self { last_seq: seq, resumed, started: false }
    }

    /// Returns whether the message counts; a message that does not raise the number is ignored.
    pub(super) fn advance(&mut self, seq: u64) -> bool {
        let rises = seq > self.last_seq;
        self.last_seq = self.last_seq.max(seq);
        rises
    }

    /// Rejects a message that is not allowed at this point.
    pub(super) fn check(&mut self, said: &ClientPayload) -> ApiResult<()> {
        let is_first = !self.started;
        match said {
            ClientPayload::KeepAlive | ClientPayload::Close => return Ok(()),
            ClientPayload::Open(_) => return Err(protocol_error("open: a connection is opened once")),
            ClientPayload::LockInfo(_) if !is_first => {
                return Err(protocol_error("lock_info: only comes first after a resume"));
            }
            ClientPayload::Lock(_) | ClientPayload::Release(_) | ClientPayload::ReleaseAll
                if is_first && self.resumed =>
            {
                return Err(protocol_error("after a resume lock_info has to come first"));
            }
            _ => {}
        }
        self.started = true;
        Ok(())
    }
}

/// The error for a message that breaks the protocol.
pub(super) fn protocol_error(detail: &str) -> ApiError {
    ApiError::new(Code::InvalidArgument, detail)
}

/// Returns the claims of a valid request.
pub(super) fn validate_claims(lock: &Lock, limits: &Limits) -> ApiResult<Vec<Claim>> {
    validate::request_id(&lock.request_id)?;
    if let Some(holder) = &lock.holder {
        validate::name("holder", holder)?;
    }
    validate::transition_ms(lock.transition_ms, limits)?;
    if lock.allow_upgrade && lock.resources.len() > 1 {
        return Err(ApiError::invalid("allow_upgrade", "allow_upgrade: only goes with one resource"));
    }
    validate::claims(&lock.resources, limits)
}

#[cfg(test)]
mod tests {
    use holdfast_api::Resource;
    use holdfast_api::session_message::{LockInfo, Release};
    use holdfast_types::Mode;

    use super::*;

    fn lock() -> Lock {
        let resources = vec![Resource { path: vec!["x".to_owned()], mode: Mode::Write }];
        let request_id = "a".to_owned();
        Lock { request_id, resources, holder: None, transition_ms: 0, allow_upgrade: false, only_try: false }
    }

    #[test]
    fn messages_that_do_not_raise_the_number_do_not_count() {
        let mut order = MessageSequence::after_open(5, false);
        let counted = [4, 5, 6, 6, 3, 9, 7, u64::MAX, 10].map(|seq| order.advance(seq));
        assert_eq!(counted, [false, false, true, false, false, true, false, true, false]);
    }

    #[test]
    fn lock_info_comes_first_after_a_resume_and_never_later() {
        let lock_info = || ClientPayload::LockInfo(LockInfo::default());
        let release = ClientPayload::Release(Release { request_id: "a".to_owned() });
        for early in [ClientPayload::Lock(lock()), release, ClientPayload::ReleaseAll] {
            assert!(MessageSequence::after_open(0, true).check(&early).is_err());
            let mut order = MessageSequence::after_open(0, true);
            for said in [ClientPayload::KeepAlive, lock_info(), early.clone(), ClientPayload::Close] {
                order.check(&said).unwrap();
            }
            assert!(order.check(&lock_info()).is_err());
            let mut fresh = MessageSequence::after_open(0, false);
            fresh.check(&early).unwrap();
            assert!(fresh.check(&lock_info()).is_err());
        }
    }

    #[test]
    fn a_request_is_checked_against_the_limits_and_every_refusal_names_the_field() {
        let limits = Limits::default();
        assert_eq!(validate_claims(&lock(), &limits).unwrap().len(), 1);
        let wrong = |change: fn(&mut Lock)| {
            let mut lock = lock();
            change(&mut lock);
            validate_claims(&lock, &limits).unwrap_err().ids[0].1.clone()
        };
        assert_eq!(wrong(|lock| lock.request_id.clear()), "request_id");
        assert_eq!(wrong(|lock| lock.holder = Some(String::new())), "holder");
        assert_eq!(wrong(|lock| lock.transition_ms = u64::MAX), "transition_ms");
        assert_eq!(wrong(|lock| lock.resources.clear()), "resources");
        assert_eq!(wrong(|lock| lock.resources[0].path = vec!["x".to_owned(); 17]), "resources[0].path");
        assert_eq!(
            wrong(|lock| {
                lock.resources.push(lock.resources[0].clone());
                lock.allow_upgrade = true;
            }),
            "allow_upgrade"
        );
    }
}
