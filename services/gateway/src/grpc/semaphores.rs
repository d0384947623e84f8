//! `SemaphoresService`.

use holdfast_api::v1::{asks, semaphores, things};
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, GrpcServices, status};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::semaphores_service_server::SemaphoresService for GrpcServices {
    async fn configure_semaphore(
        &self,
        request: Request<v1::ConfigureSemaphoreRequest>,
    ) -> RpcResult<v1::ConfigureSemaphoreResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = semaphores::configure(message).map_err(status)?;
        let semaphore = self.service.configure_semaphore(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ConfigureSemaphoreResponse { semaphore: Some(semaphores::info(semaphore)) }))
    }

    async fn acquire_permits(
        &self,
        request: Request<v1::AcquirePermitsRequest>,
    ) -> RpcResult<v1::AcquirePermitsResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = semaphores::acquire(message).map_err(status)?;
        let answer = self.service.acquire_permits(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(semaphores::acquired(answer)))
    }

    async fn release_permits(
        &self,
        request: Request<v1::ReleasePermitsRequest>,
    ) -> RpcResult<v1::ReleasePermitsResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = semaphores::release(message).map_err(status)?;
        let answer = self.service.release_permits(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(semaphores::released(answer)))
    }

    async fn get_semaphore(&self, request: Request<v1::GetSemaphoreRequest>) -> RpcResult<v1::GetSemaphoreResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = semaphores::get(message).map_err(status)?;
        let answer = self.service.get_semaphore(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(semaphores::holders(answer)))
    }

    async fn check_permits(&self, request: Request<v1::CheckPermitsRequest>) -> RpcResult<v1::CheckPermitsResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let (thing, token) = semaphores::check(message).map_err(status)?;
        let answer = self.service.check_permits(&caller, &context, &thing, token).await.map_err(status)?;
        Ok(Response::new(semaphores::checked(answer)))
    }

    async fn delete_semaphore(
        &self,
        request: Request<v1::DeleteSemaphoreRequest>,
    ) -> RpcResult<v1::DeleteSemaphoreResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let thing = semaphores::delete(message).map_err(status)?;
        self.service.delete_semaphore(&caller, &context, &thing).await.map_err(status)?;
        Ok(Response::new(v1::DeleteSemaphoreResponse {}))
    }

    async fn ask_release(
        &self,
        request: Request<v1::AskSemaphoreReleaseRequest>,
    ) -> RpcResult<v1::AskSemaphoreReleaseResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = asks::ask_semaphore(message).map_err(status)?;
        let answer = self.service.ask_semaphore(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(asks::asked_semaphore(answer)))
    }

    async fn list_semaphores(
        &self,
        request: Request<v1::ListSemaphoresRequest>,
    ) -> RpcResult<v1::ListSemaphoresResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::ListSemaphoresRequest { namespace, prefix, page_size, page_token } = message;
        let request = things::list(namespace, prefix, page_size, page_token);
        let page = self.service.list_semaphores(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ListSemaphoresResponse {
            semaphores: page.items.into_iter().map(semaphores::info).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }
}
