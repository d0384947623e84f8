//! Names of namespaces and their incarnations in memory.

use std::sync::Arc;

use holdfast_api::{ApiError, ApiResult};
use holdfast_cluster::{Application, shard_key};
use holdfast_routing::Router;
use holdfast_types::{Account, AccountId, CommandError, Durability, Incarnation, Query};
use tokio::time::Instant;

use super::accounts::unexpected_outcome;
use super::cache::SingleFlightCache;
use crate::admission::{Admission, AdmissionRequest, Priority, Share};
use crate::route_error::route_error;

/// Maximum cached namespaces; others are fetched again.
const MAX_NAMESPACES: u64 = 200_000;

/// The cached facts about an existing namespace. They never change within an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownNamespace {
    pub(crate) incarnation: Incarnation,
    /// Where its lock table is kept.
    pub(crate) durability: Durability,
}

/// The cache, and the lookup on its misses. Only existing namespaces are cached: another gateway may create a missing
/// one at any moment.
pub(super) struct Namespaces {
    router: Router,
    admission: Arc<Admission>,
    cache: SingleFlightCache<(AccountId, String), KnownNamespace, ApiError>,
}

impl Namespaces {
    pub(super) fn new(router: Router, admission: Arc<Admission>) -> Self {
        Self { router, admission, cache: SingleFlightCache::new("namespaces", MAX_NAMESPACES, false) }
    }

    pub(super) async fn get(
        &self,
        account: &Account,
        name: &str,
        deadline: Instant,
    ) -> ApiResult<Option<KnownNamespace>> {
        let id = account.id;
        let look_up = || async {
            let key = shard_key(Application::Namespaces, id.0, "");
            let query = Query::Namespace { account: id, name: name.to_owned() };
            // It may be for an urgent call, which the limits of normal ones do not refuse.
            let request = AdmissionRequest { share: Share::from(account), priority: Priority::Patient, bytes: 0 };
            let permit = self.admission.acquire(request, deadline).await?;
            let asked =
                async { self.router.query(Application::Namespaces, key, &query, deadline).await.map_err(route_error) };
            let reply = Admission::run(permit, false, None, asked).await?;
            let found = match reply.outcome {
                Err(CommandError::NamespaceNotFound | CommandError::AccountNotFound(_)) => return Ok(None),
                Err(other) => return Err(unexpected_outcome(&Err(other))),
                Ok(response) => response.into_namespace().map_err(|other| unexpected_outcome(&Ok(other)))?,
            };
            Ok(Some(KnownNamespace { incarnation: found.incarnation, durability: found.durability }))
        };
        self.cache.get(&(id, name.to_owned()), look_up).await
    }

    pub(super) fn invalidate(&self, account: AccountId, name: &str) {
        self.cache.invalidate(&(account, name.to_owned()));
    }
}
