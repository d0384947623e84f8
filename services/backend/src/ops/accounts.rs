//! Operations on accounts, for the operator.

use holdfast_api::{
    AccountView, ApiError, ApiResult, CreateAccount, Page, PageRequest, UpdateAccount, page_token, validate,
};
use holdfast_types::{
    Account, AccountId, AccountsCommand, Command, CommandError, DEFAULT_MAX_NAMESPACES, Limits, MAX_PAGE_SIZE, Query,
    Response,
};

use crate::admission::{Share, Sharer};
use crate::shard_call::{check_repeat, expect_answer, random_bytes};
use crate::{AuthContext, CallContext, Service};

const PAGE_TOKEN_LIST: &str = "accounts";
/// How often an id is drawn again when it is in use. Among 2^64 ids, even one collision is extremely unlikely.
const MAX_ID_ATTEMPTS: usize = 3;

impl Service {
    /// Creates an account.
    ///
    /// # Errors
    /// `ALREADY_EXISTS` for an e-mail in use, besides those of every call.
    pub async fn create_account(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: CreateAccount,
    ) -> ApiResult<AccountView> {
        caller.require_operator()?;
        let email = validate::email(&request.email)?;
        validate::full_name(&request.full_name)?;
        let request_id = self.request_id("operator", "create account", context)?;
        for _ in 0..MAX_ID_ATTEMPTS {
            let command = AccountsCommand::Create {
                request_id,
                id: AccountId(u64::from_be_bytes(random_bytes()?)),
                email: email.clone(),
                full_name: request.full_name.clone(),
                max_number_of_namespaces: request.max_number_of_namespaces.unwrap_or(DEFAULT_MAX_NAMESPACES),
                limits: Limits::default(),
            };
            let routed = self
                .call_accounts(caller.share(), caller.audited(context, Command::Accounts(command)), context)
                .await?;
            match routed.reply.outcome {
                Err(CommandError::IdTaken) => {}
                outcome => {
                    let account = expect_answer!(outcome?, Response::Account(account) => account)?;
                    check_repeat(account.email == email)?;
                    return Ok(account.into());
                }
            }
        }
        Err(ApiError::from(CommandError::IdTaken))
    }

    /// Returns one account.
    ///
    /// # Errors
    /// `ACCOUNT_NOT_FOUND`, besides those of every call.
    pub async fn get_account(&self, caller: &AuthContext, context: &CallContext, id: &str) -> ApiResult<AccountView> {
        caller.require_operator()?;
        let id = validate::account_id("account_id", id)?;
        self.read_account(caller, id, context).await.map(Into::into)
    }

    /// Returns the id of the account with this e-mail, if there is one. Checks no credential: only for a process whose
    /// own settings name an account.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the accounts cannot be read.
    pub async fn find_account_id(&self, email: &str, context: &CallContext) -> ApiResult<Option<AccountId>> {
        let mut after = None;
        loop {
            let query = Query::Accounts { after, limit: MAX_PAGE_SIZE };
            let routed = self.call_accounts(Share::of(Sharer::Operator), query, context).await?;
            let Ok(Response::Accounts { accounts, more }) = routed.reply.outcome else {
                return Err(ApiError::internal("the accounts cannot be listed"));
            };
            if let Some(found) = accounts.iter().find(|account| account.email == email) {
                return Ok(Some(found.id));
            }
            after = accounts.last().map(|account| account.id);
            if !more {
                return Ok(None);
            }
        }
    }

    /// Lists accounts in order of id.
    ///
    /// # Errors
    /// Those of every call.
    pub async fn list_accounts(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        page: PageRequest,
    ) -> ApiResult<Page<AccountView>> {
        caller.require_operator()?;
        let limit = validate::page_size(page.page_size)?;
        let after = page_token::decode(PAGE_TOKEN_LIST, page.page_token.as_deref())?;
        let routed = self.call_accounts(caller.share(), Query::Accounts { after, limit }, context).await?;
        let (accounts, more) =
            expect_answer!(routed.reply.outcome?, Response::Accounts { accounts, more } => (accounts, more))?;
        let last = accounts.last().map(|account| account.id);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(PAGE_TOKEN_LIST, &last));
        Ok(Page { items: accounts.into_iter().map(Into::into).collect(), next_page_token })
    }

    /// Changes the given fields of an account. The patch of limits applies to the current limits; of two concurrent
    /// changes of limits the later one wins.
    ///
    /// # Errors
    /// `ACCOUNT_NOT_FOUND`, besides those of every call.
    pub async fn update_account(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        id: &str,
        request: UpdateAccount,
    ) -> ApiResult<AccountView> {
        caller.require_operator()?;
        let id = validate::account_id("account_id", id)?;
        if let Some(full_name) = &request.full_name {
            validate::full_name(full_name)?;
        }
        let UpdateAccount { full_name, status, max_number_of_namespaces, limits: patch } = request;
        let command = match &patch {
            None => AccountsCommand::Update { id, full_name, status, max_number_of_namespaces, limits: None },
            Some(patch) => {
                let before = self.read_account(caller, id, context).await?.limits;
                let limits = patch.applied_to(&before);
                validate::limits(&limits)?;
                // Every release knows the command that leaves the later limits as they are.
                if limits.with_later_of(&before) == limits {
                    let limits = Some(limits);
                    AccountsCommand::Update { id, full_name, status, max_number_of_namespaces, limits }
                } else {
                    AccountsCommand::Update2 { id, full_name, status, max_number_of_namespaces, limits }
                }
            }
        };
        let routed =
            self.call_accounts(caller.share(), caller.audited(context, Command::Accounts(command)), context).await?;
        self.inner.directory.invalidate_account(id);
        expect_answer!(routed.reply.outcome?, Response::Account(account) => account.into())
    }

    /// Deletes an account with its namespaces, keys and locks.
    ///
    /// # Errors
    /// `ACCOUNT_NOT_FOUND`, besides those of every call.
    pub async fn delete_account(&self, caller: &AuthContext, context: &CallContext, id: &str) -> ApiResult<()> {
        caller.require_operator()?;
        let id = validate::account_id("account_id", id)?;
        // Ids are never reused, so an account that is missing after an attempt of this call existed before it.
        let command = caller.audited(context, Command::Accounts(AccountsCommand::Delete { id }));
        let routed = self.call_accounts(caller.share(), command, context).await?;
        self.inner.directory.invalidate_account(id);
        match routed.reply.outcome {
            Err(CommandError::AccountNotFound(_)) if routed.maybe_done_before => Ok(()),
            outcome => expect_answer!(outcome?, Response::Done => ()),
        }
    }

    pub(super) async fn read_account(
        &self,
        caller: &AuthContext,
        id: AccountId,
        context: &CallContext,
    ) -> ApiResult<Account> {
        let routed = self.call_accounts(caller.share(), Query::Account { id }, context).await?;
        expect_answer!(routed.reply.outcome?, Response::Account(account) => account)
    }
}
