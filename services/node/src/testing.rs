//! Requests for the tests of this crate.

use bytes::Bytes;
use holdfast_core::{
    AccountId, Acquire, Claim, Incarnation, Limits, LocksCommand, Metadata, Mode, NamespaceMessage, NamespaceRef,
    OpenSession, Owner, Path, RequestId, Wait,
};
use holdfast_replication::Applied;

pub(crate) fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(7), name: "orders".into(), incarnation: Incarnation(1) }
}

/// Opens the namespace.
pub(crate) fn open_namespace() -> LocksCommand {
    let message = NamespaceMessage::Open { namespace: namespace(), limits: Limits::default() };
    LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message }
}

/// Opens a session, the first of the namespace with this id.
pub(crate) fn open_session(session_id: &str, ttl_ms: u64) -> LocksCommand {
    LocksCommand::OpenSession(OpenSession {
        namespace: namespace(),
        session_id: session_id.to_owned(),
        resume: false,
        request_id: RequestId([1; 16]),
        process_id: "p".to_owned(),
        ttl_ms,
        metadata: Metadata::new(),
    })
}

/// Applies the rest of an entry, and returns its replies. On a busy machine a slice may end after any command.
pub(crate) fn finish(mut applied: Applied<'_>) -> Vec<Bytes> {
    loop {
        match applied {
            Applied::Done(replies) => return replies,
            Applied::Part(rest) => applied = rest().expect("the entry is sound"),
        }
    }
}

/// Acquires a path for a process in WRITE mode for a minute, without waiting.
pub(crate) fn acquire(path: &str) -> LocksCommand {
    LocksCommand::Acquire(Acquire {
        namespace: namespace(),
        owner: Owner::Process("p".into()),
        claims: vec![Claim { path: Path::flat(path), mode: Mode::Write }],
        ttl_ms: Some(60_000),
        transition_ms: 0,
        metadata: Metadata::new(),
        fencing_token: None,
        requested_expires_at_ns: None,
        wait: Wait::No,
        allow_upgrade: false,
        request_id: None,
        attempt: 0,
        message: None,
    })
}
