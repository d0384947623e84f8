//! What an account uses: counted by the shards in the steps that they log anyway, added up here.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use futures::try_join;
use holdfast_cluster::Application;
use holdfast_core::{Account, Limits, NamespaceUsage, Query, Response, Scopes, StateBytes, UsageTotals};
use serde::Serialize;
use utoipa::ToSchema;

use super::shard_call::expect_answer;
use super::{AuthContext, CallContext, LimitsSchema, Service};
use crate::error::{ApiError, ApiResult};
use crate::validate;

/// Scopes of which one is enough to see what the account uses.
const READ_SCOPES: [Scopes; 3] = [Scopes::LOCKS_READ, Scopes::NAMESPACES_ADMIN, Scopes::ACCOUNT_ADMIN];

/// What an account uses, and what it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct UsageInfo {
    /// 16 lower-case hex digits.
    pub account_id: String,
    /// How many namespaces it may have.
    pub max_number_of_namespaces: u32,
    /// Its limits.
    #[schema(value_type = LimitsSchema)]
    pub limits: Limits,
    /// All that follows, together. Present figures add up, and so does what was done; peaks are the highest of one
    /// namespace.
    pub total: NamespaceFigures,
    /// What all its namespaces are charged with by the bytes kept of them; the limit `max_state_bytes` is for each shard.
    pub state_bytes: StateBytesInfo,
    /// The most of that in one shard.
    pub state_bytes_of_fullest_shard: u64,
    /// Each namespace, in order of name; only those that the key is for.
    pub namespaces: Vec<NamespaceUsageInfo>,
    /// Namespaces that are deleted; absent for a key that is for some namespaces only.
    pub deleted_namespaces: Option<UsageTotalsInfo>,
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = NamespaceUsage)]
pub struct NamespaceUsageInfo {
    /// Its name.
    pub name: String,
    /// Its incarnation: 16 lower-case hex digits.
    pub id: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: NamespaceFigures,
    /// What it is charged with by the bytes kept of it.
    pub state_bytes: StateBytesInfo,
}

/// Bytes that are charged, by what they are of: an upper bound of the memory that it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = StateBytes)]
pub struct StateBytesInfo {
    /// All together.
    pub total: u64,
    /// Open namespaces by themselves.
    pub namespace: u64,
    /// Paths that somebody holds or awaits, and those above them.
    pub paths: u64,
    /// Owners that hold or await something.
    pub owners: u64,
    /// Holds.
    pub holds: u64,
    /// Metadata of holds.
    pub metadata: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Requests of sessions that have an id and are not released.
    pub requests: u64,
    /// Sessions.
    pub sessions: u64,
    /// Events.
    pub events: u64,
}

impl From<StateBytes> for StateBytesInfo {
    fn from(bytes: StateBytes) -> Self {
        let total = bytes.total();
        let StateBytes { namespace, paths, owners, holds, metadata, waiting, requests, sessions, events } = bytes;
        Self { total, namespace, paths, owners, holds, metadata, waiting, requests, sessions, events }
    }
}

/// What there is, and what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = UsageFigures)]
pub struct NamespaceFigures {
    /// Holds now, in any state.
    pub holds: u64,
    /// Waiting requests now.
    pub waiting: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Since it was made.
    #[serde(flatten)]
    pub totals: UsageTotalsInfo,
}

/// What was done, and the most that there was at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = UsageTotals)]
pub struct UsageTotalsInfo {
    /// Acquires, releases, forced deletions, resets, sessions opened and closed. What only looks, and signs of life,
    /// are not counted.
    pub operations: u64,
    /// Holds that were granted, at once or after a wait; extensions are none.
    pub grants: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Sessions that were opened.
    pub sessions_opened: u64,
    /// The most holds at once in one namespace.
    pub peak_holds: u64,
    /// The most waiting requests at once in one namespace.
    pub peak_waiting: u64,
    /// The most sessions at once in one namespace.
    pub peak_sessions: u64,
}

impl From<UsageTotals> for UsageTotalsInfo {
    fn from(totals: UsageTotals) -> Self {
        let UsageTotals { operations, grants, waits, sessions_opened, peak_holds, peak_waiting, peak_sessions } =
            totals;
        Self { operations, grants, waits, sessions_opened, peak_holds, peak_waiting, peak_sessions }
    }
}

