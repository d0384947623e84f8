//! Accepts connections: tells frames from HTTP, and admits processes of the cluster.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, SinkExt, Stream, StreamExt};
use holdfast_auth::ServiceVerifier;
use holdfast_proto::internal::{Handshake, HandshakeReply};
use holdfast_supervise::spawn_temporary;
use holdfast_tls::PortConnection;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::codec::Framed;
use tokio_util::sync::CancellationToken;

use crate::callers::{CallerId, Callers};
use crate::connection::{Connection, ServerConnection};
use crate::dialer::ByteStream;
use crate::frames::FrameCodec;
use crate::identity::MAX_HANDSHAKE_BYTES;
use crate::protocol::{PREAMBLE, Protocol, RELEASE, WIRE_VERSION};

/// How long a peer may take until its handshake is complete.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a peer without a certificate of the cluster is served: enough for a probe.
const ANONYMOUS_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the connections of a protocol.
pub trait Server<P: Protocol>: Send + Sync + 'static {
    /// Checks the handshake of a process that belongs to the cluster, and returns that of this process.
    ///
    /// # Errors
    /// Why the connection is rejected, and what to do.
    fn admit(
        &self,
        caller: &CallerId,
        theirs: &P::Handshake,
    ) -> impl Future<Output = Result<P::Handshake, String>> + Send;

    /// Serves a connection until it ends. It is dropped when a newer connection of the caller replaces it.
    fn serve(&self, connection: ServerConnection<P>, theirs: P::Handshake) -> impl Future<Output = ()> + Send;
}

type HandshakeFramed = Framed<ByteStream, FrameCodec<Handshake, HandshakeReply>>;
type Admitting = Arc<dyn Fn(HandshakeFramed, Handshake) -> BoxFuture<'static, io::Result<Serving>> + Send + Sync>;
/// A connection being served.
type Serving = BoxFuture<'static, ()>;

/// Admits connections and passes them to the servers of their protocols.
pub struct Acceptor {
    verifier: Arc<ServiceVerifier>,
    callers: Arc<Callers>,
    protocols: BTreeMap<&'static str, Admitting>,
}

/// A connection that was accepted.
pub struct Incoming<A> {
    /// The connection.
    pub stream: ByteStream,
    /// Its peer, for HTTP.
    pub peer: A,
    /// Whether the peer presented a certificate of the cluster, or needs none.
    pub has_cert: bool,
    /// Counts it among the connections of its port, if that has bounds.
    pub counted: Option<PortConnection>,
}

enum Accepted {
    Http(ByteStream),
    Frames(Serving),
}

impl Acceptor {
    /// Creates an acceptor without protocols, which registers its connections with `callers`.
    pub fn new(verifier: Arc<ServiceVerifier>, callers: Arc<Callers>) -> Self {
        Self { verifier, callers, protocols: BTreeMap::new() }
    }

    /// Adds a protocol.
    #[must_use]
    pub fn with<P: Protocol>(mut self, server: impl Server<P>) -> Self {
        let (server, callers) = (Arc::new(server), Arc::clone(&self.callers));
        let admitting: Admitting = Arc::new(move |framed, handshake| {
            admit::<P, _>(Arc::clone(&server), Arc::clone(&callers), framed, handshake).boxed()
        });
        self.protocols.insert(P::NAME, admitting);
        self
    }

    /// Serves connections until there are no more, and closes all when it is dropped. Those that do not begin with the
    /// preamble are passed to `http`.
    pub async fn serve<A, H>(
        self: Arc<Self>,
        connections: impl Stream<Item = Incoming<A>> + Send,
        http: impl Fn(ByteStream, A) -> H + Clone + Send + 'static,
    ) where
        A: Send + 'static,
        H: Future<Output = ()> + Send + 'static,
    {
        let dropped = CancellationToken::new();
        let _dropped = dropped.clone().drop_guard();
        let mut connections = pin!(connections);
        while let Some(incoming) = connections.next().await {
            let evicted = incoming.counted.as_ref().map(PortConnection::ended).unwrap_or_default();
            let serving = Arc::clone(&self).serve_one(incoming, http.clone());
            let mut ends = cancelled([evicted, dropped.clone()]);
            spawn_temporary("connection", async move {
                tokio::select! {
                    biased;
                    Some(end) = ends.next() => {
                        if end == 0 {
                            tracing::debug!("connection closed to admit others");
                        }
                    }
                    () = serving => {}
                }
            });
        }
    }

    async fn serve_one<A, H>(self: Arc<Self>, incoming: Incoming<A>, http: impl Fn(ByteStream, A) -> H)
    where
        H: Future<Output = ()>,
    {
        let Incoming { stream, peer, has_cert, mut counted } = incoming;
        let accepted = timeout(HANDSHAKE_TIMEOUT, self.accept(stream, has_cert, counted.as_mut())).await;
        // A connection must not keep the servers of the protocols in memory.
        drop(self);
        match accepted {
            Ok(Ok(Accepted::Http(stream))) if has_cert => http(stream, peer).await,
            Ok(Ok(Accepted::Http(stream))) => {
                if timeout(ANONYMOUS_TIMEOUT, http(stream, peer)).await.is_err() {
                    tracing::debug!("connection without certificate closed after {ANONYMOUS_TIMEOUT:?}");
                }
            }
            Ok(Ok(Accepted::Frames(serving))) => serving.await,
            Ok(Err(error)) => tracing::debug!(%error, "connection not accepted"),
            Err(_) => tracing::debug!("connection not accepted: handshake timed out"),
        }
    }

