//! The compatible frontend for dlocks clients: the same service through their messages.
//!
//! The account comes from the API key. Only if the operator enables it may a caller name its account in the metadata
//! `account-id` instead: every caller that reaches the port is then trusted with every account.

mod account;
mod convert;

use holdfast_api::validate::MAX_BODY_BYTES;
use holdfast_api::{
    AcquireLock, ApiResult, CreateNamespace, LockName, NamespaceView, OwnerFields, PageRequest, ReleaseLock, Terms,
};
use holdfast_backend::{AuthContext, CallContext, Service};
use holdfast_proto::dlocks as d;
use holdfast_proto::dlocks::locks_service_api_server::{LocksServiceApi, LocksServiceApiServer};
use holdfast_types::{Durability, Mode};
use tonic::{Request, Response, Status};

use crate::grpc::{context, count_request, status};
use crate::head::bearer;

/// Rows per query when a dlocks client gets all of them in one response.
const PAGE_SIZE: u32 = 1_000;

/// The frontend of one service.
#[derive(Clone)]
pub(crate) struct DlocksService {
    service: Service,
    account_metadata: bool,
}

type RpcResult<T> = Result<Response<T>, Status>;

/// Returns the frontend. With `account_metadata`, the metadata `account-id` identifies callers without an API key.
pub(crate) fn server(service: Service, account_metadata: bool) -> LocksServiceApiServer<DlocksService> {
    let server = LocksServiceApiServer::new(DlocksService { service, account_metadata });
    server.max_decoding_message_size(MAX_BODY_BYTES)
}

impl DlocksService {
    async fn check<T>(&self, request: Request<T>) -> Result<(AuthContext, CallContext, T), Status> {
        let (caller, context) = self.identify(&request).await.map_err(status)?;
        Ok((caller, context, request.into_inner()))
    }

    async fn identify<T>(&self, request: &Request<T>) -> ApiResult<(AuthContext, CallContext)> {
        let context = context(request)?;
        let bearer = bearer(request.metadata().as_ref())?;
        let named = account::from_metadata(request.metadata(), self.account_metadata, bearer.is_some())?;
        let caller = match named {
            Some(account) => self.service.authenticate_trusted(&account, &context).await?,
            None => self.service.authenticate(bearer, &context).await?,
        };
        count_request(&self.service, request, &caller, &context)?;
        Ok((caller, context))
    }

    /// Returns all namespaces: their number is limited per account.
    async fn all_namespaces(&self, caller: &AuthContext, context: &CallContext) -> ApiResult<Vec<NamespaceView>> {
        let mut namespaces = Vec::new();
        let mut page = PageRequest { page_size: Some(PAGE_SIZE), page_token: None };
        loop {
            let found = self.service.list_namespaces(caller, context, page.clone()).await?;
            namespaces.extend(found.items);
            page.page_token = found.next_page_token;
            if page.page_token.is_none() {
                return Ok(namespaces);
            }
        }
    }
}

#[tonic::async_trait]
impl LocksServiceApi for DlocksService {
    async fn create_namespace(
        &self,
        request: Request<d::CreateNamespaceRequest>,
    ) -> RpcResult<d::CreateNamespaceResponse> {
        let (caller, context, message) = self.check(request).await?;
        let (description, durability) = (Some(message.description), Durability::Full);
        let request = CreateNamespace { name: message.name, description, durability };
        let created = self.service.create_namespace(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(d::CreateNamespaceResponse { namespace: Some(convert::namespace(created)) }))
    }

    async fn list_namespaces(
        &self,
        request: Request<d::ListNamespacesRequest>,
    ) -> RpcResult<d::ListNamespacesResponse> {
        let (caller, context, _) = self.check(request).await?;
        let found = self.all_namespaces(&caller, &context).await.map_err(status)?;
        let namespaces = found.into_iter().map(convert::namespace).collect();
        Ok(Response::new(d::ListNamespacesResponse { namespaces }))
    }

    async fn get_namespace(&self, request: Request<d::GetNamespaceRequest>) -> RpcResult<d::GetNamespaceResponse> {
        let (caller, context, message) = self.check(request).await?;
        let found = self.service.get_namespace(&caller, &context, &message.namespace_name).await.map_err(status)?;
        Ok(Response::new(d::GetNamespaceResponse { namespace: Some(convert::namespace(found)) }))
    }

