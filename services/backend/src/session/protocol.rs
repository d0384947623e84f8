//! Validates client messages: their order, and the content of requests.

use holdfast_api::session_message::{ClientPayload, Lock, Part, Pending};
use holdfast_api::{ApiError, ApiResult, Code, validate};
use holdfast_types::{Claim, Limits, limit};

/// Maximum parts of a `lock_info`.
const MAX_PARTS: u32 = 1_000;
/// Maximum bytes in memory of the pending messages in all parts. A single message of the largest size takes fewer.
const MAX_PENDING_BYTES: usize = 16 * 1_024 * 1_024;
/// Bytes of a pending message without its texts, and of a path segment without its text.
const PENDING_BYTES: usize = 128;
const PATH_SEGMENT_BYTES: usize = 32;

/// The order of a client's messages after `open`.
#[derive(Debug)]
pub(super) struct MessageSequence {
    last_seq: u64,
    resumed: bool,
    /// The last part of `lock_info`.
    part: Option<Part>,
    /// The bytes of the pending messages in the parts so far.
    pending_bytes: usize,
    /// Whether a message other than a keep-alive has arrived since.
    started: bool,
}

impl MessageSequence {
    /// Starts the sequence after an `open` with this number.
    pub(super) fn after_open(seq: u64, resumed: bool) -> Self {
        Self { last_seq: seq, resumed, part: None, pending_bytes: 0, started: false }
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
                return Err(protocol_error("lock_info: is allowed only as the first message after a resume"));
            }
            ClientPayload::LockInfo(info) => {
                self.check_part(info.part)?;
                self.check_pending(&info.pending)?;
                self.started = info.part.is_last();
                return Ok(());
            }
            ClientPayload::Lock(_)
            | ClientPayload::Release(_)
            | ClientPayload::AcquirePermits(_)
            | ClientPayload::Invalid(_)
            | ClientPayload::CountDown(_)
            | ClientPayload::Arrive(_)
            | ClientPayload::Leave(_)
            | ClientPayload::Await(_)
            | ClientPayload::Signal(_)
            | ClientPayload::ReleaseAll
                if is_first && self.resumed =>
            {
                return Err(protocol_error("lock_info: must be the first message after a resume"));
            }
            _ => {}
        }
        self.started = true;
        Ok(())
    }

    /// Checks that the parts of a list come in order and agree on how many there are.
    fn check_part(&mut self, part: Part) -> ApiResult<()> {
        let wanted = self.part.map_or(1, |last| last.number + 1);
        let count = self.part.map_or(part.count, |last| last.count);
        if part.count > MAX_PARTS {
            return Err(ApiError::invalid("parts", format!("lock_info: parts must be at most {MAX_PARTS}")));
        }
        if part.number != wanted || part.count != count || wanted > count {
            let detail =
                format!("lock_info: part {wanted} of {count} must come now, not {} of {}", part.number, part.count);
            return Err(ApiError::invalid("part", detail));
        }
        self.part = Some(part);
        Ok(())
    }

    /// Rejects pending messages that take too much memory together with the messages of earlier parts.
    fn check_pending(&mut self, pending: &[Pending]) -> ApiResult<()> {
        self.pending_bytes += pending.iter().map(pending_bytes).sum::<usize>();
        if self.pending_bytes <= MAX_PENDING_BYTES {
            return Ok(());
        }
        let bytes = self.pending_bytes;
        let detail = format!("lock_info: its pending messages take {bytes} bytes, of at most {MAX_PENDING_BYTES}");
        Err(ApiError::new(Code::PayloadTooLarge, detail))
    }
}

/// Rejects a part of `lock_info` with too many entries.
pub(super) fn check_lock_info(entries: usize, limits: &Limits) -> ApiResult<()> {
    let (entries, max) = (entries as u64, limits.max_lock_info);
    if entries <= max {
        return Ok(());
    }
    Err(ApiError::limited(&limit::LOCK_INFO, max, "send it in parts"))
}

