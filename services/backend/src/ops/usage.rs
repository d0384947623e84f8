//! Usage of an account: shards count it in steps that they log anyway, and this module adds it up.

use std::collections::BTreeMap;

use holdfast_api::{ApiError, ApiResult, NamespaceFigures, NamespaceLoad, NamespaceUsageInfo, UsageInfo, validate};
use holdfast_cluster::Application;
use holdfast_types::{Account, Query, Response, Scopes, StateBytes, UsageTotals};

use crate::admission::Share;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::{AuthContext, CallContext, Service};

/// Any one of these scopes suffices to read the account's usage.
const READ_SCOPES: [Scopes; 3] = [Scopes::LOCKS_READ, Scopes::NAMESPACES_ADMIN, Scopes::ACCOUNT_ADMIN];

impl Service {
    /// Returns the usage of an account: the caller's own, or `account` for the operator.
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
            let account = self.read_account(caller, asked.ok_or_else(needed)?, context).await?;
            return self.usage_of(caller.share(), &account, |_| true, true, context).await;
        }
        let tenant = caller.require_any(&READ_SCOPES)?;
        if asked.is_some_and(|asked| asked != tenant.account.id) {
            return Err(ApiError::denied("only the operator sees what other accounts use"));
        }
        self.inner.rates.admit(tenant.account)?;
        let sees_all = tenant.principal.namespaces.is_none();
        let is_shown = |name: &str| tenant.principal.allows_namespace(name);
        self.usage_of(caller.share(), tenant.account, is_shown, sees_all, context).await
    }

    /// Returns holds, waiting requests and sessions of a namespace, as its shard has them now.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call. The rate limit never applies.
    pub async fn namespace_load(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        name: &str,
    ) -> ApiResult<NamespaceLoad> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        tenant.check_namespace("namespace", name)?;
        let make = |namespace| ShardRequest::from(Query::Usage { namespace });
        let reply = self.call_locks(tenant, name, context, make).await?;
        expect_answer!(reply.outcome?, Response::Usage { holds, waiting, sessions }
            => NamespaceLoad { holds, waiting, sessions })
    }

    async fn usage_of(
        &self,
        share: Share,
        account: &Account,
        is_shown: impl Fn(&str) -> bool,
        sees_all: bool,
        context: &CallContext,
    ) -> ApiResult<UsageInfo> {
        let (query, state) = (Query::AccountUsage { account: account.id }, Query::AccountState { account: account.id });
        let queries_to = |key| [&query, &state].map(|query| (Application::Locks, key, query.clone()));
        let queries = self.inner.router.shard_keys(Application::Locks).into_iter().flat_map(queries_to).collect();
        let mut replies = self.query_shards(share, queries, context).await?.into_iter();
        let (mut namespaces, mut deleted, mut all) = (Vec::new(), UsageTotals::default(), UsageTotals::default());
        let mut total = NamespaceFigures::default();
        let (mut state_bytes, mut state_bytes_of_fullest_shard) = (StateBytes::default(), 0);
        while let (Some(usage), Some(state)) = (replies.next(), replies.next()) {
            let (open, ended) =
                expect_answer!(usage.outcome?, Response::AccountUsage { namespaces, ended } => (namespaces, ended))?;
            let state = expect_answer!(state.outcome?, Response::AccountState(state) => state)?;
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