    async fn accept(
        &self,
        mut stream: ByteStream,
        has_cert: bool,
        counted: Option<&mut PortConnection>,
    ) -> io::Result<Accepted> {
        let mut first = [0; PREAMBLE.len()];
        stream.read_exact(&mut first[..1]).await?;
        if first[0] != PREAMBLE[0] {
            if let Some(counted) = counted {
                counted.became_http(has_cert);
            }
            // Nothing of the request may be lost.
            let (read, write) = tokio::io::split(stream);
            let read = io::Cursor::new([first[0]]).chain(read);
            return Ok(Accepted::Http(Box::new(tokio::io::join(read, write))));
        }
        stream.read_exact(&mut first[1..]).await?;
        stream.write_all(&PREAMBLE).await?;
        let mut framed = Framed::new(stream, FrameCodec::<Handshake, HandshakeReply>::new(MAX_HANDSHAKE_BYTES));
        if first != PREAMBLE {
            return reject(framed, mismatch("another release", "another version")).await;
        }
        if !has_cert {
            let reason = "the caller shows no certificate of this cluster; give it --cluster-tls-cert-file";
            return reject(framed, reason.to_owned()).await;
        }
        let handshake = match framed.next().await {
            Some(Ok(Some(handshake))) => handshake,
            Some(Err(error)) => return reject(framed, format!("the handshake can't be read: {error}")).await,
            Some(Ok(None)) | None => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        if let Err(error) = self.verifier.verify(&handshake.token) {
            return reject(framed, format!("the caller carries no service token of this cluster: {error}")).await;
        }
        if let Some(Err(reason)) = counted.map(PortConnection::became_process) {
            return reject(framed, reason).await;
        }
        let admitting = self.protocols.get(handshake.protocol.as_str());
        match admitting.filter(|_| handshake.wire_version == WIRE_VERSION) {
            Some(admitting) => admitting(framed, handshake).await.map(Accepted::Frames),
            None => {
                let Handshake { protocol, wire_version, release, .. } = handshake;
                let spoken = format!("version {wire_version} of the internal protocol {protocol:?}");
                reject(framed, mismatch(&format!("release {release}"), &spoken)).await
            }
        }
    }
}

/// Admits a caller that belongs to the cluster, and prepares to serve its connection.
async fn admit<P: Protocol, S: Server<P>>(
    server: Arc<S>,
    callers: Arc<Callers>,
    mut framed: HandshakeFramed,
    handshake: Handshake,
) -> io::Result<Serving> {
    let Handshake { caller: name, run, connection, body, .. } = handshake;
    let caller = CallerId { name, run, connection };
    let theirs = match P::Handshake::decode(body) {
        Ok(theirs) => theirs,
        Err(error) => return reject(framed, format!("the handshake can't be read: {error}")).await,
    };
    let admitted = match server.admit(&caller, &theirs).await {
        Ok(ours) => callers.register::<P>(&caller).map(|ended| (ours, ended)),
        Err(reason) => Err(reason),
    };
    let (ours, ended) = match admitted {
        Ok(admitted) => admitted,
        Err(reason) => return reject(framed, reason).await,
    };
    // From here on, the connection counts as ended whenever it is dropped.
    let ending = ended.clone().drop_guard();
    let mut ends = cancelled([ended]);
    framed.send(reply(String::new(), ours.encode_to_vec())).await?;
    let connection = Connection::new(framed.map_codec(|_| FrameCodec::new(P::MAX_FRAME_BYTES)), P::STALL_TIMEOUT);
    Ok(Box::pin(async move {
        let _ending = ending;
        tokio::select! {
            biased;
            // First: nothing more is read of a connection that a newer one replaces.
            _ = ends.next() => {}
            () = server.serve(connection, theirs) => {}
        }
    }))
}

/// Yields the positions of the tokens that are cancelled. It is polled for each message of a connection, and looks at a
/// token only once that has woken it.
fn cancelled<const COUNT: usize>(
    tokens: [CancellationToken; COUNT],
) -> FuturesUnordered<impl Future<Output = usize> + Send> {
    let tokens = tokens.into_iter().enumerate();
    tokens.map(|(position, token)| token.cancelled_owned().map(move |()| position)).collect()
}

fn mismatch(release: &str, spoken: &str) -> String {
    format!(
        "the caller runs {release} and speaks {spoken}, this node runs release {RELEASE} and speaks version \
         {WIRE_VERSION}: start both with the same release"
    )
}

fn reply(rejected: String, body: Vec<u8>) -> HandshakeReply {
    HandshakeReply { release: RELEASE.to_owned(), rejected, body: body.into() }
}

async fn reject<T>(mut framed: HandshakeFramed, reason: String) -> io::Result<T> {
    framed.send(reply(reason.clone(), Vec::new())).await?;
    let mut stream = framed.into_inner();
    stream.shutdown().await?;
    // The system would discard the reply when the connection is closed with something unread.
    tokio::io::copy(&mut stream.take(MAX_HANDSHAKE_BYTES as u64), &mut tokio::io::sink()).await?;
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

#[cfg(test)]
#[path = "acceptor_tests.rs"]
mod tests;
