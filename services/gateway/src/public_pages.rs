//! Requests that need no credential: pages about the process and the API, public keys, and the methods of gRPC's own
//! services. They are limited by the address of their caller.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use holdfast_api::ApiResult;
use holdfast_backend::Service;

use crate::connection_limiter::ActivityGuard;
use crate::grpc::status;
use crate::rest::Problem;

/// Returns REST routes with the limit.
pub(crate) fn limit_routes(routes: Router, service: Service) -> Router {
    routes.route_layer(from_fn_with_state(service, limit_page))
}

/// Returns gRPC services with the limit.
pub(crate) fn limit_methods(routes: Router, service: Service) -> Router {
    routes.layer(from_fn_with_state(service, limit_method))
}

/// Returns whether a path is that of a method of the health or the reflection service.
pub(crate) fn is_public_method(path: &str) -> bool {
    path.starts_with("/grpc.")
}

async fn limit_page(State(service): State<Service>, request: Request, next: Next) -> Result<Response, Problem> {
    admit(&service, &request)?;
    Ok(next.run(request).await)
}

async fn limit_method(State(service): State<Service>, request: Request, next: Next) -> Response {
    match admit(&service, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => status(error).into_http(),
    }
}

/// Counts a request. The connection of a stranger that makes too many is closed.
fn admit(service: &Service, request: &Request) -> ApiResult<()> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    service.admit_public_page(peer).inspect_err(|_| {
        if let Some(activity) = request.extensions().get::<ActivityGuard>() {
            activity.refuse_stranger();
        }
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::any;
    use tonic::{Code, Status};
    use tower::ServiceExt;

    use super::*;
    use crate::test_cluster::TestCluster;

    #[tokio::test]
    async fn methods_without_a_credential_are_limited_by_address() {
        let cluster = TestCluster::start().await;
        let served = Router::new().route("/grpc.health.v1.Health/Check", any(|| async {}));
        let routes = limit_methods(served, cluster.service.clone());
        let check = async |address: [u8; 4]| {
            let mut request = Request::get("/grpc.health.v1.Health/Check").body(Body::empty()).unwrap();
            request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 5))));
            let response = routes.clone().oneshot(request).await.unwrap();
            Status::from_header_map(response.headers()).map(|status| status.code())
        };
        let refused = loop {
            if let Some(code) = check([192, 0, 2, 1]).await {
                break code;
            }
        };
        assert_eq!(refused, Code::ResourceExhausted);
        assert_eq!(check([192, 0, 2, 2]).await, None, "another address");
    }

    #[test]
    fn only_the_methods_of_grpc_itself_need_no_credential() {
        assert!(is_public_method("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"));
        assert!(!is_public_method("/holdfast.v1.LocksService/GetLock"));
    }
}
