//! Namespaces of the caller's account.

use holdfast_api::{
    ApiError, ApiResult, Code, CreateNamespace, NamespaceView, Page, PageRequest, TableView, page_token, validate,
};
use holdfast_types::{Command, CommandError, Durability, Namespace, NamespacesCommand, Query, Response, Scopes};

use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, check_repeat, expect_answer, unexpected};
use crate::{AuthContext, CallContext, Service};

/// Any one of these scopes suffices to read namespaces.
const READ_SCOPES: [Scopes; 2] = [Scopes::LOCKS_READ, Scopes::NAMESPACES_ADMIN];

impl Service {
    /// Creates a namespace; returns when its locks are available.
    ///
    /// # Errors
    /// `ALREADY_EXISTS`, `QUOTA_EXCEEDED`, besides those of every call.
    pub async fn create_namespace(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: CreateNamespace,
    ) -> ApiResult<NamespaceView> {
        let tenant = caller.require(Scopes::NAMESPACES_ADMIN)?;
        tenant.check_namespace("name", &request.name)?;
        let description = request.description.unwrap_or_default();
        validate::description(&description, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        self.inner.rates.admit_namespace_change(tenant.account)?;
        let account = tenant.account.id;
        let request_id = self.request_id(&account.to_string(), "create namespace", context)?;
        let (name, durability) = (request.name.clone(), request.durability);
        let command = NamespacesCommand::create(request_id, account, name, description, durability);
        let command = caller.audited(context, Command::Namespaces(command));
        let routed = self.call_namespaces(tenant.account, command, context).await?;
        let namespace = routed.reply.outcome?.into_namespace().map_err(|other| unexpected(&other))?;
        check_repeat(namespace.name == request.name && namespace.durability == request.durability)?;
        Ok(namespace.into())
    }

    /// Returns one namespace.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn get_namespace(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        name: &str,
    ) -> ApiResult<NamespaceView> {
        let tenant = caller.require_any(&READ_SCOPES)?;
        tenant.check_namespace("namespace", name)?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let mut view: NamespaceView = self.read_namespace(tenant, name, context).await?.into();
        if view.durability == Durability::Session {
            view.table = self.table_of(tenant, name, context).await;
        }
        Ok(view)
    }

    /// Returns how far the lock table of a namespace is. `None` if its leader can't be asked, which leaves the rest.
    async fn table_of(&self, tenant: TenantContext<'_>, name: &str, context: &CallContext) -> Option<TableView> {
        let make = |namespace| ShardRequest::from(Query::TableState { namespace });
        match self.call_locks(tenant, name, context, make).await.ok()?.outcome {
            Ok(Response::TableState(state)) => Some(state.into()),
            _ => None,
        }
    }

    /// Lists namespaces in order of name: all of the account, or only the namespaces that the key covers.
    ///
    /// # Errors
    /// Those of every call.
    pub async fn list_namespaces(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        page: PageRequest,
    ) -> ApiResult<Page<NamespaceView>> {
        let tenant = caller.require_any(&READ_SCOPES)?;
        let limit = validate::page_size(page.page_size)?;
        let account = tenant.account.id;
        let list = format!("namespaces of {account}");
        let after: Option<String> = page_token::decode(&list, page.page_token.as_deref())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let (namespaces, more) = match &tenant.principal.namespaces {
            Some(allowed) => self.list_allowed(tenant, allowed, after, limit, context).await?,
            None => {
                let query = Query::Namespaces { account, after, limit };
                let routed = self.call_namespaces(tenant.account, query, context).await?;
                routed.reply.outcome?.into_namespaces().map_err(|other| unexpected(&other))?
            }
        };
        let last = namespaces.last().map(|namespace| &namespace.name);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        Ok(Page { items: namespaces.into_iter().map(Into::into).collect(), next_page_token })
    }

    /// Changes the description, if one is given.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn update_namespace(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        name: &str,
        description: Option<String>,
    ) -> ApiResult<NamespaceView> {
        let tenant = caller.require(Scopes::NAMESPACES_ADMIN)?;
        tenant.check_namespace("namespace", name)?;
        if let Some(description) = &description {
            validate::description(description, tenant.limits())?;
        }
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        self.inner.rates.admit_namespace_change(tenant.account)?;
        let account = tenant.account.id;
        let command = NamespacesCommand::Update { account, name: name.to_owned(), description };
        let command = caller.audited(context, Command::Namespaces(command));
        let routed = self.call_namespaces(tenant.account, command, context).await?;
        let outcome = routed.reply.outcome.map_err(|refusal| namespace_error(refusal, name));
        outcome?.into_namespace().map(Into::into).map_err(|other| unexpected(&other))
    }

    /// Deletes a namespace with its holds and waiting requests; returns when they are gone. With `id`, deletes only
    /// that incarnation.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, also when another incarnation exists, besides those of every call.
    pub async fn delete_namespace(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        name: &str,
        id: Option<&str>,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::NAMESPACES_ADMIN)?;
        tenant.check_namespace("namespace", name)?;
        let asked = id.map(validate::incarnation).transpose()?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        self.inner.rates.admit_namespace_change(tenant.account)?;
        let account = tenant.account.id;
        // The command always names an incarnation, so that a retry cannot delete a namespace that was created
        // meanwhile.
        let incarnation = match asked {
            Some(incarnation) => incarnation,
            None => self.read_namespace(tenant, name, context).await?.incarnation,
        };
        let command = NamespacesCommand::Delete { account, name: name.to_owned(), incarnation: Some(incarnation) };
        let command = caller.audited(context, Command::Namespaces(command));
        let routed = self.call_namespaces(tenant.account, command, context).await?;
        self.inner.directory.invalidate_namespace(account, name);
        match routed.reply.outcome {
            // An earlier attempt of this call may have deleted it.
            Err(CommandError::NamespaceNotFound) if routed.maybe_done_before => Ok(()),
            Err(refusal) => Err(namespace_error(refusal, name)),
            Ok(answer) => expect_answer!(answer, Response::Done => ()),
        }
    }

    async fn read_namespace(
        &self,
        tenant: TenantContext<'_>,
        name: &str,
        context: &CallContext,
    ) -> ApiResult<Namespace> {
        let account = tenant.account.id;
        let query = Query::Namespace { account, name: name.to_owned() };
        let routed = self.call_namespaces(tenant.account, query, context).await?;
        let outcome = routed.reply.outcome.map_err(|refusal| namespace_error(refusal, name));
        outcome?.into_namespace().map_err(|other| unexpected(&other))
    }

    /// Returns a page of the namespaces that a key covers; the key's list is short and sorted.
    async fn list_allowed(
        &self,
        tenant: TenantContext<'_>,
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
                Err(error) if error.code == Code::NamespaceNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok((found, false))
    }
}

/// Converts an error about one namespace. An account that its namespaces shard does not know (yet, or any more) has
/// none.
fn namespace_error(refusal: CommandError, name: &str) -> ApiError {
    match refusal {
        CommandError::NamespaceNotFound => ApiError::namespace_not_found(name),
        other => ApiError::from(other),
    }
}
