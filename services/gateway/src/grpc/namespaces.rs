//! `NamespacesService`.

use holdfast_api::CreateNamespace;
use holdfast_api::v1::convert;
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, GrpcServices, status};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::namespaces_service_server::NamespacesService for GrpcServices {
    async fn create_namespace(&self, request: Request<v1::CreateNamespaceRequest>) -> RpcResult<v1::Namespace> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let durability = convert::parse_durability(message.durability).map_err(status)?;
        let request = CreateNamespace { name: message.name, description: Some(message.description), durability };
        let namespace = self.service.create_namespace(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(convert::namespace(namespace)))
    }

    async fn list_namespaces(
        &self,
        request: Request<v1::ListNamespacesRequest>,
    ) -> RpcResult<v1::ListNamespacesResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let page = convert::page_request(message.page_size, message.page_token);
        let page = self.service.list_namespaces(&caller, &context, page).await.map_err(status)?;
        Ok(Response::new(v1::ListNamespacesResponse {
            namespaces: page.items.into_iter().map(convert::namespace).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    async fn get_namespace(&self, request: Request<v1::GetNamespaceRequest>) -> RpcResult<v1::Namespace> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let namespace = self.service.get_namespace(&caller, &context, &message.name).await.map_err(status)?;
        Ok(Response::new(convert::namespace(namespace)))
    }

    async fn update_namespace(&self, request: Request<v1::UpdateNamespaceRequest>) -> RpcResult<v1::Namespace> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::UpdateNamespaceRequest { name, description } = message;
        let updated = self.service.update_namespace(&caller, &context, &name, description).await;
        Ok(Response::new(convert::namespace(updated.map_err(status)?)))
    }

    async fn delete_namespace(
        &self,
        request: Request<v1::DeleteNamespaceRequest>,
    ) -> RpcResult<v1::DeleteNamespaceResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let id = (!message.id.is_empty()).then_some(message.id.as_str());
        self.service.delete_namespace(&caller, &context, &message.name, id).await.map_err(status)?;
        Ok(Response::new(v1::DeleteNamespaceResponse {}))
    }
}
