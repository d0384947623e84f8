//! Connections of sessions, without a frontend.

use holdfast_api::session_message::{ClientMessage, ClientPayload, Lock, Open, ServerMessage};
use holdfast_api::*;
use holdfast_types::{Metadata, Mode};

use super::call_limits_tests::limited_tenant;
use super::core_node::TestGateway;
use super::tests::demo_tenant;
use crate::session::{ConnectionOptions, Outbound, SessionReceiver, SessionSender};
use crate::*;

/// A client and its connection.
struct SessionClient {
    sender: SessionSender,
    receiver: SessionReceiver,
    seq: u64,
}

impl SessionClient {
    fn connect(world: &TestGateway, tenant: &AuthContext) -> Self {
        let (sender, receiver) = world.service.connect(tenant.clone(), ConnectionOptions::default());
        Self { sender, receiver, seq: 0 }
    }

    async fn send(&mut self, payload: ClientPayload) {
        self.seq += 1;
        self.sender.send(ClientMessage { seq: self.seq, payload }).await.unwrap();
    }

    async fn receive(&mut self) -> ServerMessage {
        match self.receiver.next().await {
            Outbound::Message(message) => message,
            Outbound::End(reason) => panic!("the connection ended: {reason:?}"),
        }
    }

    /// Opens or resumes a session. Returns its id, and whether it was resumed.
    async fn open(&mut self, session_id: Option<String>) -> (String, bool) {
        let (namespace, process_id, metadata) = ("demo".to_owned(), "p".to_owned(), Metadata::default());
        self.send(ClientPayload::Open(Open { namespace, session_id, process_id, ttl_ms: 30_000, metadata })).await;
        match self.receive().await {
            ServerMessage::Opened { session_id, resumed, .. } => (session_id, resumed),
            other => panic!("not opened: {other:?}"),
        }
    }

    async fn lock(&mut self, request_id: &str) {
        let lock = Lock {
            request_id: request_id.to_owned(),
            resources: vec![Resource { path: vec![request_id.to_owned()], mode: Mode::Write }],
            holder: None,
            transition_ms: 0,
            allow_upgrade: false,
            only_try: false,
        };
        self.send(ClientPayload::Lock(lock)).await;
    }

    /// Checks that the next message is an error that leaves the outcome of the request unknown.
    async fn expect_unknown(&mut self, request: &str) {
        match self.receive().await {
            ServerMessage::Error { error, request_id } => {
                assert_eq!((error.code, request_id.as_deref()), (Code::DeadlineExceeded, Some(request)));
            }
            other => panic!("{request} may be granted: {other:?}"),
        }
    }
}

#[tokio::test]
async fn sessions_of_an_account_that_may_hold_no_calls_open_and_resume() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_held_calls: Some(0), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    let (opened, _) = SessionClient::connect(&world, &tenant).open(None).await;
    let resumed = SessionClient::connect(&world, &tenant).open(Some(opened.clone())).await;
    assert_eq!(resumed, (opened, true));
}

#[tokio::test]
async fn only_a_request_that_is_new_is_refused_when_its_command_is_not_executed() {
    let world = TestGateway::start().await;
    let tenant = demo_tenant(&world).await;
    let mut client = SessionClient::connect(&world, &tenant);
    client.open(None).await;
    client.lock("known").await;
    assert!(matches!(client.receive().await, ServerMessage::Acquired { .. }));
    world.ignore_next_lock_command();
    client.lock("copied").await;
    client.expect_unknown("copied").await;
    client.lock("known").await;
    client.lock("new").await;
    client.expect_unknown("known").await;
    let refused = client.receive().await;
    assert!(matches!(&refused, ServerMessage::Refused { request_id, .. } if request_id == "new"), "{refused:?}");
}
