//! `LocksService`.

use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{Call, GrpcDoor, ask_locks, show, status, watch};
use crate::service::{ListLocks, ResetAnswer};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::locks_service_server::LocksService for GrpcDoor {
    type WatchStream = watch::WatchStream;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        watch::watch(&self.service, request).await
    }

    async fn acquire_lock(&self, request: Request<v1::AcquireLockRequest>) -> Answer<v1::AcquireLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let request = ask_locks::acquire(message).map_err(status)?;
        let answer = self.service.acquire_lock(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(show::acquired(answer)))
    }

    async fn release_lock(&self, request: Request<v1::ReleaseLockRequest>) -> Answer<v1::ReleaseLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let request = ask_locks::release(message).map_err(status)?;
        let answer = self.service.release_lock(&caller, &context, request).await.map_err(status)?;
        let lock = Some(show::lock(answer.lock));
        Ok(Response::new(v1::ReleaseLockResponse { released: answer.released, lock }))
    }

    async fn get_lock(&self, request: Request<v1::GetLockRequest>) -> Answer<v1::GetLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let named = (message.name, message.path, message.whole_namespace);
        let lock = ask_locks::lock_name(named).map_err(status)?;
        let lock = self.service.get_lock(&caller, &context, &message.namespace, &lock).await.map_err(status)?;
        Ok(Response::new(v1::GetLockResponse { lock: Some(show::lock(lock)) }))
    }

    async fn delete_lock(&self, request: Request<v1::DeleteLockRequest>) -> Answer<v1::DeleteLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let named = (message.name, message.path, message.whole_namespace);
        let lock = ask_locks::lock_name(named).map_err(status)?;
        self.service.delete_lock(&caller, &context, &message.namespace, &lock).await.map_err(status)?;
        Ok(Response::new(v1::DeleteLockResponse {}))
    }

    async fn check_lock(&self, request: Request<v1::CheckLockRequest>) -> Answer<v1::CheckLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let named = (message.name, message.path, message.whole_namespace);
        let lock = ask_locks::lock_name(named).map_err(status)?;
        let (namespace, token) = (&message.namespace, message.fencing_token);
        let answer = self.service.check_lock(&caller, &context, namespace, &lock, token).await.map_err(status)?;
        let lock = Some(show::lock(answer.lock));
        Ok(Response::new(v1::CheckLockResponse { current: answer.current, lock }))
    }

    async fn list_locks(&self, request: Request<v1::ListLocksRequest>) -> Answer<v1::ListLocksResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let page = show::page(message.page_size, message.page_token);
        let request = ListLocks { namespace: message.namespace, prefix: message.prefix, page };
        let page = self.service.list_locks(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ListLocksResponse {
            locks: page.items.into_iter().map(show::lock).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    async fn acquire_locks(&self, request: Request<v1::AcquireLocksRequest>) -> Answer<v1::AcquireLocksResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let request = ask_locks::acquire_set(message).map_err(status)?;
        let answer = self.service.acquire_locks(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(show::acquired_set(answer)))
    }

    async fn release_locks(&self, request: Request<v1::ReleaseLocksRequest>) -> Answer<v1::ReleaseLocksResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let request = ask_locks::release_set(message);
        let answer = self.service.release_locks(&caller, &context, request).await.map_err(status)?;
        let locks = answer.locks.into_iter().map(show::lock).collect();
        Ok(Response::new(v1::ReleaseLocksResponse { released: answer.released, locks }))
    }

    async fn reset_namespace(&self, request: Request<v1::ResetNamespaceRequest>) -> Answer<v1::ResetNamespaceResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let request = ask_locks::reset(message).map_err(status)?;
        let answer = self.service.reset_namespace(&caller, &context, request).await.map_err(status)?;
        let ResetAnswer { removed_holds, removed_waiters } = answer;
        Ok(Response::new(v1::ResetNamespaceResponse { removed_holds, removed_waiters }))
    }
}
