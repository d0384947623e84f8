//! The gRPC frontend: the same operations over the same service, with server reflection and the health service.

mod accounts;
mod barriers;
mod call;
mod instrument;
mod latches;
mod locks;
mod methods;
mod namespaces;
mod pools;
mod semaphores;
mod sessions;
mod status;
mod watch;

use axum::Router;
use holdfast_api::validate::{MAX_BODY_BYTES, MAX_LOCK_INFO_BYTES};
use holdfast_backend::Service;
use holdfast_proto::v1::accounts_service_server::AccountsServiceServer;
use holdfast_proto::v1::barriers_service_server::BarriersServiceServer;
use holdfast_proto::v1::latches_service_server::LatchesServiceServer;
use holdfast_proto::v1::locks_service_server::LocksServiceServer;
use holdfast_proto::v1::namespaces_service_server::NamespacesServiceServer;
use holdfast_proto::v1::pools_service_server::PoolsServiceServer;
use holdfast_proto::v1::semaphores_service_server::SemaphoresServiceServer;
use holdfast_proto::v1::sessions_service_server::SessionsServiceServer;
use holdfast_proto::{DLOCKS_FILE_DESCRIPTOR_SET, V1_FILE_DESCRIPTOR_SET};
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use self::instrument::GrpcProtocol;
use crate::call_layer::CallLayer;

pub(crate) use call::{AuthenticatedCall, context, count_request};
pub(crate) use methods::Methods;
pub(crate) use status::status;

/// The path of the method whose stream of requests is a session's connection.
pub(crate) const SESSION_STREAM: &str = "/holdfast.v1.SessionsService/Connect";

/// The operations of one service over gRPC.
#[derive(Clone)]
pub(crate) struct GrpcServices {
    service: Service,
}

/// The descriptors are unreadable: a fault of the build.
#[derive(Debug, thiserror::Error)]
#[error("the descriptors of the API cannot be read: {0}")]
pub struct DescriptorsError(String);

impl DescriptorsError {
    fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Returns every gRPC service of the gateway: the public API, the `compatible` frontends, health and reflection.
pub(crate) fn routes(
    service: &Service,
    compatible: Routes,
    health: HealthServer<impl Health>,
) -> Result<Router, DescriptorsError> {
    let services = GrpcServices { service: service.clone() };
    let routes = compatible
        .add_service(AccountsServiceServer::new(services.clone()).max_decoding_message_size(MAX_BODY_BYTES))
        .add_service(NamespacesServiceServer::new(services.clone()).max_decoding_message_size(MAX_BODY_BYTES))
        .add_service(LocksServiceServer::new(services.clone()).max_decoding_message_size(MAX_BODY_BYTES))
        .add_service(LatchesServiceServer::new(services.clone()).max_decoding_message_size(MAX_BODY_BYTES))
        .add_service(PoolsServiceServer::new(services.clone()).max_decoding_message_size(MAX_BODY_BYTES))
        .add_service(SemaphoresServiceServer::new(services.clone()).max_decoding_message_size(MAX_BODY_BYTES))
        .add_service(BarriersServiceServer::new(services.clone()).max_decoding_message_size(MAX_BODY_BYTES))
        .add_service(SessionsServiceServer::new(services).max_decoding_message_size(MAX_LOCK_INFO_BYTES))
        .add_service(health.max_decoding_message_size(MAX_BODY_BYTES))
        .add_service(reflection().build_v1().map_err(DescriptorsError::new)?)
        .add_service(reflection().build_v1alpha().map_err(DescriptorsError::new)?);
    Ok(with_middleware(routes, Methods::from_descriptors()?))
}

fn with_middleware(routes: Routes, methods: Methods) -> Router {
    routes.into_axum_router().layer(CallLayer::new(GrpcProtocol::new(methods)))
}

fn reflection<'a>() -> tonic_reflection::server::Builder<'a> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(V1_FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(DLOCKS_FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
