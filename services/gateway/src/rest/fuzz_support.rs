//! All parsers of the REST frontend, for tests with damaged bytes.

use serde::de::DeserializeOwned;

use super::{
    accounts, acquire_body, api_keys, asks, barriers, body, conditions, latches, lock_sets, locks, namespaces, pools,
    semaphores, session_messages, sessions,
};

/// Parses a body as every call would; returns how many calls accept it.
pub fn read_body(bytes: &[u8]) -> usize {
    fn reads<T: DeserializeOwned>(bytes: &[u8]) -> bool {
        body::parse::<T>(bytes).is_ok()
    }
    let read = [
        reads::<accounts::CreateBody>(bytes),
        reads::<accounts::UpdateBody>(bytes),
        reads::<acquire_body::AcquireBody>(bytes),
        reads::<acquire_body::AcquireSetBody>(bytes),
        reads::<api_keys::CreateBody>(bytes),
        reads::<asks::AskBody>(bytes),
        reads::<asks::AskPoolBody>(bytes),
        reads::<barriers::ConfigureBody>(bytes),
        reads::<barriers::ArriveBody>(bytes),
        reads::<barriers::WaitBody>(bytes),
        reads::<barriers::LeaveBody>(bytes),
        reads::<barriers::GetBody>(bytes),
        reads::<barriers::DeleteBody>(bytes),
        reads::<conditions::AwaitBody>(bytes),
        reads::<conditions::SignalBody>(bytes),
        reads::<latches::CreateBody>(bytes),
        reads::<latches::CountDownBody>(bytes),
        reads::<latches::SetTotalBody>(bytes),
        reads::<latches::WaitBody>(bytes),
        reads::<latches::GetBody>(bytes),
        reads::<latches::DeleteBody>(bytes),
        reads::<lock_sets::ReleaseSetBody>(bytes),
        reads::<lock_sets::CheckPathBody>(bytes),
        reads::<lock_sets::ResetBody>(bytes),
        reads::<locks::ReleaseBody>(bytes),
        reads::<locks::CheckBody>(bytes),
        reads::<namespaces::CreateBody>(bytes),
        reads::<namespaces::UpdateBody>(bytes),
        reads::<pools::ConfigureBody>(bytes),
        reads::<pools::ChangeBody>(bytes),
        reads::<pools::TakeBody>(bytes),
        reads::<pools::ReleaseBody>(bytes),
        reads::<pools::GetBody>(bytes),
        reads::<pools::CheckBody>(bytes),
        reads::<pools::DeleteBody>(bytes),
        reads::<semaphores::ConfigureBody>(bytes),
        reads::<semaphores::AcquireBody>(bytes),
        reads::<semaphores::ReleaseBody>(bytes),
        reads::<semaphores::GetBody>(bytes),
        reads::<semaphores::CheckBody>(bytes),
        reads::<semaphores::DeleteBody>(bytes),
        reads::<sessions::CreateBody>(bytes),
    ];
    read.into_iter().filter(|is_read| *is_read).count()
}

/// Returns whether the bytes are a message of the session protocol.
pub fn read_session_message(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| session_messages::decode(text, "orders").is_ok())
}
