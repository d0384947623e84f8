//! `LocksService`.

use holdfast_api::v1::{asks, conditions, convert, lock_requests, things, waits};
use holdfast_api::{ListLocks, ResetAnswer};
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, GrpcServices, status, watch};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::locks_service_server::LocksService for GrpcServices {
    type WatchStream = watch::WatchStream;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> RpcResult<Self::WatchStream> {
        watch::watch(&self.service, request).await
    }

    async fn acquire_lock(&self, request: Request<v1::AcquireLockRequest>) -> RpcResult<v1::AcquireLockResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = lock_requests::acquire(message).map_err(status)?;
        let answer = self.service.acquire_lock(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(convert::acquired(answer)))
    }

    async fn release_lock(&self, request: Request<v1::ReleaseLockRequest>) -> RpcResult<v1::ReleaseLockResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = lock_requests::release(message).map_err(status)?;
        let answer = self.service.release_lock(&caller, &context, request).await.map_err(status)?;
        let lock = Some(convert::lock(answer.lock));
        Ok(Response::new(v1::ReleaseLockResponse { released: answer.released, lock }))
    }

    async fn get_lock(&self, request: Request<v1::GetLockRequest>) -> RpcResult<v1::GetLockResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let named = (message.name, message.path, message.whole_namespace);
        let lock = lock_requests::lock_name(named).map_err(status)?;
        let lock = self.service.get_lock(&caller, &context, &message.namespace, &lock).await.map_err(status)?;
        Ok(Response::new(v1::GetLockResponse { lock: Some(convert::lock(lock)) }))
    }

    async fn delete_lock(&self, request: Request<v1::DeleteLockRequest>) -> RpcResult<v1::DeleteLockResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let named = (message.name, message.path, message.whole_namespace);
        let lock = lock_requests::lock_name(named).map_err(status)?;
        self.service.delete_lock(&caller, &context, &message.namespace, &lock).await.map_err(status)?;
        Ok(Response::new(v1::DeleteLockResponse {}))
    }

    async fn check_lock(&self, request: Request<v1::CheckLockRequest>) -> RpcResult<v1::CheckLockResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let named = (message.name, message.path, message.whole_namespace);
        let lock = lock_requests::lock_name(named).map_err(status)?;
        let (namespace, token) = (&message.namespace, message.fencing_token);
        let answer = self.service.check_lock(&caller, &context, namespace, &lock, token).await.map_err(status)?;
        let lock = Some(convert::lock(answer.lock));
        Ok(Response::new(v1::CheckLockResponse { current: answer.current, lock }))
    }

    async fn list_locks(&self, request: Request<v1::ListLocksRequest>) -> RpcResult<v1::ListLocksResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let page = convert::page_request(message.page_size, message.page_token);
        let request = ListLocks { namespace: message.namespace, prefix: message.prefix, page };
        let page = self.service.list_locks(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ListLocksResponse {
            locks: page.items.into_iter().map(convert::lock).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    async fn acquire_locks(&self, request: Request<v1::AcquireLocksRequest>) -> RpcResult<v1::AcquireLocksResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = lock_requests::acquire_set(message).map_err(status)?;
        let answer = self.service.acquire_locks(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(convert::acquired_set(answer)))
    }

    async fn release_locks(&self, request: Request<v1::ReleaseLocksRequest>) -> RpcResult<v1::ReleaseLocksResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = lock_requests::release_set(message);
        let answer = self.service.release_locks(&caller, &context, request).await.map_err(status)?;
        let locks = answer.locks.into_iter().map(convert::lock).collect();
        Ok(Response::new(v1::ReleaseLocksResponse { released: answer.released, locks }))
    }

    async fn ask_release(&self, request: Request<v1::AskReleaseRequest>) -> RpcResult<v1::AskReleaseResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = asks::ask_lock(message).map_err(status)?;
        let answer = self.service.ask_lock(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(asks::asked_lock(answer)))
    }

    async fn r#await(&self, request: Request<v1::AwaitRequest>) -> RpcResult<v1::AwaitResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = conditions::awaits(message).map_err(status)?;
        let answer = self.service.await_condition(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(conditions::awaited(answer)))
    }

    async fn signal(&self, request: Request<v1::SignalRequest>) -> RpcResult<v1::SignalResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = conditions::signal(message).map_err(status)?;
        let answer = self.service.signal_condition(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(conditions::signalled(answer)))
    }

    async fn list_conditions(
        &self,
        request: Request<v1::ListConditionsRequest>,
    ) -> RpcResult<v1::ListConditionsResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::ListConditionsRequest { namespace, prefix, page_size, page_token } = message;
        let request = things::list(namespace, prefix, page_size, page_token);
        let page = self.service.list_conditions(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ListConditionsResponse {
            conditions: page.items.into_iter().map(conditions::info).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    async fn list_waits(&self, request: Request<v1::ListWaitsRequest>) -> RpcResult<v1::ListWaitsResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let page = self.service.list_waits(&caller, &context, waits::list(message)).await.map_err(status)?;
        Ok(Response::new(v1::ListWaitsResponse {
            waits: page.items.into_iter().map(waits::info).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    async fn reset_namespace(
        &self,
        request: Request<v1::ResetNamespaceRequest>,
    ) -> RpcResult<v1::ResetNamespaceResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = lock_requests::reset(message).map_err(status)?;
        let answer = self.service.reset_namespace(&caller, &context, request).await.map_err(status)?;
        let ResetAnswer { removed_holds, removed_waiters } = answer;
        Ok(Response::new(v1::ResetNamespaceResponse { removed_holds, removed_waiters }))
    }
}
