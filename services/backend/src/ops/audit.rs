//! The audit log: shards record an action in the step that performs it, and a query merges the records of all shards.

use holdfast_api::{ApiError, ApiResult, AuditEntry, ListAudit, Page, page_token, validate};
use holdfast_cluster::Application;
use holdfast_types::{
    AccountId, Actor, AuditCursor, AuditRecord, Audited, Command, Query, Reply, Response, Scopes, shard_key,
};

use crate::shard_call::expect_answer;
use crate::{AuthContext, CallContext, Service};

impl AuthContext {
    /// Returns the command with its caller, for the audit log.
    pub(super) fn audited(&self, context: &CallContext, command: Command) -> Command {
        let actor = match self.principal().account() {
            None => Actor::Operator,
            Some(principal) if principal.key_id.is_empty() => Actor::Account(principal.account),
            Some(principal) => Actor::ApiKey { account: principal.account, key_id: principal.key_id.clone() },
        };
        Command::Audited(Audited { actor, request_id: context.request_id.to_string(), command: Box::new(command) })
    }
}

/// A shard that may have records: its application and a key of it.
type AuditSource = (Application, u32);

/// The last record of a page. Records are in order of time, then of shard, then of number.
type Cursor = (u64, u32, u64);

impl Service {
    /// Lists actions, the latest first. The shards keep a bounded number of records. A key that is limited to some
    /// namespaces sees no records of others. Its pages may be shorter or empty and still have a next page.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` for another account's, besides those of every call.
    pub async fn list_audit(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ListAudit,
    ) -> ApiResult<Page<AuditEntry>> {
        let asked = request.account.as_deref().map(|id| validate::account_id("account", id)).transpose()?;
        let account = self.account_of_audit(caller, context, asked)?;
        let limit = validate::page_size(request.page.page_size)?;
        let list = format!("audit {}", account.map_or_else(|| "all".to_owned(), |account| account.to_string()));
        let cursor: Option<Cursor> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let sources = self.audit_sources(account);
        let query_to = |((application, key), ordinal)| {
            (application, key, Query::Audit { account, before: shard_cursor(cursor, ordinal), limit })
        };
        let queries = sources.into_iter().zip(0..).map(query_to).collect();
        let replies = self.query_shards(caller.share(), queries, context).await?;
        let mut more = false;
        let mut records: Vec<(Cursor, AuditRecord)> = Vec::new();
        for (reply, ordinal) in replies.into_iter().zip(0..) {
            more |= add_page(&mut records, reply, ordinal)?;
        }
        records.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
        more |= records.len() > limit as usize;
        records.truncate(limit as usize);
        let last = records.last().map(|(position, _)| *position);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, &last));
        let principal = caller.principal();
        let is_shown = |record: &AuditRecord| {
            let namespace = record.namespace.as_deref();
            principal.is_operator() || namespace.is_none_or(|namespace| principal.allows_namespace(namespace))
        };
        let shown = records.into_iter().map(|(_, record)| record).filter(is_shown);
        Ok(Page { items: shown.map(AuditEntry::from).collect(), next_page_token })
    }

    fn account_of_audit(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        asked: Option<AccountId>,
    ) -> ApiResult<Option<AccountId>> {
        if caller.principal().is_operator() {
            return Ok(asked);
        }
        let tenant = caller.require(Scopes::ACCOUNT_ADMIN)?;
        let own = tenant.account.id;
        if asked.is_some_and(|asked| asked != own) {
            return Err(ApiError::denied("only the operator may read the audit records of other accounts"));
        }
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        Ok(Some(own))
    }

    /// Returns every shard that may have records of the account, always in the same order.
    fn audit_sources(&self, account: Option<AccountId>) -> Vec<AuditSource> {
        let router = &self.inner.router;
        let all = |application| router.shard_keys(application).into_iter().map(move |key| (application, key));
        let namespaces: Vec<AuditSource> = match account {
            None => all(Application::Namespaces).collect(),
            Some(account) => vec![(Application::Namespaces, shard_key(Application::Namespaces, account.0, ""))],
        };
        all(Application::Accounts).chain(namespaces).chain(all(Application::Locks)).collect()
    }
}

/// Adds the page of one shard, and returns whether the shard has more.
fn add_page(records: &mut Vec<(Cursor, AuditRecord)>, reply: Reply, ordinal: u32) -> ApiResult<bool> {
    let (page, more) = expect_answer!(reply.outcome?, Response::AuditRecords { records, more } => (records, more))?;
    records.extend(page.into_iter().map(|record| ((record.at_ms, ordinal, record.number), record)));
    Ok(more)
}

/// Returns where the page of one shard begins, so that all shards continue after the cursor.
fn shard_cursor(cursor: Option<Cursor>, ordinal: u32) -> Option<AuditCursor> {
    let (at_ms, of, number) = cursor?;
    Some(match ordinal.cmp(&of) {
        std::cmp::Ordering::Less => AuditCursor { at_ms: at_ms.saturating_add(1), number: 0 },
        std::cmp::Ordering::Equal => AuditCursor { at_ms, number },
        std::cmp::Ordering::Greater => AuditCursor { at_ms, number: 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_shards_go_on_after_the_same_record() {
        let cursor = (50, 3, 7);
        let comes_after = |position: Cursor| {
            let before = shard_cursor(Some(cursor), position.1).unwrap();
            AuditCursor { at_ms: position.0, number: position.2 } < before
        };
        for at_ms in 49..=51 {
            for ordinal in 2..=4 {
                for number in 6..=8 {
                    let position = (at_ms, ordinal, number);
                    assert_eq!(comes_after(position), position < cursor, "{position:?}");
                }
            }
        }
    }
}
