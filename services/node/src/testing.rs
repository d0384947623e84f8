//! What the tests of this crate ask for.

use holdfast_core::{
    AccountId, Acquire, Claim, Incarnation, LocksCommand, Metadata, Mode, NamespaceRef, Owner, Path, Wait,
};

pub(crate) fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(7), name: "orders".into(), incarnation: Incarnation(1) }
}

/// A process asks for a path in WRITE for a minute, and does not wait.
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
