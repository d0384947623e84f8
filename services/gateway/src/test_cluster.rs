//! Test peers: the real service against one node that replies over a real socket from the real state machines. Only
//! consensus and storage are missing.

use std::sync::Arc;

use holdfast_auth::{ClusterSecret, OperatorToken, ServiceVerifier};
use holdfast_backend::{AuthContext, Backend, BackendOptions, CallContext, Service};
use holdfast_cluster::ClusterConfig;
use holdfast_rpc::Acceptor;
use holdfast_testkit::fake_node::serve_frames;
use tokio::net::TcpListener;

mod node;

use node::TestNode;

pub(crate) struct TestCluster {
    pub(crate) service: Service,
    /// The operator's text after `Bearer `.
    pub(crate) operator: String,
}

/// An account of the test cluster.
#[derive(Clone)]
pub(crate) struct TestTenant {
    pub(crate) account_id: String,
    /// The text after `Bearer ` of a key with every scope.
    pub(crate) api_key: String,
}

impl TestCluster {
    pub(crate) async fn start() -> Self {
        Self::with_gateway_address(None).await
    }

    /// Starts with a node whose gateway has this address.
    pub(crate) async fn with_gateway_address(gateway_address: Option<&str>) -> Self {
        let secret = ClusterSecret::generate().unwrap();
        let operator = OperatorToken::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut config = ClusterConfig::generate(vec![("nd_1".to_owned(), address)], 1, 1).unwrap();
        config.nodes[0].gateway_address = gateway_address.map(str::to_owned);
        let acceptor =
            Acceptor::new(Arc::new(ServiceVerifier::new(&secret)), Arc::default()).with(TestNode::new(&config));
        serve_frames(listener, acceptor);
        let service = Backend::start(BackendOptions::new(config, secret, &operator, "gateway test")).unwrap();
        Self { service, operator: operator.reveal().expose().to_owned() }
    }

    pub(crate) async fn operator_context(&self) -> AuthContext {
        self.service.authenticate(Some(&self.operator), &CallContext::new("test")).await.unwrap()
    }

    /// Creates an account with a key of every scope.
    pub(crate) async fn tenant(&self, email: &str) -> TestTenant {
        let (caller, context) = (self.operator_context().await, CallContext::new("test"));
        let request = holdfast_api::CreateAccount {
            email: email.to_owned(),
            full_name: "Test".to_owned(),
            max_number_of_namespaces: Some(2),
        };
        let account = self.service.create_account(&caller, &context, request).await.unwrap();
        let key = self.service.create_api_key(&caller, &context, Some(&account.id), Default::default()).await.unwrap();
        TestTenant { account_id: account.id, api_key: key.api_key }
    }
}
