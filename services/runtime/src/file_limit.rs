//! The limit of open files, and therefore of connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A listener accepts 10,000 connections; the store, the logs and the connections between processes need files too.
const MIN_OPEN_FILES: u64 = 16_384;
/// Files for all but the connections of clients: a store that can open no more files fails for good.
const RESERVED_FILES: u64 = 2_048;

/// Raises the limit to the maximum that the system allows, and logs a warning if that may not suffice.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let allowed = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    // `None` means unlimited.
    if let Some(allowed) = allowed.filter(|allowed| *allowed < MIN_OPEN_FILES) {
        tracing::warn!(
            allowed,
            needed = MIN_OPEN_FILES,
            "open-file limit too low for many connections: raise it (ulimit -n, LimitNOFILE)"
        );
    }
}

/// Returns how many connections of clients may be open: what the limit of open files leaves, or half of it where that is
/// less than twice the files that are needed otherwise. The limit is raised when the first port is bound.
pub fn max_client_connections() -> usize {
    // `None` means unlimited.
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, client_connections)
}

fn client_connections(files: u64) -> usize {
    usize::try_from(files.saturating_sub(RESERVED_FILES).max(files.min(2 * RESERVED_FILES) / 2)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_store() {
        let left = [1_024, 4_096, 5_000, 16_384].map(client_connections);
        assert_eq!(left, [512, 2_048, 2_952, 14_336]);
        assert!(max_client_connections() > 0);
    }

    #[test]
    fn as_many_files_as_are_allowed_can_be_opened() {
        raise_file_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
