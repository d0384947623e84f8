//! Each answer by itself: does it agree with the lock that it shows?

use holdfast_types::Mode;

use super::{Rule, ViolationSink};
use crate::history::{Answer, Call, Hold, Outcome, Record, View};

pub(super) fn check(records: &[&Record], found: &mut ViolationSink<'_>) {
    for record in records {
        let Outcome::Answered(answer) = &record.outcome else { continue };
        check_view(&answer.lock, record, found);
        if let Err(problem) = check_answer(record, answer) {
            found.add(Rule::Answer, format!("{problem}: {record:?}"));
        }
    }
}

fn check_view(view: &View, record: &Record, found: &mut ViolationSink<'_>) {
    let writers = view.holds.iter().filter(|hold| hold.mode == Mode::Write).count();
    if writers > 0 && (view.holds.len() > 1 || !view.is_whole) {
        found.add(Rule::Exclusion, format!("a writer is not alone: {record:?}"));
    }
    for hold in &view.holds {
        if hold.token > view.revision {
            found.add(Rule::Consistency, format!("token {} is of a later revision: {record:?}", hold.token));
        }
        if view.holds.iter().any(|other| other != hold && (other.token == hold.token || other.owner == hold.owner)) {
            found.add(Rule::Consistency, format!("a token or an owner is there twice: {record:?}"));
        }
    }
}

fn check_answer(record: &Record, answer: &Answer) -> Result<(), &'static str> {
    let view = &answer.lock;
    let own = view.holds.iter().find(|hold| hold.owner == record.owner);
    match record.call {
        Call::Acquire { mode, token, .. } => check_acquire(answer, own, mode, token, record),
        Call::Release { token } => {
            let still = own.is_some_and(|hold| token.is_none_or(|token| token == hold.token));
            if still { Err("released, and the hold is still there") } else { Ok(()) }
        }
        Call::Delete | Call::Get => Ok(()),
    }
}

fn check_acquire(
    answer: &Answer,
    own: Option<&Hold>,
    mode: Mode,
    token: Option<u64>,
    record: &Record,
) -> Result<(), &'static str> {
    let view = &answer.lock;
    if answer.success {
        let shown = own.is_some_and(|hold| Some(hold.token) == answer.token && hold.mode == mode);
        return match answer.token {
            None => Err("granted without a token"),
            Some(given) if token.is_some_and(|asked| asked != given) => Err("another token than the one extended"),
            Some(_) if !shown && (view.is_whole || own.is_some()) => Err("granted, and the hold is not shown"),
            Some(_) => Ok(()),
        };
    }
    let others = || view.holds.iter().filter(|hold| hold.owner != record.owner);
    let in_the_way = || others().any(|hold| hold.mode == Mode::Write || mode == Mode::Write);
    match answer.reason.as_deref() {
        Some("NOT_HELD") if token.is_none() => Err("refused for a token that was not given"),
        Some("NOT_HELD") if own.is_some_and(|hold| Some(hold.token) == token) => Err("it is held, by that token"),
        Some("NOT_HELD") => Ok(()),
        Some("UPGRADE") if own.map_or(view.is_whole, |hold| hold.mode == mode) => Err("there is no other mode held"),
        Some("UPGRADE") => Ok(()),
        Some("HELD") if own.is_some() => Err("refused although the owner holds it"),
        Some("HELD") if !in_the_way() => Err("nobody is in the way"),
        Some("HELD") => Ok(()),
        _ => Err("refused without a reason that fits"),
    }
}