impl From<NamespaceUsage> for NamespaceUsageInfo {
    fn from(usage: NamespaceUsage) -> Self {
        let NamespaceUsage { name, incarnation, holds, waiting, sessions, totals } = usage;
        let figures = NamespaceFigures { holds, waiting, sessions, totals: totals.into() };
        Self { name, id: incarnation.to_string(), figures, state_bytes: StateBytesInfo::default() }
    }
}

impl Service {
    /// What an account uses: of the caller's own, or of `account` by the operator.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` for another account's, `ACCOUNT_NOT_FOUND`, besides those of every call.
    pub async fn usage(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        account: Option<&str>,
    ) -> ApiResult<UsageInfo> {
        let asked = account.map(|id| validate::account_id("account", id)).transpose()?;
        if caller.principal().is_operator() {
            let needed = || ApiError::invalid("account", "account: the operator has to say whose usage it is about");
            let account = self.read_account(asked.ok_or_else(needed)?, context).await?;
            return self.usage_of(&account, |_| true, true, context).await;
        }
        let tenant = caller.require_any(&READ_SCOPES)?;
        if asked.is_some_and(|asked| asked != tenant.account.id) {
            return Err(ApiError::denied("only the operator sees what other accounts use"));
        }
        self.inner.rates.admit(tenant.account)?;
        let sees_all = tenant.principal.namespaces.is_none();
        self.usage_of(tenant.account, |name| tenant.principal.allows_namespace(name), sees_all, context).await
    }

    async fn usage_of(
        &self,
        account: &Account,
        is_shown: impl Fn(&str) -> bool,
        sees_all: bool,
        context: &CallContext,
    ) -> ApiResult<UsageInfo> {
        let router = &self.inner.router;
        let (query, state) = (Query::AccountUsage { account: account.id }, Query::AccountState { account: account.id });
        let asking = router.shard_keys(Application::Locks).into_iter().map(async |key| {
            let asked = |query| router.query(Application::Locks, key, query, context.deadline);
            let (reply, state) = try_join!(asked(&query), asked(&state))?;
            let (namespaces, ended) =
                expect_answer!(reply.outcome?, Response::AccountUsage { namespaces, ended } => (namespaces, ended))?;
            let state = expect_answer!(state.outcome?, Response::AccountState(state) => state)?;
            Ok::<_, ApiError>((namespaces, ended, state))
        });
        let (mut namespaces, mut deleted, mut all) = (Vec::new(), UsageTotals::default(), UsageTotals::default());
        let mut total = NamespaceFigures::default();
        let (mut state_bytes, mut state_bytes_of_fullest_shard) = (StateBytes::default(), 0);
        for (open, ended, state) in try_join_all(asking).await? {
            deleted.add(&ended);
            let state: BTreeMap<String, StateBytes> = state.into_iter().filter(|(name, _)| is_shown(name)).collect();
            state.values().for_each(|bytes| state_bytes.add(bytes));
            state_bytes_of_fullest_shard =
                state.values().map(StateBytes::total).sum::<u64>().max(state_bytes_of_fullest_shard);
            for namespace in open.into_iter().filter(|namespace| is_shown(&namespace.name)) {
                total.holds += namespace.holds;
                total.waiting += namespace.waiting;
                total.sessions += namespace.sessions;
                all.add(&namespace.totals);
                let state_bytes = state.get(&namespace.name).copied().unwrap_or_default().into();
                namespaces.push(NamespaceUsageInfo { state_bytes, ..NamespaceUsageInfo::from(namespace) });
            }
        }
        namespaces.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        if sees_all {
            all.add(&deleted);
        }
        total.totals = all.into();
        Ok(UsageInfo {
            account_id: account.id.to_string(),
            max_number_of_namespaces: account.max_number_of_namespaces,
            limits: account.limits.clone(),
            total,
            state_bytes: state_bytes.into(),
            state_bytes_of_fullest_shard,
            namespaces,
            deleted_namespaces: sees_all.then(|| deleted.into()),
        })
    }
}
