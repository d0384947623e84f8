//! Converts views of the service to dlocks messages. All times are Unix nanoseconds.

use holdfast_api::{Holder, Lock, NamespaceView, Timestamp};
use holdfast_proto::dlocks as d;
use holdfast_types::LockState;

pub(super) fn namespace(view: NamespaceView) -> d::Namespace {
    d::Namespace {
        name: view.name,
        description: view.description,
        created_at: view.created_at.as_nanos(),
        updated_at: view.updated_at.as_nanos(),
    }
}

pub(super) fn lock(info: Lock) -> d::Lock {
    let state = match info.state {
        LockState::Unlocked => d::LockState::Unlocked,
        LockState::ReadLocked => d::LockState::ReadLocked,
        LockState::WriteLocked => d::LockState::WriteLocked,
    };
    d::Lock {
        // Every lock that this frontend can name is flat, and so has a name.
        name: info.name.unwrap_or_default(),
        state: state.into(),
        locked_at: info.locked_at.map_or(0, Timestamp::as_nanos),
        write_lock_holder: info.write_lock_holder.map(holder),
        read_lock_holders: info.read_lock_holders.into_iter().map(holder).collect(),
    }
}

fn holder(holder: Holder) -> d::LockHolder {
    let computed = holder.expires_at.map_or(0, Timestamp::as_nanos);
    d::LockHolder {
        process_id: holder.process_id,
        locked_at: holder.locked_at.as_nanos(),
        expires_at: holder.requested_expires_at_ns.unwrap_or(computed),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Mode, Phase};

    use super::*;

    fn held_until(asked: Option<i64>) -> Holder {
        Holder {
            process_id: "p".into(),
            session_id: None,
            holder: None,
            mode: Mode::Write,
            fencing_token: 7,
            locked_at: Timestamp(1_000),
            expires_at: Some(Timestamp(61_000)),
            remaining_ms: Some(60_000),
            phase: Phase::Held,
            metadata: Default::default(),
            release_requested: None,
            requested_expires_at_ns: asked,
        }
    }

    fn info(state: LockState, writer: Option<Holder>) -> Lock {
        Lock {
            namespace: "n".into(),
            name: Some("l".into()),
            path: vec!["l".into()],
            state,
            locked_at: writer.as_ref().map(|holder| holder.locked_at),
            holders_total: u64::from(writer.is_some()),
            write_lock_holder: writer,
            read_lock_holders: Vec::new(),
            waiting: 0,
            revision: 7,
        }
    }

    #[test]
    fn a_holder_reads_back_the_instant_that_it_wrote() {
        let shown = lock(info(LockState::WriteLocked, Some(held_until(Some(61_000_000_123)))));
        let writer = shown.write_lock_holder.unwrap();
        assert_eq!((writer.locked_at, writer.expires_at), (1_000_000_000, 61_000_000_123));
        assert_eq!(shown.locked_at, 1_000_000_000);
    }

    #[test]
    fn a_hold_taken_through_another_door_shows_when_it_ends() {
        let shown = lock(info(LockState::WriteLocked, Some(held_until(None))));
        assert_eq!(shown.write_lock_holder.unwrap().expires_at, 61_000_000_000);
    }

    #[test]
    fn an_unlocked_lock_has_its_name_and_nothing_else() {
        let shown = lock(info(LockState::Unlocked, None));
        assert_eq!(shown, d::Lock { name: "l".into(), ..Default::default() });
    }
}
