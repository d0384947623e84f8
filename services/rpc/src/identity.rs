//! Who connects, and how a connection begins.
//!
//! Both ends send [`PREAMBLE`], then one frame: the process that connects proves that it belongs to the cluster, and the
//! other one accepts it or says why not and what to do.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::{SinkExt, StreamExt};
use holdfast_auth::{Secret, ServiceSigner};
use holdfast_proto::internal::{Handshake, HandshakeReply};
use prost::Message;
use tokio::io::AsyncReadExt;
use tokio_util::codec::Framed;

use crate::connection::{ClientConnection, Connection};
use crate::dialer::{ByteStream, ConnectError};
use crate::frames::FrameCodec;
use crate::protocol::{PREAMBLE, Protocol, RELEASE, WIRE_VERSION};

/// Largest frame of a handshake, in bytes: that of a node names all of its replicas.
pub(crate) const MAX_HANDSHAKE_BYTES: usize = 256 << 10;

/// The identity of this process to those that it connects to.
pub struct Identity {
    caller: String,
    run: u64,
    signer: ServiceSigner,
    /// Incremented with each connection of this process.
    connections: AtomicU64,
}

impl Identity {
    /// Creates the identity of a process. If `caller` does not differ at every start of the process, `run` must.
    pub fn new(caller: impl Into<String>, run: u64, signer: ServiceSigner) -> Self {
        Self { caller: caller.into(), run, signer, connections: AtomicU64::new(1) }
    }

    /// Numbers the next connection so.
    #[must_use]
    pub fn with_next_connection(self, number: u64) -> Self {
        Self { connections: AtomicU64::new(number), ..self }
    }

    /// Returns the run of the process.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns a token that proves that this process belongs to the cluster.
    ///
    /// # Errors
    /// When it can't be signed.
    pub fn token(&self) -> Result<Secret, ConnectError> {
        self.signer.token().map_err(|error| ConnectError::new(error.to_string()))
    }

    fn handshake<P: Protocol>(&self, body: &P::Handshake) -> Result<Handshake, ConnectError> {
        Ok(Handshake {
            protocol: P::NAME.to_owned(),
            wire_version: WIRE_VERSION,
            release: RELEASE.to_owned(),
            caller: self.caller.clone(),
            run: self.run,
            connection: self.connections.fetch_add(1, Ordering::Relaxed),
            token: self.token()?.expose().to_owned(),
            body: body.encode_to_vec().into(),
        })
    }
}

/// Begins a connection on a stream; returns it with the other end's handshake. The caller applies the timeout.
///
/// # Errors
/// When the other end rejects this process, or does not speak the protocol.
pub async fn identify<P: Protocol>(
    stream: ByteStream,
    identity: &Identity,
    ours: &P::Handshake,
) -> Result<(ClientConnection<P>, P::Handshake), ConnectError> {
    let codec = FrameCodec::<HandshakeReply, Handshake>::new(MAX_HANDSHAKE_BYTES);
    let mut framed = Framed::new(stream, codec);
    framed.write_buffer_mut().extend_from_slice(&PREAMBLE);
    framed.send(identity.handshake::<P>(ours)?).await?;
    let mut preamble = [0; PREAMBLE.len()];
    framed.get_mut().read_exact(&mut preamble).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => ConnectError::new("it closed the connection during the handshake"),
        _ => ConnectError::from(error),
    })?;
    if preamble != PREAMBLE {
        return Err(ConnectError::new(format!(
            "it answers in another protocol, as releases before {RELEASE} do: start it with the release of this process"
        )));
    }
    let reply = match framed.next().await {
        Some(Ok(Some(reply))) => reply,
        Some(Err(error)) => return Err(error.into()),
        Some(Ok(None)) => return Err(ConnectError::new("its handshake is empty")),
        None => return Err(ConnectError::new("it closed the connection during the handshake")),
    };
    if !reply.rejected.is_empty() {
        return Err(ConnectError::new(reply.rejected));
    }
    let theirs = P::Handshake::decode(reply.body)
        .map_err(|error| ConnectError::new(format!("its handshake can't be read: {error}")))?;
    Ok((Connection::new(framed.map_codec(|_| FrameCodec::new(P::MAX_FRAME_BYTES)), P::STALL_TIMEOUT), theirs))
}
