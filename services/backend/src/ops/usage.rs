//! Usage of an account: shards count it in steps that they log anyway, and this module adds it up.

use std::collections::{BTreeMap, HashMap};

use holdfast_api::{
    ApiError, ApiResult, LimitUsageInfo, NamespaceFigures, NamespaceLoad, NamespaceUsageInfo, UsageInfo, validate,
};
use holdfast_cluster::Application;
use holdfast_types::limit::{self, Limit};
use holdfast_types::{Account, Limits, NamespaceUsage, Query, Response, Scopes, StateBytes, UsageTotals};

use crate::admission::{Share, Sharer};
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
            let needed = || ApiError::invalid("account", "account: the operator must name an account");
            let account = self.read_account(caller, asked.ok_or_else(needed)?, context).await?;
            return self.usage_of(caller.share(), &account, |_| true, true, context).await;
        }
        let tenant = caller.require_any(&READ_SCOPES)?;
        if asked.is_some_and(|asked| asked != tenant.account.id) {
            return Err(ApiError::denied("only the operator may read the usage of other accounts"));
        }
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
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
        let shards = self.inner.router.shard_locations(Application::Locks);
        let queries_to = |key| [&query, &state].map(|query| (Application::Locks, key, query.clone()));
        let queries = shards.iter().flat_map(|(key, _)| queries_to(*key)).collect();
        // Before the rest, which keeps others from their pages: this shard may have no leader.
        let api_keys = if sees_all { Some(self.api_key_usage(share, account, context).await?) } else { None };
        let mut replies = self.query_shards(share, queries, context).await?.into_iter();
        let mut sum = UsageSum::default();
        for (_, nodes) in shards {
            let (Some(usage), Some(state)) = (replies.next(), replies.next()) else { break };
            let (open, ended) =
                expect_answer!(usage.outcome?, Response::AccountUsage { namespaces, ended } => (namespaces, ended))?;
            let state = expect_answer!(state.outcome?, Response::AccountState(state) => state)?;
            sum.deleted.add(&ended);
            let state = state.into_iter().filter(|(name, _)| is_shown(name)).collect();
            sum.add_shard(nodes, open.into_iter().filter(|namespace| is_shown(&namespace.name)), &state);
        }
        let mut counted = sum.of_namespaces(&account.limits);
        counted.extend(api_keys);
        if sees_all {
            counted.extend(sum.of_account(account));
            counted.extend(self.usage_of_this_gateway(account));
        }
        let limit_usage = self.usage_of_every_limit(account, counted);
        Ok(sum.into_info(account, limit_usage, sees_all))
    }

    /// Returns every limit, in the order of their table; counted limits have their usage.
    fn usage_of_every_limit(&self, account: &Account, counted: Vec<LimitUsageInfo>) -> Vec<LimitUsageInfo> {
        let mut counted: HashMap<String, LimitUsageInfo> =
            counted.into_iter().map(|usage| (usage.limit.clone(), usage)).collect();
        let row = |limit: &'static Limit| {
            let counted = counted.remove(limit.name);
            counted.unwrap_or_else(|| LimitUsageInfo::without_use(limit, self.max_of(limit, account)))
        };
        limit::ALL.iter().copied().map(row).collect()
    }

    /// Returns how much a limit allows the account. The limits of nodes and connections may differ from place to place.
    fn max_of(&self, limit: &Limit, account: &Account) -> u64 {
        if *limit == limit::NODE_BYTES {
            max_node_bytes(&account.limits)
        } else if *limit == limit::NAMESPACES {
            account.max_number_of_namespaces.into()
        } else if *limit == limit::REFUSED_CREDENTIALS {
            self.inner.strangers.refused_per_second().into()
        } else {
            limit.value_of(&account.limits)
        }
    }

    async fn api_key_usage(&self, share: Share, account: &Account, context: &CallContext) -> ApiResult<LimitUsageInfo> {
        let routed = self.call_accounts(share, Query::ApiKeys { account: account.id }, context).await?;
        let keys = expect_answer!(routed.reply.outcome?, Response::ApiKeys(keys) => keys)?;
        Ok(LimitUsageInfo::new(&limit::API_KEYS, keys.len() as u64, limit::API_KEYS.default_value()))
    }

    /// Returns the use of the limits that this gateway counts by itself.
    fn usage_of_this_gateway(&self, account: &Account) -> Vec<LimitUsageInfo> {
        let (inner, sharer) = (&self.inner, Sharer::Account(account.id));
        let calls = inner.router.calls_of_account(account.id);
        let own = [
            (&limit::WATCHERS, inner.watchers.used(account.id)),
            (&limit::CALLS_OF_ACCOUNT, calls.to_node as u64),
            (&limit::CALLS_OF_ACCOUNT_TO_SHARD, calls.to_shard as u64),
            (&limit::CONNECTIONS, inner.connections.used(account.id)),
            (&limit::BUFFERED_BYTES, inner.buffers.used(account.id)),
        ];
        let used = inner.rates.used(account).into_iter().chain(inner.admission.used(sharer));
        let used = used.chain(inner.deferred_calls.used(sharer)).chain(own);
        used.map(|(limit, used)| LimitUsageInfo::of_this_gateway(limit, used, &account.limits)).collect()
    }
}

