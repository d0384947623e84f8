//! `LatchesService`.

use holdfast_api::v1::{latches, things};
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, GrpcServices, status};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::latches_service_server::LatchesService for GrpcServices {
    async fn create_latch(&self, request: Request<v1::CreateLatchRequest>) -> RpcResult<v1::CreateLatchResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = latches::create(message).map_err(status)?;
        let answer = self.service.create_latch(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(latches::created(answer)))
    }

    async fn count_down(&self, request: Request<v1::CountDownRequest>) -> RpcResult<v1::CountDownResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = latches::count_down(message).map_err(status)?;
        let answer = self.service.count_down(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(latches::counted(answer)))
    }

    async fn set_latch_total(
        &self,
        request: Request<v1::SetLatchTotalRequest>,
    ) -> RpcResult<v1::SetLatchTotalResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = latches::set_total(message).map_err(status)?;
        let answer = self.service.set_latch_total(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(latches::total_set(answer)))
    }

    async fn wait_for_latch(&self, request: Request<v1::WaitForLatchRequest>) -> RpcResult<v1::WaitForLatchResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = latches::wait(message).map_err(status)?;
        let answer = self.service.wait_for_latch(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(latches::waited(answer)))
    }

    async fn get_latch(&self, request: Request<v1::GetLatchRequest>) -> RpcResult<v1::GetLatchResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = latches::get(message).map_err(status)?;
        let answer = self.service.get_latch(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(latches::done(answer)))
    }

    async fn delete_latch(&self, request: Request<v1::DeleteLatchRequest>) -> RpcResult<v1::DeleteLatchResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = latches::delete(message).map_err(status)?;
        self.service.delete_latch(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::DeleteLatchResponse {}))
    }

    async fn list_latches(&self, request: Request<v1::ListLatchesRequest>) -> RpcResult<v1::ListLatchesResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::ListLatchesRequest { namespace, prefix, page_size, page_token } = message;
        let request = things::list(namespace, prefix, page_size, page_token);
        let page = self.service.list_latches(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ListLatchesResponse {
            latches: page.items.into_iter().map(latches::info).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }
}
