//! Names of namespaces and their incarnations in memory.

use holdfast_cluster::{Application, shard_key};
use holdfast_core::{AccountId, Answer, Incarnation, Query, Refusal};
use tokio::time::Instant;

use super::accounts::not_understood;
use super::cache::LookupCache;
use crate::error::{ApiError, ApiResult};
use holdfast_routing::Router;

/// Namespaces in memory; others are looked up again.
const NAMESPACES: u64 = 200_000;

/// The cache, and how its misses are looked up. Only what exists is remembered: a namespace that is missing may be
/// made at another gateway at any moment.
pub(super) struct Namespaces {
    router: Router,
    known: LookupCache<(AccountId, String), Incarnation, ApiError>,
}

impl Namespaces {
    pub(super) fn new(router: Router) -> Self {
        Self { router, known: LookupCache::new("namespaces", NAMESPACES, false) }
    }

    pub(super) async fn get(
        &self,
        account: AccountId,
        name: &str,
        deadline: Instant,
    ) -> ApiResult<Option<Incarnation>> {
        let look_up = || async {
            let key = shard_key(Application::Namespaces, account.0, "");
            let query = Query::Namespace { account, name: name.to_owned() };
            let reply = self.router.query(Application::Namespaces, key, &query, deadline).await?;
            match reply.outcome {
                Ok(Answer::Namespace(namespace)) => Ok(Some(namespace.incarnation)),
                Err(Refusal::NamespaceNotFound | Refusal::AccountNotFound(_)) => Ok(None),
                other => Err(not_understood(&other)),
            }
        };
        self.known.get(&(account, name.to_owned()), look_up).await
    }

    pub(super) fn forget(&self, account: AccountId, name: &str) {
        self.known.forget(&(account, name.to_owned()));
    }
}
