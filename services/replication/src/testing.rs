//! What tests see and do beyond the public face: openraft's own storage suite, damaged bytes, and orders and answers that
//! come later than the moment that they were meant for.

pub use crate::driver::Driver;
use crate::group::Group;
pub use crate::log_store::LogStore;
pub use crate::reading::{read_message, read_stored, stored_samples};
pub use crate::types::TypeConfig;

/// The order to stand again arrives, however long ago its replica looked whether it is still a candidate.
pub async fn late_order_to_stand(group: &Group) {
    group.order_again().await;
}
