//! A session's connection to one gateway.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{Message as Said, Open};
use holdfast_proto::v1::server_message::{Message as Says, Opened};
use http::uri::Authority;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::lease::SendTime;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::leader_hint::parse_address;

/// Buffered outbound messages; further ones wait in the table.
const OUTGOING_CAPACITY: usize = 16;

pub(super) struct Connection {
    pub(super) outbound: mpsc::Sender<v1::ClientMessage>,
    pub(super) inbound: Streaming<v1::ServerMessage>,
    pub(super) seq: u64,
    /// The address of the gateway.
    pub(super) gateway: Authority,
    /// The address of the gateway in the node of the leader, if the service reported it.
    pub(super) leader: Option<Authority>,
}

/// The failure of an attempt to open a session.
pub(super) struct OpenFailure {
    pub(super) error: Error,
    /// Whether the service may open the session nevertheless.
    pub(super) may_have_opened: bool,
}

impl Connection {
    /// Connects to the gateway and opens the session there. Also returns when the request was sent.
    pub(super) async fn open(
        client: &Client,
        gateway: &Gateway,
        open: Open,
        within: Duration,
    ) -> Result<(Self, Opened, SendTime), OpenFailure> {
        let deadline = Instant::now() + within;
        let not_done = |error| OpenFailure { error, may_have_opened: false };
        let mut sessions = client.connect(gateway, within).await.map_err(not_done)?;
        let may_be_done = |error: Error| OpenFailure { may_have_opened: error.is_transient(), error };
        let (outbound, messages) = mpsc::channel(OUTGOING_CAPACITY);
        let first = message(1, Said::Open(open));
        outbound.try_send(first).expect("a new queue has room");
        let asked_at = SendTime::now(client.clocks());
        let opened = async {
            let mut inbound = sessions.connect(ReceiverStream::new(messages)).await?.into_inner();
            let opened = match inbound.message().await?.and_then(|message| message.message) {
                Some(Says::Opened(opened)) => opened,
                Some(Says::Error(error)) => return Err(Error::service(error.code, error.detail)),
                _ => return Err(Error::Unreachable("the gateway did not answer `open`".to_owned())),
            };
            Ok((inbound, opened))
        };
        let answer = timeout_at(deadline, opened).await;
        let silent = |_| Error::Unreachable(format!("the gateway did not open the session within {within:?}"));
        let (inbound, opened) = answer.map_err(silent).and_then(|opened| opened).map_err(may_be_done)?;
        let (gateway, leader) = (gateway.address.clone(), opened.leader.as_deref().and_then(parse_address));
        Ok((Self { outbound, inbound, seq: 1, gateway, leader }, opened, asked_at))
    }
}

/// Creates a message with its number within the connection.
pub(super) fn message(seq: u64, said: Said) -> v1::ClientMessage {
    v1::ClientMessage { seq, message: Some(said) }
}
