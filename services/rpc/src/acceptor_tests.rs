//! What strangers and processes may have of a port.

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr};

use futures::stream;
use holdfast_auth::{ClusterSecret, ServiceSigner};
use holdfast_tls::{PortBound, PortConnections, PortLimits};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;

use super::*;
use crate::{Calls, ConnectError, Identity, identify};

const MAX_WAIT: Duration = Duration::from_secs(60);
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

/// Admits every process and keeps its connection.
struct Idle;

impl Server<Calls> for Idle {
    async fn admit(&self, _: &CallerId, (): &()) -> Result<(), String> {
        Ok(())
    }

    async fn serve(&self, _connection: ServerConnection<Calls>, (): ()) {
        pending().await
    }
}

/// A port with bounds that a few connections reach.
struct TestPort {
    secret: ClusterSecret,
    port: Arc<PortConnections>,
    accept: mpsc::UnboundedSender<Incoming<()>>,
}

impl TestPort {
    fn start() -> Self {
        let (two, one) = (PortBound { total: 2, per_address: 2 }, PortBound { total: 1, per_address: 1 });
        let limits = PortLimits { handshakes: two, known_handshakes: two, anonymous: one, http: one, processes: 2 };
        let secret = ClusterSecret::generate().unwrap();
        let acceptor = Acceptor::new(Arc::new(ServiceVerifier::new(&secret)), Arc::default()).with(Idle);
        let (accept, accepted) = mpsc::unbounded_channel();
        let accepting = stream::unfold(accepted, |mut accepted: mpsc::UnboundedReceiver<Incoming<()>>| async {
            accepted.recv().await.map(|incoming| (incoming, accepted))
        });
        // HTTP that never ends.
        tokio::spawn(Arc::new(acceptor).serve(accepting, |stream, ()| async move {
            let _stream = stream;
            pending().await
        }));
        Self { secret, port: PortConnections::new(limits), accept }
    }

    fn open(&self, address: IpAddr, has_cert: bool) -> DuplexStream {
        let (ours, theirs) = duplex(64 << 10);
        let counted = Some(self.port.accept(address));
        let incoming = Incoming { stream: Box::new(theirs), peer: (), has_cert, counted };
        assert!(self.accept.send(incoming).is_ok());
        ours
    }

    async fn connect(&self, caller: &str) -> Result<crate::ClientConnection<Calls>, ConnectError> {
        let identity = Identity::new(caller, 0, ServiceSigner::new(&self.secret, "test"));
        let stream = Box::new(self.open(NODE, true));
        identify::<Calls>(stream, &identity, &()).await.map(|(connection, ())| connection)
    }
}

/// Waits until the other end closes the connection; returns how long that took.
async fn wait_closed(stream: &mut DuplexStream) -> Duration {
    let began = tokio::time::Instant::now();
    timeout(MAX_WAIT, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn peers_that_say_nothing_end_one_another_and_no_process() {
    let port = TestPort::start();
    let mut silent: Vec<DuplexStream> = (0..3).map(|_| port.open(STRANGER, true)).collect();
    assert_eq!(wait_closed(&mut silent[0]).await, Duration::ZERO);
    // All others have their whole time, and a process gets in beside them.
    let _connection = port.connect("node").await.unwrap();
    assert!(wait_closed(&mut silent[2]).await <= HANDSHAKE_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_process_too_many_is_told_the_limit_and_the_others_stay() {
    let port = TestPort::start();
    let mut first = port.connect("one").await.unwrap();
    let _second = port.connect("two").await.unwrap();
    let rejected = port.connect("three").await.err().unwrap().to_string();
    assert!(rejected.contains("limited to 2") && rejected.contains("node_processes"), "{rejected}");
    let ended = async { while first.next(true).await.is_ok() {} };
    assert!(timeout(Duration::from_secs(1), ended).await.is_err(), "the connection goes on");
}

#[tokio::test(start_paused = true)]
async fn connections_of_http_end_one_another_and_those_without_a_certificate_by_themselves() {
    let port = TestPort::start();
    let open = async |has_cert| {
        let mut stream = port.open(STRANGER, has_cert);
        stream.write_all(b"GET").await.unwrap();
        stream
    };
    let mut operators = [open(true).await, open(true).await];
    let mut probe = open(false).await;
    let opened = tokio::time::Instant::now();
    assert_eq!(wait_closed(&mut operators[0]).await, Duration::ZERO);
    wait_closed(&mut probe).await;
    assert!(opened.elapsed() >= ANONYMOUS_TIMEOUT, "{:?}", opened.elapsed());
    assert!(timeout(MAX_WAIT, operators[1].read(&mut [0])).await.is_err(), "it goes on");
}