/// Returns the bytes that all shards of a node may keep for an account.
fn max_node_bytes(limits: &Limits) -> u64 {
    limits.max_state_bytes.saturating_mul(Limits::STATE_SHARES_PER_NODE)
}

/// What the shards have told so far.
#[derive(Default)]
struct UsageSum {
    namespaces: Vec<NamespaceUsageInfo>,
    /// Of open namespaces.
    totals: UsageTotals,
    deleted: UsageTotals,
    state_bytes: StateBytes,
    state_bytes_of_fullest_shard: u64,
    state_bytes_of_nodes: BTreeMap<String, u64>,
    /// The most in one namespace.
    tangled_owners: u64,
    /// The most in one namespace, as they count against their limit.
    table_bytes: u64,
}

impl UsageSum {
    /// Adds the namespaces of a shard and their state, by name. `nodes` have a replica of it.
    fn add_shard(
        &mut self,
        nodes: Vec<String>,
        open: impl Iterator<Item = NamespaceUsage>,
        state: &BTreeMap<String, StateBytes>,
    ) {
        let in_shard = state.values().map(StateBytes::total).sum::<u64>();
        state.values().for_each(|bytes| self.state_bytes.add(bytes));
        self.state_bytes_of_fullest_shard = self.state_bytes_of_fullest_shard.max(in_shard);
        for node in nodes {
            *self.state_bytes_of_nodes.entry(node).or_default() += in_shard;
        }
        for namespace in open {
            self.totals.add(&namespace.totals);
            self.tangled_owners = self.tangled_owners.max(namespace.tangled_owners);
            self.table_bytes = self.table_bytes.max(namespace.table_bytes);
            let state_bytes = state.get(&namespace.name).copied().unwrap_or_default().into();
            self.namespaces.push(NamespaceUsageInfo { state_bytes, ..NamespaceUsageInfo::from(namespace) });
        }
    }

    /// Returns the use of the limits of namespaces, each of the namespace that uses most.
    fn of_namespaces(&self, limits: &Limits) -> Vec<LimitUsageInfo> {
        let most = |of: fn(&NamespaceUsageInfo) -> u64| self.namespaces.iter().map(of).max().unwrap_or(0);
        let used: [(&Limit, u64); 10] = [
            (&limit::HOLDS, most(|namespace| namespace.figures.holds)),
            (&limit::WAITING, most(|namespace| namespace.figures.waiting)),
            (&limit::SESSIONS, most(|namespace| namespace.figures.sessions)),
            (&limit::LATCHES, most(|namespace| namespace.figures.latches)),
            (&limit::SEMAPHORES, most(|namespace| namespace.figures.semaphores)),
            (&limit::POOLS, most(|namespace| namespace.figures.pools)),
            (&limit::PRIMITIVE_BYTES, self.table_bytes),
            (&limit::BARRIERS, most(|namespace| namespace.figures.barriers)),
            (&limit::TANGLE, self.tangled_owners),
            (&limit::EVENT_BYTES, most(|namespace| namespace.state_bytes.events)),
        ];
        used.map(|(limit, used)| LimitUsageInfo::new(limit, used, limit.value_of(limits))).into()
    }

    /// Returns the use of the limits that shards, nodes and the account as a whole have.
    fn of_account(&self, account: &Account) -> [LimitUsageInfo; 3] {
        let (in_shard, max_in_shard) = (self.state_bytes_of_fullest_shard, account.limits.max_state_bytes);
        let in_node = self.state_bytes_of_nodes.values().copied().max().unwrap_or(0);
        let max_in_node = max_node_bytes(&account.limits);
        let (open, max_open) = (self.namespaces.len() as u64, u64::from(account.max_number_of_namespaces));
        [
            LimitUsageInfo::new(&limit::STATE_BYTES, in_shard, max_in_shard),
            LimitUsageInfo::new(&limit::NODE_BYTES, in_node, max_in_node),
            LimitUsageInfo::new(&limit::NAMESPACES, open, max_open),
        ]
    }

