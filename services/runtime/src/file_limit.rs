//! How many files, and so connections, the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A listener takes 10,000 connections; the store, the logs and the connections between processes need files too.
const MIN_OPEN_FILES: u64 = 16_384;

/// Raises the limit to what the system allows this process, and says so where that is less than it may come to need.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let allowed = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    // No limit at all is none.
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
