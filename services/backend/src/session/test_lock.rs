//! A request for locks as a client sends it, for tests.

use holdfast_api::Resource;
use holdfast_api::session_message::Lock;
use holdfast_types::{Metadata, Mode};

/// Returns a request for these paths of one segment each, without further wishes.
pub(crate) fn lock(request_id: &str, paths: &[&str], mode: Mode) -> Lock {
    Lock {
        request_id: request_id.to_owned(),
        resources: paths.iter().map(|path| Resource { path: vec![(*path).to_owned()], mode }).collect(),
        holder: None,
        transition_ms: 0,
        at_least_ms: 0,
        metadata: Metadata::new(),
        allow_upgrade: false,
        only_try: false,
    }
}
