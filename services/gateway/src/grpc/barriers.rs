//! `BarriersService`.

use holdfast_api::v1::{barriers, things};
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, GrpcServices, status};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::barriers_service_server::BarriersService for GrpcServices {
    async fn configure_barrier(
        &self,
        request: Request<v1::ConfigureBarrierRequest>,
    ) -> RpcResult<v1::ConfigureBarrierResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = barriers::configure(message).map_err(status)?;
        let barrier = self.service.configure_barrier(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ConfigureBarrierResponse { barrier: Some(barriers::info(barrier)) }))
    }

    async fn arrive_at_barrier(&self, request: Request<v1::ArriveAtBarrierRequest>) -> RpcResult<v1::BarrierAnswer> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = barriers::arrive(message).map_err(status)?;
        let answer = self.service.arrive_at_barrier(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(barriers::answer(answer)))
    }

    async fn wait_at_barrier(&self, request: Request<v1::WaitAtBarrierRequest>) -> RpcResult<v1::BarrierAnswer> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = barriers::wait(message).map_err(status)?;
        let answer = self.service.wait_at_barrier(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(barriers::answer(answer)))
    }

    async fn leave_barrier(&self, request: Request<v1::LeaveBarrierRequest>) -> RpcResult<v1::BarrierAnswer> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = barriers::leave(message).map_err(status)?;
        let answer = self.service.leave_barrier(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(barriers::answer(answer)))
    }

    async fn get_barrier(&self, request: Request<v1::GetBarrierRequest>) -> RpcResult<v1::GetBarrierResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let thing = barriers::get(message).map_err(status)?;
        let answer = self.service.get_barrier(&caller, &context, &thing).await.map_err(status)?;
        Ok(Response::new(barriers::arrivals(answer)))
    }

    async fn delete_barrier(&self, request: Request<v1::DeleteBarrierRequest>) -> RpcResult<v1::DeleteBarrierResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let thing = barriers::delete(message).map_err(status)?;
        self.service.delete_barrier(&caller, &context, &thing).await.map_err(status)?;
        Ok(Response::new(v1::DeleteBarrierResponse {}))
    }

    async fn list_barriers(&self, request: Request<v1::ListBarriersRequest>) -> RpcResult<v1::ListBarriersResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::ListBarriersRequest { namespace, prefix, page_size, page_token } = message;
        let request = things::list(namespace, prefix, page_size, page_token);
        let page = self.service.list_barriers(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ListBarriersResponse {
            barriers: page.items.into_iter().map(barriers::info).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }
}