    async fn update_namespace(
        &self,
        request: Request<d::UpdateNamespaceRequest>,
    ) -> RpcResult<d::UpdateNamespaceResponse> {
        let (caller, context, message) = self.check(request).await?;
        let d::UpdateNamespaceRequest { namespace_name, description } = message;
        let updated = self.service.update_namespace(&caller, &context, &namespace_name, Some(description)).await;
        Ok(Response::new(d::UpdateNamespaceResponse { namespace: Some(convert::namespace(updated.map_err(status)?)) }))
    }

    async fn delete_namespace(
        &self,
        request: Request<d::DeleteNamespaceRequest>,
    ) -> RpcResult<d::DeleteNamespaceResponse> {
        let (caller, context, message) = self.check(request).await?;
        self.service.delete_namespace(&caller, &context, &message.namespace_name, None).await.map_err(status)?;
        Ok(Response::new(d::DeleteNamespaceResponse {}))
    }

    async fn acquire_lock(&self, request: Request<d::AcquireLockRequest>) -> RpcResult<d::AcquireLockResponse> {
        let (caller, context, message) = self.check(request).await?;
        let answer = self.service.acquire_lock(&caller, &context, acquire(message)).await.map_err(status)?;
        let lock = Some(convert::lock(answer.lock));
        Ok(Response::new(d::AcquireLockResponse { lock, success: answer.success }))
    }

    async fn release_lock(&self, request: Request<d::ReleaseLockRequest>) -> RpcResult<d::ReleaseLockResponse> {
        let (caller, context, message) = self.check(request).await?;
        let request = ReleaseLock {
            namespace: message.namespace_name,
            lock: LockName::Flat(message.lock_name),
            owner: OwnerFields::process(message.process_id),
            fencing_token: None,
        };
        let answer = self.service.release_lock(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(d::ReleaseLockResponse { lock: Some(convert::lock(answer.lock)) }))
    }

    async fn get_lock(&self, request: Request<d::GetLockRequest>) -> RpcResult<d::GetLockResponse> {
        let (caller, context, message) = self.check(request).await?;
        let (namespace, name) = (&message.namespace_name, &LockName::Flat(message.lock_name));
        let lock = self.service.get_lock(&caller, &context, namespace, name).await.map_err(status)?;
        Ok(Response::new(d::GetLockResponse { lock: Some(convert::lock(lock)) }))
    }

    async fn delete_lock(&self, request: Request<d::DeleteLockRequest>) -> RpcResult<d::DeleteLockResponse> {
        let (caller, context, message) = self.check(request).await?;
        let (namespace, name) = (&message.namespace_name, &LockName::Flat(message.lock_name));
        self.service.delete_lock(&caller, &context, namespace, name).await.map_err(status)?;
        Ok(Response::new(d::DeleteLockResponse {}))
    }
}

/// Passes the instant on unchanged, so that the client reads back what it wrote.
fn acquire(message: d::AcquireLockRequest) -> AcquireLock {
    AcquireLock {
        namespace: message.namespace_name,
        lock: LockName::Flat(message.lock_name),
        owner: OwnerFields::process(message.process_id),
        mode: if message.write_lock { Mode::Write } else { Mode::Read },
        terms: Terms { dlocks_expires_at_ns: Some(message.expires_at), ..Terms::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquire_keeps_its_instant_to_the_nanosecond_and_is_for_reading_unless_it_says_so() {
        let message = d::AcquireLockRequest { expires_at: 1_900_000_000_123_456_789, ..Default::default() };
        let reading = acquire(message.clone());
        assert_eq!(reading.mode, Mode::Read);
        assert_eq!(reading.terms.dlocks_expires_at_ns, Some(1_900_000_000_123_456_789));
        assert_eq!((reading.terms.ttl_ms, reading.terms.expires_at), (None, None));
        assert_eq!(acquire(d::AcquireLockRequest { write_lock: true, ..message }).mode, Mode::Write);
    }
}
