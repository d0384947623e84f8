//! The operations, the same for every frontend: each checks the caller and the request, calls the shard, and builds the
//! response.

mod accounts;
mod acquire;
mod api_keys;
mod asks;
mod audit;
mod barriers;
mod cluster;
mod conditions;
mod deferred_query;
mod grants;
mod latches;
mod locks;
mod namespaces;
mod permits;
mod pools;
mod release;
mod reset;
mod semaphores;
mod sessions;
mod tokens;
mod usage;
mod waits;

pub(crate) use sessions::OpenTerms;
pub(crate) use tokens::TokenIssuer;

#[cfg(test)]
mod call_limits_tests;
#[cfg(test)]
mod core_node;
#[cfg(test)]
mod grants_tests;
#[cfg(test)]
mod mutation_tests;
#[cfg(test)]
mod namespaces_tests;
#[cfg(test)]
mod rate_limit_tests;
#[cfg(test)]
mod receipt_tests;
#[cfg(test)]
mod request_limit_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unanswered_tests;
#[cfg(test)]
mod watch_tests;
