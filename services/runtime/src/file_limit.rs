//! The limit of open files, and therefore of connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A listener accepts 10,000 connections; the store, the logs and the connections between processes need files too.
const MIN_OPEN_FILES: u64 = 16_384;

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
            "few files may be open, so few connections can be taken: raise the limit (ulimit -n, LimitNOFILE)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_as_are_allowed_can_be_opened() {
        raise_file_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
