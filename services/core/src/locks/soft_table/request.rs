//! What a session may ask for in a table that is in the leader's memory.

use std::borrow::Cow;

use crate::locks::durability::absent;
use crate::{CommandError, LocksCommand, SessionAcquire, SessionCommand, SessionRequest};

/// Returns the command as the table applies it: the transition of holds is that of their session.
///
/// # Errors
/// `InvalidArgument` for a field that the table could not give back to the next leader.
pub(super) fn table_command(command: &LocksCommand, transition_ms: u64) -> Result<Cow<'_, LocksCommand>, CommandError> {
    let LocksCommand::Session(SessionCommand { account, session, message, request }) = command else {
        return Ok(Cow::Borrowed(command));
    };
    let request = table_request(request, transition_ms)?;
    let command = SessionCommand { account: *account, session: *session, message: *message, request };
    Ok(Cow::Owned(LocksCommand::Session(command)))
}

fn table_request(request: &SessionRequest, transition_ms: u64) -> Result<SessionRequest, CommandError> {
    Ok(match request {
        SessionRequest::Acquire(acquire) => SessionRequest::Acquire(table_acquire(acquire, transition_ms)?),
        SessionRequest::AcquireWith { terms, .. } if terms.at_least_ms > 0 => return Err(unsupported("at_least_ms")),
        SessionRequest::AcquireWith { acquire, terms } => {
            SessionRequest::AcquireWith { acquire: table_acquire(acquire, transition_ms)?, terms: terms.clone() }
        }
        SessionRequest::Release { .. } | SessionRequest::ReleaseUnheard { .. } => request.clone(),
        SessionRequest::Await(_) | SessionRequest::Signal(_) => {
            return Err(CommandError::InvalidArgument(absent::CONDITIONS.to_owned()));
        }
    })
}

fn table_acquire(acquire: &SessionAcquire, transition_ms: u64) -> Result<SessionAcquire, CommandError> {
    if acquire.allow_upgrade {
        return Err(unsupported("allow_upgrade"));
    }
    if acquire.transition_ms > 0 {
        return Err(unsupported("transition_ms"));
    }
    Ok(SessionAcquire { transition_ms, ..acquire.clone() })
}

fn unsupported(field: &str) -> CommandError {
    CommandError::InvalidArgument(format!("{field}: is not for namespaces whose durability is SESSION"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claim, Mode, Path, SessionTerms, Wait};

    fn acquire() -> SessionAcquire {
        SessionAcquire {
            holder: None,
            claims: vec![Claim { path: Path::flat("l"), mode: Mode::Write }],
            transition_ms: 0,
            wait: Wait::Unlimited,
            allow_upgrade: false,
            request_id: "r".into(),
        }
    }

    fn with(terms: SessionTerms) -> SessionRequest {
        SessionRequest::AcquireWith { acquire: acquire(), terms }
    }

    #[test]
    fn a_hold_has_the_transition_of_its_session() {
        let expected = SessionAcquire { transition_ms: 500, ..acquire() };
        assert_eq!(table_request(&SessionRequest::Acquire(acquire()), 500), Ok(SessionRequest::Acquire(expected)));
        let release = SessionRequest::Release { request_id: "r".into(), is_known: true };
        assert_eq!(table_request(&release, 500), Ok(release.clone()));
    }

    #[test]
    fn what_a_table_does_not_have_is_refused_by_its_name() {
        for (request, field) in [
            (SessionRequest::Acquire(SessionAcquire { allow_upgrade: true, ..acquire() }), "allow_upgrade"),
            (SessionRequest::Acquire(SessionAcquire { transition_ms: 1, ..acquire() }), "transition_ms"),
            (with(SessionTerms { at_least_ms: 1, ..SessionTerms::default() }), "at_least_ms"),
        ] {
            let refused = table_request(&request, 0).unwrap_err();
            assert!(matches!(&refused, CommandError::InvalidArgument(text) if text.starts_with(field)), "{refused}");
        }
    }
}