/// Returns roughly how much memory a pending message takes.
fn pending_bytes(pending: &Pending) -> usize {
    let bytes = |path: &[String]| path.iter().map(|segment| PATH_SEGMENT_BYTES + segment.len()).sum::<usize>();
    let (request_id, paths) = match pending {
        Pending::Release(release) => (&release.request_id, 0),
        Pending::AcquirePermits(acquire) => (&acquire.request_id, bytes(&acquire.path)),
        Pending::Invalid(invalid) => (&invalid.request_id, invalid.error.detail.len()),
        Pending::Arrive(arrive) => (&arrive.request_id, bytes(&arrive.path)),
        Pending::Await(awaits) => (&awaits.request_id, awaits.condition.len()),
        Pending::Lock(lock) => (&lock.request_id, lock.resources.iter().map(|resource| bytes(&resource.path)).sum()),
    };
    PENDING_BYTES + request_id.len() + paths
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
        return Err(ApiError::invalid("allow_upgrade", "allow_upgrade: is allowed only with one resource"));
    }
    validate::claims(&lock.resources, limits)
}

#[cfg(test)]
mod tests {
    use holdfast_api::session_message::{LockInfo, Release};
    use holdfast_types::Mode;

    use super::*;
    use crate::session::test_lock;

    fn lock() -> Lock {
        test_lock::lock("a", &["x"], Mode::Write)
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
        let release = ClientPayload::Release(Release { request_id: "a".to_owned(), unheard: false });
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
    fn the_parts_of_lock_info_come_in_order_and_before_anything_else() {
        let part =
            |number, count| ClientPayload::LockInfo(LockInfo { part: Part { number, count }, ..LockInfo::default() });
        let check = |parts: &[(u32, u32)]| {
            let mut order = MessageSequence::after_open(0, true);
            let checked = parts.iter().map(|(number, count)| order.check(&part(*number, *count)).is_ok());
            let checked: Vec<bool> = checked.collect();
            (checked, order.check(&ClientPayload::ReleaseAll).is_ok())
        };
        assert_eq!(check(&[(1, 3), (2, 3), (3, 3)]), (vec![true; 3], true));
        assert_eq!(check(&[(1, 2)]), (vec![true], false), "a part is missing");
        for wrong in [(0, 1), (2, 2), (1, 0), (1, 1_001)] {
            assert_eq!(check(&[wrong]).0, [false], "{wrong:?}");
        }
        for wrong in [(1, 3), (3, 3), (2, 2), (2, u32::MAX)] {
            assert_eq!(check(&[(1, 3), wrong]).0, [true, false], "{wrong:?}");
        }
        assert_eq!(check(&[(1, 1), (2, 2)]).0, [true, false], "the list was complete");
    }

    #[test]
    fn a_message_lists_at_most_as_much_as_the_limit_says() {
        let limits = Limits { max_lock_info: 2, ..Limits::default() };
        let release = |id: &str| Pending::Release(Release { request_id: id.to_owned(), unheard: false });
        let info = |pending| LockInfo { pending, ..LockInfo::default() };
        check_lock_info(2, &limits).unwrap();
        let error = check_lock_info(3, &limits).unwrap_err();
        assert_eq!((error.code, &error.ids[0].1[..]), (Code::PayloadTooLarge, "max_lock_info"));
        let many = vec![release("a"); MAX_PENDING_BYTES / PENDING_BYTES / 2];
        let part = |number| LockInfo { part: Part { number, count: 9 }, ..info(many.clone()) };
        let mut order = MessageSequence::after_open(0, true);
        order.check(&ClientPayload::LockInfo(part(1))).unwrap();
        let error = order.check(&ClientPayload::LockInfo(part(2))).unwrap_err();
        assert!(error.code == Code::PayloadTooLarge && error.detail.contains("pending messages"), "{error:?}");
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
