//! `PoolsService`.

use holdfast_api::v1::{asks, pools, things};
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, GrpcServices, status};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::pools_service_server::PoolsService for GrpcServices {
    async fn configure_pool(&self, request: Request<v1::ConfigurePoolRequest>) -> RpcResult<v1::ConfigurePoolResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = pools::configure(message).map_err(status)?;
        let pool = self.service.configure_pool(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ConfigurePoolResponse { pool: Some(pools::info(pool)) }))
    }

    async fn change_pool(&self, request: Request<v1::ChangePoolRequest>) -> RpcResult<v1::ChangePoolResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = pools::change(message).map_err(status)?;
        let pool = self.service.change_pool(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ChangePoolResponse { pool: Some(pools::info(pool)) }))
    }

    async fn take_members(&self, request: Request<v1::TakeMembersRequest>) -> RpcResult<v1::TakeMembersResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = pools::take(message).map_err(status)?;
        let answer = self.service.take_members(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(pools::taken(answer)))
    }

    async fn return_members(&self, request: Request<v1::ReturnMembersRequest>) -> RpcResult<v1::ReturnMembersResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = pools::release(message).map_err(status)?;
        let answer = self.service.return_members(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(pools::returned(answer)))
    }

    async fn get_pool(&self, request: Request<v1::GetPoolRequest>) -> RpcResult<v1::GetPoolResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = pools::get(message).map_err(status)?;
        let answer = self.service.get_pool(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(pools::members(answer)))
    }

    async fn check_members(&self, request: Request<v1::CheckMembersRequest>) -> RpcResult<v1::CheckMembersResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let (thing, token) = pools::check(message).map_err(status)?;
        let answer = self.service.check_members(&caller, &context, &thing, token).await.map_err(status)?;
        Ok(Response::new(pools::checked(answer)))
    }

    async fn delete_pool(&self, request: Request<v1::DeletePoolRequest>) -> RpcResult<v1::DeletePoolResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let thing = pools::delete(message).map_err(status)?;
        self.service.delete_pool(&caller, &context, &thing).await.map_err(status)?;
        Ok(Response::new(v1::DeletePoolResponse {}))
    }

    async fn ask_release(&self, request: Request<v1::AskPoolReleaseRequest>) -> RpcResult<v1::AskPoolReleaseResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let request = asks::ask_pool(message).map_err(status)?;
        let answer = self.service.ask_pool(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(asks::asked_pool(answer)))
    }

    async fn list_pools(&self, request: Request<v1::ListPoolsRequest>) -> RpcResult<v1::ListPoolsResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::ListPoolsRequest { namespace, prefix, page_size, page_token } = message;
        let request = things::list(namespace, prefix, page_size, page_token);
        let page = self.service.list_pools(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ListPoolsResponse {
            pools: page.items.into_iter().map(pools::info).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }
}