    fn into_info(self, account: &Account, limit_usage: Vec<LimitUsageInfo>, sees_all: bool) -> UsageInfo {
        let Self { mut namespaces, totals: mut all, deleted, state_bytes, state_bytes_of_fullest_shard, .. } = self;
        namespaces.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        if sees_all {
            all.add(&deleted);
        }
        let mut total = NamespaceFigures { totals: all.into(), ..NamespaceFigures::default() };
        for NamespaceUsageInfo { figures, .. } in &namespaces {
            total.holds += figures.holds;
            total.waiting += figures.waiting;
            total.sessions += figures.sessions;
            total.latches += figures.latches;
            total.semaphores += figures.semaphores;
            total.permit_holds += figures.permit_holds;
            total.permit_waits += figures.permit_waits;
            total.pools += figures.pools;
            total.barriers += figures.barriers;
            total.arrivals += figures.arrivals;
            total.awaiting += figures.awaiting;
        }
        UsageInfo {
            account_id: account.id.to_string(),
            max_number_of_namespaces: account.max_number_of_namespaces,
            limits: account.limits.clone(),
            limit_usage,
            total,
            state_bytes: state_bytes.into(),
            state_bytes_of_fullest_shard,
            namespaces,
            deleted_namespaces: sees_all.then(|| deleted.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use holdfast_api::CreateApiKey;
    use holdfast_types::Mode;

    use super::*;
    use crate::ops::core_node::context;
    use crate::ops::tests::{acquire, demo_world};

    /// Limits of accounts and namespaces of which leaders and nodes tell no use.
    const WITHOUT_USE: [&Limit; 5] = [
        &limit::QUESTIONS_OF_NAMESPACE,
        &limit::FORFEITS,
        &limit::PENDING_CHANGES,
        &limit::COMMANDS_OF_ACCOUNT,
        &limit::CALLS_OF_ACCOUNT_AT_NODE,
    ];

    #[tokio::test]
    async fn every_limit_is_shown_and_those_of_the_account_and_its_namespaces_with_their_use() {
        let (world, tenant) = demo_world().await;
        world.service.acquire_lock(&tenant, &context(), acquire("a", "p", Mode::Write)).await.unwrap();
        world.service.account_connections().add(tenant.tenant().unwrap().account.id, 5).unwrap();
        let _unread = world.service.account_buffers(&tenant).answers.unwrap().try_reserve(7).unwrap();
        let usage = world.service.usage(&tenant, &context(), None).await.unwrap();
        let shown = usage.limit_usage.iter().map(|row| (row.limit.as_str(), row.each.as_str()));
        assert!(shown.eq(limit::ALL.iter().map(|limit| (limit.name, limit.scope.name()))), "{usage:?}");
        let counted = usage.limit_usage.iter().filter(|row| row.used.is_some());
        let counted: BTreeSet<&str> = counted.map(|row| row.limit.as_str()).collect();
        let is_counted = |limit: &&Limit| limit.scope.is_of_account() && !WITHOUT_USE.contains(limit);
        let expected: BTreeSet<&str> = limit::ALL.iter().copied().filter(is_counted).map(|limit| limit.name).collect();
        assert_eq!(counted, expected);
        let row = |limit: &Limit| usage.limit_usage.iter().find(|row| row.limit == limit.name).unwrap();
        let used = |limit| (row(limit).used.unwrap(), row(limit).max, row(limit).of_this_gateway);
        assert_eq!(used(&limit::HOLDS), (1, 1_000_000, false));
        assert_eq!(used(&limit::NAMESPACES), (1, u64::from(usage.max_number_of_namespaces), false));
        assert_eq!((row(&limit::NAMESPACE_CHANGES).max, row(&limit::NAMESPACE_CHANGES).of_this_gateway), (120, true));
        assert_eq!(used(&limit::STATE_BYTES), (usage.state_bytes.total, 512 << 20, false));
        assert_eq!(used(&limit::NODE_BYTES), (usage.state_bytes.total, 1 << 30, false));
        assert_eq!(used(&limit::API_KEYS), (1, 1_000, false));
        assert_eq!(used(&limit::OPEN_CALLS), (0, 4_096, true), "this very call is over");
        assert_eq!(used(&limit::CONNECTIONS), (1, 1_000, true));
        assert_eq!(used(&limit::BUFFERED_BYTES), (7, 64 << 20, true));
        let without_use = |limit| (row(limit).used, row(limit).max, row(limit).of_this_gateway);
        assert_eq!(without_use(&limit::READERS), (None, 1_000, false));
        assert_eq!(without_use(&limit::PENDING_CHANGES), (None, 256, false));
        assert_eq!(without_use(&limit::MEMORY), (None, 0, false));
        assert_eq!(without_use(&limit::OWNERS_OF_SESSION), (None, 10_000, false));
        assert_eq!(without_use(&limit::REFUSED_CREDENTIALS), (None, 20, false));
        assert_eq!(without_use(&limit::NODE_PROCESSES), (None, limit::NODE_PROCESSES.default_value(), false));
    }

    #[tokio::test]
    async fn a_key_of_some_namespaces_sees_no_use_of_the_whole_account() {
        let (world, tenant) = demo_world().await;
        let account = tenant.tenant().unwrap().account.id.to_string();
        let narrow = CreateApiKey { namespaces: Some(vec!["demo".into()]), ..CreateApiKey::default() };
        let caller = world.caller(&account, narrow).await;
        let usage = world.service.usage(&caller, &context(), None).await.unwrap();
        let used: Vec<_> = usage.limit_usage.iter().filter(|row| row.used.is_some()).collect();
        assert!(used.iter().all(|row| row.each == "namespace"), "{used:?}");
        assert_eq!((used.len(), usage.limit_usage.len()), (10, limit::ALL.len()));
        let max = |limit: &Limit| usage.limit_usage.iter().find(|row| row.limit == limit.name).unwrap().max;
        assert_eq!(
            (max(&limit::NAMESPACES), max(&limit::NODE_BYTES)),
            (u64::from(usage.max_number_of_namespaces), 1 << 30)
        );
    }
}
