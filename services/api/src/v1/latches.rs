//! Converts messages of `LatchesService`.

use holdfast_proto::v1;
use holdfast_types::{Jobs, LatchIds, LatchStatus};

use super::{convert, things};
use crate::{
    ApiError, ApiResult, CountDown, CountDownAnswer, CreateLatch, CreateLatchAnswer, GetLatch, LatchDone, LatchInfo,
    LatchName, LatchOutcome, SetLatchTotal, SetLatchTotalAnswer, WaitForLatch, WaitForLatchAnswer,
};

/// Converts a creation.
pub fn create(message: v1::CreateLatchRequest) -> ApiResult<CreateLatch> {
    let ids = match v1::latch::Ids::try_from(message.ids) {
        Ok(v1::latch::Ids::Named) => LatchIds::Named,
        Ok(v1::latch::Ids::Indexed) => LatchIds::Indexed,
        Err(_) => return Err(ApiError::invalid("ids", "ids: must be NAMED or INDEXED")),
    };
    Ok(CreateLatch {
        thing: things::name(message.namespace, message.name, message.path)?,
        total: message.total,
        ids,
        expires_in_ms: message.expires_in_ms,
        retain_ms: message.retain_ms,
        description: Some(message.description),
        metadata: message.metadata.into_iter().collect(),
    })
}

/// Converts a count-down.
pub fn count_down(message: v1::CountDownRequest) -> ApiResult<CountDown> {
    let (ids, ranges) = given_jobs(message.ids, message.ranges);
    Ok(CountDown { latch: latch(message.namespace, message.name, message.path, message.id)?, ids, ranges })
}

/// Ids and ranges of jobs, as far as they are given.
type GivenJobs = (Option<Vec<String>>, Option<Vec<(u64, u64)>>);

/// Returns the ids and the ranges, where there are any.
pub(super) fn given_jobs(ids: Vec<String>, ranges: Vec<v1::IndexRange>) -> GivenJobs {
    let ranges: Vec<(u64, u64)> = ranges.into_iter().map(|range| (range.from, range.to)).collect();
    ((!ids.is_empty()).then_some(ids), (!ranges.is_empty()).then_some(ranges))
}

/// Converts a change of the total.
pub fn set_total(message: v1::SetLatchTotalRequest) -> ApiResult<SetLatchTotal> {
    let latch = latch(message.namespace, message.name, message.path, message.id)?;
    Ok(SetLatchTotal { latch, total: message.total, if_total: message.if_total })
}

/// Converts a wait.
pub fn wait(message: v1::WaitForLatchRequest) -> ApiResult<WaitForLatch> {
    let latch = latch(message.namespace, message.name, message.path, message.id)?;
    Ok(WaitForLatch { latch, wait_ms: message.wait_ms })
}

/// Converts a look at a latch.
pub fn get(message: v1::GetLatchRequest) -> ApiResult<GetLatch> {
    let latch = latch(message.namespace, message.name, message.path, message.id)?;
    Ok(GetLatch { latch, page: convert::page_request(message.page_size, message.page_token) })
}

/// Converts a deletion.
pub fn delete(message: v1::DeleteLatchRequest) -> ApiResult<LatchName> {
    latch(message.namespace, message.name, message.path, message.id)
}

fn latch(namespace: String, name: Option<String>, path: Vec<String>, id: Option<u64>) -> ApiResult<LatchName> {
    Ok(LatchName { thing: things::name(namespace, name, path)?, id })
}

/// Converts a latch.
pub fn info(latch: LatchInfo) -> v1::Latch {
    let status = match latch.status {
        LatchStatus::Active => v1::latch::Status::Active,
        LatchStatus::Completed => v1::latch::Status::Completed,
        LatchStatus::Expired => v1::latch::Status::Expired,
    };
    let ids = match latch.ids {
        LatchIds::Named => v1::latch::Ids::Named,
        LatchIds::Indexed => v1::latch::Ids::Indexed,
    };
    v1::Latch {
        namespace: latch.namespace,
        name: latch.name,
        path: latch.path,
        id: latch.id,
        status: status.into(),
        total: latch.total,
        done: latch.done,
        ids: ids.into(),
        expires_at: latch.expires_at.map(convert::instant),
        remaining_ms: latch.remaining_ms,
        finished_at: latch.finished_at.map(convert::instant),
        retain_ms: latch.retain_ms,
        description: latch.description,
        metadata: latch.metadata.into_iter().collect(),
        revision: latch.revision,
        waiters: latch.waiters,
    }
}

/// Converts the response of a creation.
pub fn created(answer: CreateLatchAnswer) -> v1::CreateLatchResponse {
    v1::CreateLatchResponse { latch: Some(info(answer.latch)), created: answer.created }
}

/// Converts the response of a count-down.
pub fn counted(answer: CountDownAnswer) -> v1::CountDownResponse {
    v1::CountDownResponse { counted: answer.counted, latch: Some(info(answer.latch)) }
}

/// Converts the response of a change of the total.
pub fn total_set(answer: SetLatchTotalAnswer) -> v1::SetLatchTotalResponse {
    v1::SetLatchTotalResponse { success: answer.success, latch: Some(info(answer.latch)) }
}

/// Converts the response of a wait.
pub fn waited(answer: WaitForLatchAnswer) -> v1::WaitForLatchResponse {
    use v1::wait_for_latch_response::Outcome;
    let outcome = match answer.outcome {
        LatchOutcome::Completed => Outcome::Completed,
        LatchOutcome::Expired => Outcome::Expired,
        LatchOutcome::TimedOut => Outcome::TimedOut,
    };
    v1::WaitForLatchResponse { outcome: outcome.into(), latch: Some(info(answer.latch)) }
}

/// Converts a latch with a page of what is done.
pub fn done(answer: LatchDone) -> v1::GetLatchResponse {
    let (done, done_ranges) = match answer.done {
        Jobs::Named(ids) => (ids, Vec::new()),
        Jobs::Indexed(ranges) => {
            (Vec::new(), ranges.into_iter().map(|(from, to)| v1::IndexRange { from, to }).collect())
        }
    };
    let next_page_token = answer.next_page_token.unwrap_or_default();
    v1::GetLatchResponse { latch: Some(info(answer.latch)), done, done_ranges, next_page_token }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_states_are_the_same_as_in_json() {
        use v1::wait_for_latch_response::Outcome;
        for (outcome, message) in [
            (LatchOutcome::Completed, Outcome::Completed),
            (LatchOutcome::Expired, Outcome::Expired),
            (LatchOutcome::TimedOut, Outcome::TimedOut),
        ] {
            assert_eq!(outcome.name(), message.as_str_name());
        }
        assert_eq!(LatchStatus::Expired.name(), v1::latch::Status::Expired.as_str_name());
        assert_eq!(LatchIds::Indexed.name(), v1::latch::Ids::Indexed.as_str_name());
    }

    #[test]
    fn what_is_not_given_is_absent_and_what_is_not_known_is_refused() {
        let count = v1::CountDownRequest { name: Some("l".into()), ids: vec!["a".into()], ..Default::default() };
        let count = count_down(count).unwrap();
        assert_eq!((count.ids, count.ranges, count.latch.id), (Some(vec!["a".to_owned()]), None, None));
        let unknown = v1::CreateLatchRequest { name: Some("l".into()), ids: 7, ..Default::default() };
        assert_eq!(create(unknown).unwrap_err().ids[0].1, "ids");
        let unnamed = v1::DeleteLatchRequest::default();
        assert_eq!(delete(unnamed).unwrap_err().ids[0].1, "name");
    }
}
