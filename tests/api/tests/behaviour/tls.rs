//! TLS: towards callers, and between the processes of a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use holdfast_cluster::ClusterConfig;
use holdfast_proto::v1;
use holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient;
use holdfast_testkit::{Program, Secrets, Standalone, free_address, run_dev, run_to_exit, scratch};
use http_body_util::Empty;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tonic::transport::Endpoint;

use crate::support::frontends::grpc::with_key;
use crate::support::{RestClient, wait_until};

/// A set of certificates that the developers' tool made.
struct Certs(PathBuf);

impl Certs {
    fn generate() -> Self {
        let certs = Self(scratch());
        certs.renew();
        certs
    }

    /// New certificates of the same authority.
    fn renew(&self) {
        let ended = run_dev(&["certs", "--out", self.0.to_str().unwrap()]).unwrap();
        assert!(ended.contains("--tls-cert-file"), "{ended}");
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// For callers; with the client's certificate when it is to be shown.
    fn client_config(&self, shows: bool, protocol: &[u8]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let mut config = if shows {
            let cert = CertificateDer::from_pem_file(self.path("client.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(self.path("client-key.pem")).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }

    /// The flags of a process that vouches for itself in a cluster.
    fn cluster_flags(&self) -> Vec<String> {
        let flags = [("cert", "server.pem"), ("key", "server-key.pem"), ("ca", "ca.pem")];
        flags.iter().flat_map(|(flag, file)| [format!("--cluster-tls-{flag}-file"), self.path(file)]).collect()
    }
}

async fn connect(config: &Arc<ClientConfig>, address: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await
}

/// A caller of REST on one connection.
struct TlsClient {
    sender: SendRequest<Empty<Bytes>>,
    address: String,
}

impl TlsClient {
    async fn connect(config: &Arc<ClientConfig>, address: &str) -> Option<Self> {
        let stream = connect(config, address).await.ok()?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        Some(Self { sender, address: address.to_owned() })
    }

    /// The status of a GET; 0 when nothing was answered.
    async fn get(&mut self, path: &str, key: &str) -> u16 {
        let request = http::Request::get(path).header("host", &self.address);
        let request = request.header("authorization", format!("Bearer {key}")).body(Empty::new()).unwrap();
        self.sender.send_request(request).await.map_or(0, |answer| answer.status().as_u16())
    }
}

/// The status of a GET on a connection of its own; 0 when nothing was answered.
async fn get(config: &Arc<ClientConfig>, address: &str, path: &str, key: &str) -> u16 {
    match TlsClient::connect(config, address).await {
        Some(mut caller) => caller.get(path, key).await,
        None => 0,
    }
}

fn start_with_tls(certs: &Certs, flags: &[&str]) -> Standalone {
    let (cert, key) = (certs.path("server.pem"), certs.path("server-key.pem"));
    let own = ["--tls-cert-file", cert.as_str(), "--tls-key-file", key.as_str()];
    Standalone::start(&scratch(), &[&own, flags].concat())
}

#[tokio::test]
async fn every_frontend_is_encrypted_and_nothing_else_is_spoken() {
    let certs = Certs::generate();
    let server = start_with_tls(&certs, &[]);
    let (address, key) = (server.address().to_string(), server.secret("demo.key"));
    let config = certs.client_config(false, b"http/1.1");
    assert_eq!(get(&config, &address, "/v1/namespaces/demo", &key).await, 200);
    assert_eq!(get(&config, &address, "/readyz", "").await, 200);

    let mut request = format!("wss://{address}/v1/namespaces/demo/connect").into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    let stream = connect(&config, &address).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    let open = json!({"type": "open", "seq": 1, "process_id": "p", "ttl_ms": 10_000});
    socket.send(open.to_string().into()).await.unwrap();
    let opened: Value = serde_json::from_str(socket.next().await.unwrap().unwrap().to_text().unwrap()).unwrap();
    assert_eq!(opened["type"], "opened", "{opened}");

    let h2 = certs.client_config(false, b"h2");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let connector = tower::service_fn(move |uri: http::Uri| {
        let h2 = Arc::clone(&h2);
        async move { connect(&h2, uri.authority().unwrap().as_str()).await.map(TokioIo::new) }
    });
    let mut grpc = NamespacesServiceClient::new(endpoint.connect_with_connector(connector).await.unwrap());
    let request = v1::GetNamespaceRequest { name: "demo".to_owned() };
    assert_eq!(grpc.get_namespace(with_key(request, &key)).await.unwrap().into_inner().name, "demo");

    let plain = RestClient::new(server.address(), &key).try_send("GET /readyz", &[], Bytes::new()).await;
    assert!(plain.is_err(), "{plain:?}");
    let stranger = Certs::generate().client_config(false, b"http/1.1");
    assert_eq!(get(&stranger, &address, "/readyz", "").await, 0, "its authority is another");
}

#[tokio::test]
async fn the_developers_tool_calls_it_too_when_it_trusts_the_authority() {
    let certs = Certs::generate();
    let server = start_with_tls(&certs, &[]);
    let (url, token) = (format!("https://{}", server.address()), server.secret("operator.token"));
    let global = ["--url", url.as_str(), "--operator-token", token.as_str(), "--ca-file"];
    let ca = certs.path("ca.pem");
    // One uses REST alone, the other a WebSocket as well.
    for scenario in ["scenario-fencing", "scenario-session-dies"] {
        run_dev(&[&[scenario][..], &global, &[ca.as_str()]].concat()).unwrap();
    }
    let other = Certs::generate().path("ca.pem");
    let arguments = [&["scenario-fencing"][..], &global, &[other.as_str()]].concat();
    let said = run_dev(&arguments).unwrap_err();
    assert!(said.contains("--ca-file"), "{said}");
}

#[tokio::test]
async fn a_caller_without_a_certificate_is_not_let_in_where_one_is_asked_for() {
    let certs = Certs::generate();
    let ca = certs.path("ca.pem");
    let server = start_with_tls(&certs, &["--tls-client-ca-file", &ca]);
    let (address, key) = (server.address().to_string(), server.secret("demo.key"));
    let path = "/v1/namespaces/demo";
    assert_eq!(get(&certs.client_config(true, b"http/1.1"), &address, path, &key).await, 200);
    assert_eq!(
        get(&certs.client_config(true, b"http/1.1"), &address, path, "").await,
        401,
        "it needs a key all the same"
    );
    assert_eq!(get(&certs.client_config(false, b"http/1.1"), &address, path, &key).await, 0);
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let certs = Certs::generate();
    let server = start_with_tls(&certs, &[]);
    let address = server.address().to_string();
    let config = certs.client_config(false, b"http/1.1");
    let shown = async || connect(&config, &address).await.unwrap().get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let first = shown().await;
    let mut open = TlsClient::connect(&config, &address).await.unwrap();
    assert_eq!(open.get("/readyz", "").await, 200);
    certs.renew();
    wait_until("the new certificate is shown", async || shown().await != first).await;
    assert_eq!(open.get("/readyz", "").await, 200, "a connection from before goes on");
    // What cannot be used is not taken.
    let second = shown().await;
    fs::write(certs.path("server.pem"), "nonsense").unwrap();
    assert_eq!(shown().await, second);
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let certs = Certs::generate();
    let refused = |cert: &str, key: &str| {
        let data_dir = scratch();
        let flags = ["--tls-cert-file", cert, "--tls-key-file", key, "--data-dir", data_dir.to_str().unwrap()];
        let ended = run_to_exit("holdfast-standalone", &[&flags[..], &["--listen", "127.0.0.1:0"]].concat());
        assert!(!ended.success && !data_dir.exists(), "{}", ended.output);
        ended.output
    };
    let (cert, key) = (certs.path("server.pem"), certs.path("server-key.pem"));
    assert!(refused("/nowhere.pem", &key).contains("/nowhere.pem"));
    assert!(refused(&cert, &certs.path("client-key.pem")).contains("client-key.pem"));
    assert!(refused(&key, &key).contains("holds no certificate"));
}

/// Three nodes with certificates of one authority.
struct TlsCluster {
    folder: PathBuf,
    nodes: Vec<(String, Program)>,
}

impl TlsCluster {
    fn start(certs: &Certs) -> Self {
        let folder = scratch();
        Secrets::create(&folder);
        let addresses: Vec<String> = (0..3).map(|_| free_address().to_string()).collect();
        let named = addresses.iter().enumerate().map(|(at, address)| (format!("nd_{}", at + 1), address.clone()));
        let config = ClusterConfig::generate(named.collect(), 2, 3).unwrap();
        fs::write(folder.join("cluster_config.json"), config.to_json()).unwrap();
        let mut cluster = Self { folder, nodes: Vec::new() };
        for (at, address) in addresses.into_iter().enumerate() {
            let id = format!("nd_{}", at + 1);
            let data = cluster.path(&id);
            let own = ["--node-id".to_owned(), id, "--data-dir".to_owned(), data];
            let node = cluster.start_program("holdfast-node", own.into_iter().chain(certs.cluster_flags()));
            cluster.nodes.push((address, node));
        }
        cluster
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn start_program(&self, executable: &str, flags: impl Iterator<Item = String>) -> Program {
        let files = [
            ("--cluster-config", "cluster_config.json"),
            ("--cluster-secret-file", "cluster.secret"),
            ("--operator-token-file", "operator.token"),
        ];
        let common = files.iter().flat_map(|(flag, file)| [(*flag).to_owned(), self.path(file)]);
        let mut program = Program::new(executable, executable, common.chain(flags).collect(), &scratch());
        program.start();
        program
    }

    fn start_gateway(&self, flags: Vec<String>) -> (RestClient, Program) {
        let address = free_address();
        let listen = ["--listen".to_owned(), address.to_string()];
        let gateway = self.start_program("holdfast-gateway", listen.into_iter().chain(flags));
        let operator = fs::read_to_string(Path::new(&self.path("operator.token"))).unwrap();
        (RestClient::new(address, operator.trim()), gateway)
    }
}

async fn is_listening(address: &str) -> bool {
    TcpStream::connect(address).await.is_ok()
}

#[tokio::test]
async fn the_processes_of_a_cluster_vouch_for_one_another() {
    let certs = Certs::generate();
    let cluster = TlsCluster::start(&certs);
    let (operator, _gateway) = cluster.start_gateway(certs.cluster_flags());
    let address = operator.address.to_string();
    wait_until("the gateway listens", async || is_listening(&address).await).await;
    wait_until("the cluster is ready", async || operator.call("GET /readyz").await.status == 200).await;
    let body = json!({"email": "a@example.com", "full_name": "A"});
    let account = operator.json("POST /v1/accounts", body).await.ok();
    let key = operator.call(&format!("POST /v1/accounts/{}/api-keys", account["id"].as_str().unwrap())).await.ok();
    let tenant = operator.with_key(key["api_key"].as_str().unwrap());
    wait_until("the shards of namespaces lead", async || {
        tenant.json("POST /v1/namespaces", json!({"name": "ns"})).await.status != 503
    })
    .await;
    let take = json!({"process_id": "p", "ttl_ms": 60_000});
    wait_until("the shards of locks lead", async || {
        let answer = tenant.json("POST /v1/namespaces/ns/locks/l/acquire", take.clone()).await;
        answer.status != 503 && answer.ok()["success"] == true
    })
    .await;

    // A probe needs no certificate; a caller does, whatever else it brings.
    let node = &cluster.nodes[0].0;
    let probe = certs.client_config(false, b"http/1.1");
    wait_until("the node is ready", async || get(&probe, node, "/readyz", "").await == 200).await;
    let h2 = certs.client_config(false, b"h2");
    let connector = tower::service_fn(move |uri: http::Uri| {
        let h2 = Arc::clone(&h2);
        async move { connect(&h2, uri.authority().unwrap().as_str()).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_shared(format!("http://{node}")).unwrap();
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let mut caller = holdfast_proto::internal::node_service_client::NodeServiceClient::new(channel);
    let status = caller.status(holdfast_proto::internal::StatusRequest::default()).await.unwrap_err();
    assert!(status.message().contains("shows no certificate"), "{status}");

    // A gateway that does not encrypt, or is vouched for by others, is not served.
    for flags in [Vec::new(), Certs::generate().cluster_flags()] {
        let (operator, mut gateway) = cluster.start_gateway(flags);
        let address = operator.address.to_string();
        wait_until("the gateway listens", async || is_listening(&address).await).await;
        let refused = operator.call("GET /v1/accounts").await.expect_error("UNAVAILABLE");
        assert!(refused["detail"].is_string(), "{refused}");
        gateway.assert_running();
        assert_eq!(operator.call("GET /readyz").await.status, 503);
    }
}
