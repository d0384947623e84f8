//! Namespaces of the caller's account.

use holdfast_core::{Answer, Command, Namespace, NamespacesCommand, Query, Refusal, Scopes};

use super::ask::{check_repeat, expect_answer};
use super::caller::Tenant;
use super::{CallContext, Caller, CreateNamespace, NamespaceView, Page, PageRequest, Service};
use crate::error::{ApiError, ApiResult};
use crate::{page_token, validate};

/// Scopes of which one is enough to see namespaces.
const READERS: [Scopes; 2] = [Scopes::LOCKS_READ, Scopes::NAMESPACES_ADMIN];

impl Service {
    /// Makes a namespace; answers when its locks can be taken.
    ///
    /// # Errors
    /// `ALREADY_EXISTS`, `QUOTA_EXCEEDED`, besides those of every call.
    pub async fn create_namespace(
        &self,
        caller: &Caller,
        context: &CallContext,
        request: CreateNamespace,
    ) -> ApiResult<NamespaceView> {
        let tenant = caller.require(Scopes::NAMESPACES_ADMIN)?;
        tenant.check_namespace("name", &request.name)?;
        let description = request.description.unwrap_or_default();
        validate::description(&description, tenant.limits())?;
        self.inner.rates.admit(tenant.account)?;
        let account = tenant.account.id;
        let command = NamespacesCommand::Create {
            request_id: self.request_id(&account.to_string(), "create namespace", context)?,
            account,
            name: request.name.clone(),
            description,
        };
        let command = caller.audited(context, Command::Namespaces(command));
        let routed = self.ask_namespaces(account, command, context).await?;
        let namespace = expect_answer!(routed.reply.outcome?, Answer::Namespace(namespace) => namespace)?;
        check_repeat(namespace.name == request.name)?;
        Ok(namespace.into())
    }

    /// One namespace.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn get_namespace(&self, caller: &Caller, context: &CallContext, name: &str) -> ApiResult<NamespaceView> {
        let tenant = caller.require_any(&READERS)?;
        tenant.check_namespace("namespace", name)?;
        self.inner.rates.admit(tenant.account)?;
        self.read_namespace(tenant, name, context).await.map(Into::into)
    }

    /// Namespaces in order of name: all of the account, or those that the key is for.
    ///
    /// # Errors
    /// Those of every call.
    pub async fn list_namespaces(
        &self,
        caller: &Caller,
        context: &CallContext,
        page: PageRequest,
    ) -> ApiResult<Page<NamespaceView>> {
        let tenant = caller.require_any(&READERS)?;
        let limit = validate::page_size(page.page_size)?;
        let account = tenant.account.id;
        let list = format!("namespaces of {account}");
        let after: Option<String> = page_token::decode(&list, page.page_token.as_deref())?;
        self.inner.rates.admit(tenant.account)?;
        let (namespaces, more) = match &tenant.principal.namespaces {
            Some(allowed) => self.list_allowed(tenant, allowed, after, limit, context).await?,
            None => {
                let query = Query::Namespaces { account, after, limit };
                let routed = self.ask_namespaces(account, query, context).await?;
                expect_answer!(routed.reply.outcome?, Answer::Namespaces { namespaces, more } => (namespaces, more))?
            }
        };
        let last = namespaces.last().map(|namespace| &namespace.name);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        Ok(Page { items: namespaces.into_iter().map(Into::into).collect(), next_page_token })
    }

    /// Changes the description, when one is given.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn update_namespace(
        &self,
        caller: &Caller,
        context: &CallContext,
        name: &str,
        description: Option<String>,
    ) -> ApiResult<NamespaceView> {
        let tenant = caller.require(Scopes::NAMESPACES_ADMIN)?;
        tenant.check_namespace("namespace", name)?;
        if let Some(description) = &description {
            validate::description(description, tenant.limits())?;
        }
        self.inner.rates.admit(tenant.account)?;
        let account = tenant.account.id;
        let command = NamespacesCommand::Update { account, name: name.to_owned(), description };
        let command = caller.audited(context, Command::Namespaces(command));
        let routed = self.ask_namespaces(account, command, context).await?;
        let outcome = routed.reply.outcome.map_err(|refusal| about(refusal, name));
        expect_answer!(outcome?, Answer::Namespace(namespace) => namespace.into())
    }

    /// Ends a namespace, its holds and waits; answers when they are gone. With `id` only that incarnation.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, also when another incarnation is there, besides those of every call.
    pub async fn delete_namespace(
        &self,
        caller: &Caller,
        context: &CallContext,
        name: &str,
        id: Option<&str>,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::NAMESPACES_ADMIN)?;
        tenant.check_namespace("namespace", name)?;
        let asked = id.map(validate::incarnation).transpose()?;
        self.inner.rates.admit(tenant.account)?;
        let account = tenant.account.id;
        // The command always names an incarnation, so that its repeat cannot end a namespace that was made meanwhile.
        let incarnation = match asked {
            Some(incarnation) => incarnation,
            None => self.read_namespace(tenant, name, context).await?.incarnation,
        };
        let command = NamespacesCommand::Delete { account, name: name.to_owned(), incarnation: Some(incarnation) };
        let command = caller.audited(context, Command::Namespaces(command));
        let routed = self.ask_namespaces(account, command, context).await?;
        self.inner.directory.forget_namespace(account, name);
        match routed.reply.outcome {
            // An earlier attempt of this very call may have been the one that deleted it.
            Err(Refusal::NamespaceNotFound) if routed.maybe_done_before => Ok(()),
            Err(refusal) => Err(about(refusal, name)),
            Ok(answer) => expect_answer!(answer, Answer::Done => ()),
        }
    }

    async fn read_namespace(&self, tenant: Tenant<'_>, name: &str, context: &CallContext) -> ApiResult<Namespace> {
        let account = tenant.account.id;
        let query = Query::Namespace { account, name: name.to_owned() };
        let routed = self.ask_namespaces(account, query, context).await?;
        let outcome = routed.reply.outcome.map_err(|refusal| about(refusal, name));
        expect_answer!(outcome?, Answer::Namespace(namespace) => namespace)
    }

    /// A page of the namespaces that a key is for; the key's list is short and in order.
    async fn list_allowed(
        &self,
        tenant: Tenant<'_>,
        allowed: &[String],
        after: Option<String>,
        limit: u32,
        context: &CallContext,
    ) -> ApiResult<(Vec<Namespace>, bool)> {
        let mut names: Vec<&String> = allowed.iter().filter(|name| after.as_ref() < Some(name)).collect();
        names.sort();
        let mut found = Vec::new();
        for name in names {
            match self.read_namespace(tenant, name, context).await {
                Ok(_) if found.len() == limit as usize => return Ok((found, true)),
                Ok(namespace) => found.push(namespace),
                Err(error) if error.code == crate::Code::NamespaceNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok((found, false))
    }
}

/// A refusal about one namespace. An account that its namespaces shard does not know (yet, or any more) has none.
fn about(refusal: Refusal, name: &str) -> ApiError {
    match refusal {
        Refusal::NamespaceNotFound => ApiError::namespace_not_found(name),
        other => ApiError::from(other),
    }
}
