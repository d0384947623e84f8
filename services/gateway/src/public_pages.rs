//! Requests that need no credential: pages about the process and the API, public keys, and the methods of gRPC's own
//! services. They are limited by the address of their caller. Probes are not: those of many processes may come from one
//! address, and a process that answers none is restarted.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use holdfast_api::ApiResult;
use holdfast_backend::Service;

use crate::connection_limiter::ActivityGuard;
use crate::grpc::status;
use crate::rest::problem::Problem;

/// The method of probes.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// Returns REST routes with the limit.
pub(crate) fn limit_routes(routes: Router, service: Service) -> Router {
    routes.route_layer(from_fn_with_state(service, limit_page))
}

/// Returns gRPC services with the limit.
pub(crate) fn limit_methods(routes: Router, service: Service) -> Router {
    routes.layer(from_fn_with_state(service, limit_method))
}

/// Returns whether a path is that of a limited method: one of the health or the reflection service, but no probe.
pub(crate) fn is_limited_method(path: &str) -> bool {
    path.starts_with("/grpc.") && path != HEALTH_CHECK
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
    use crate::rest;
    use crate::rest::health::Probes;
    use crate::test_cluster::TestCluster;

    #[tokio::test]
    async fn methods_without_a_credential_are_limited_by_address() {
        let cluster = TestCluster::start().await;
        let served = Router::new().route("/grpc.health.v1.Health/Watch", any(|| async {}));
        let routes = limit_methods(served, cluster.service.clone());
        let check = async |address: [u8; 4]| {
            let mut request = Request::get("/grpc.health.v1.Health/Watch").body(Body::empty()).unwrap();
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

    #[tokio::test]
    async fn probes_are_answered_where_pages_are_refused() {
        let cluster = TestCluster::start().await;
        let routes = rest::routes(cluster.service.clone(), Probes::none());
        let get = async |path: &str| {
            let mut request = Request::get(path).body(Body::empty()).unwrap();
            request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 5))));
            routes.clone().oneshot(request).await.unwrap().status().as_u16()
        };
        while get("/metrics").await != 429 {}
        assert_eq!((get("/healthz").await, get("/readyz").await), (200, 200));
    }

    #[test]
    fn only_the_methods_of_grpc_itself_are_limited_and_probes_are_not() {
        assert!(is_limited_method("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"));
        assert!(is_limited_method("/grpc.health.v1.Health/Watch"));
        assert!(!is_limited_method("/grpc.health.v1.Health/Check"));
        assert!(!is_limited_method("/holdfast.v1.LocksService/GetLock"));
    }
}
