//! A client of the session protocol over WebSocket.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderValue, Request};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::rest_client::RestClient;

/// Far longer than any answer takes.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the namespace `ns`, and the number of its last message. Its functions panic if the connection fails, if
/// nothing arrives within 30 s, or if something else arrives than expected.
pub struct SessionSocket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    seq: u64,
}

impl SessionSocket {
    /// Connects with the credential of a client.
    pub async fn connect(rest: &RestClient) -> Self {
        let mut request = Self::request(rest);
        let bearer = format!("Bearer {}", rest.key).parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        Self::connect_with(request).await
    }

    /// Connects as a browser does, which can't set headers. The service has to choose the protocol.
    pub async fn connect_as_browser(rest: &RestClient) -> Self {
        let mut request = Self::request(rest);
        let protocols: HeaderValue = format!("bearer, {}", rest.key).parse().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", protocols);
        Self::connect_with(request).await
    }

    /// Returns a handshake without a credential.
    pub fn request(rest: &RestClient) -> Request<()> {
        format!("ws://{}/v1/namespaces/ns/connect", rest.address).into_client_request().unwrap()
    }

    async fn connect_with(request: Request<()>) -> Self {
        let asks_for_a_protocol = request.headers().contains_key("sec-websocket-protocol");
        let (stream, answer) = connect_async(request).await.unwrap();
        assert_eq!(answer.status(), 101);
        let chosen = answer.headers().get("sec-websocket-protocol").map(|protocol| protocol.to_str().unwrap());
        assert_eq!(chosen, asks_for_a_protocol.then_some("bearer"));
        Self { stream, seq: 0 }
    }

    /// Sends a message under the next number.
    pub async fn send(&mut self, mut message: Value) {
        self.seq += 1;
        message["seq"] = self.seq.into();
        self.send_text(&message.to_string()).await;
    }

    /// Sends several messages in one piece.
    pub async fn send_all(&mut self, messages: impl IntoIterator<Item = Value>) {
        for mut message in messages {
            self.seq += 1;
            message["seq"] = self.seq.into();
            self.stream.feed(Message::Text(message.to_string().into())).await.unwrap();
        }
        self.stream.flush().await.unwrap();
    }

    /// Sends a text frame as it is.
    pub async fn send_text(&mut self, text: &str) {
        self.stream.send(Message::Text(text.into())).await.unwrap();
    }

    /// Returns the next message.
    pub async fn receive(&mut self) -> Value {
        match self.frame().await {
            Message::Text(text) => serde_json::from_str(text.as_str()).unwrap(),
            other => panic!("not a message: {other:?}"),
        }
    }

    /// Reads until the service closes the connection. Returns the reason.
    pub async fn read_until_close(&mut self) -> String {
        loop {
            if let Message::Close(Some(frame)) = self.frame().await {
                return frame.reason.as_str().to_owned();
            }
        }
    }

    /// Expects that the service closes the connection next. Returns the code.
    pub async fn expect_close(&mut self) -> u16 {
        match self.frame().await {
            Message::Close(Some(frame)) => frame.code.into(),
            other => panic!("not closed: {other:?}"),
        }
    }

    /// Ends the sending side, and takes what still comes until the service ends the other side. A socket that is dropped
    /// with answers unread is reset instead, and what the service has not read by then is lost on the way.
    pub async fn end_sending(mut self) {
        self.stream.get_mut().shutdown().await.unwrap();
        let rest = async { while let Some(Ok(_)) = self.stream.next().await {} };
        timeout(RECEIVE_TIMEOUT, rest).await.expect("the service ends the connection");
    }

    async fn frame(&mut self) -> Message {
        loop {
            let frame = timeout(RECEIVE_TIMEOUT, self.stream.next()).await.expect("a frame in good time");
            match frame.expect("the connection is open").unwrap() {
                Message::Ping(_) | Message::Pong(_) => {}
                frame => return frame,
            }
        }
    }

    /// Opens a session. Returns its id.
    pub async fn open_session(&mut self, ttl_ms: u64) -> String {
        self.send(json!({"type": "open", "process_id": "p", "ttl_ms": ttl_ms})).await;
        let opened = self.receive().await;
        assert_eq!((&opened["type"], &opened["resumed"]), (&json!("opened"), &json!(false)), "{opened}");
        assert_eq!(opened["ttl_ms"], ttl_ms);
        opened["session_id"].as_str().unwrap().to_owned()
    }

    /// Resumes a session.
    pub async fn resume_session(&mut self, session_id: &str, ttl_ms: u64) {
        self.send(json!({"type": "open", "process_id": "p", "ttl_ms": ttl_ms, "session_id": session_id})).await;
        let opened = self.receive().await;
        assert_eq!((&opened["type"], &opened["resumed"]), (&json!("opened"), &json!(true)), "{opened}");
        assert_eq!(opened["session_id"], session_id);
    }

    /// Waits until the gateway follows the session, which it begins to do once it has opened it: it tells of a lock that
    /// is forced open. Before that it can't say why something ended. The credential may force locks open.
    pub async fn wait_followed(&mut self, rest: &RestClient) {
        self.acquire("followed", "followed").await;
        rest.delete("/v1/namespaces/ns/locks/followed").await.expect("the lock can be forced open");
        let revoked = self.receive().await;
        assert_eq!((&revoked["type"], &revoked["path"]), (&json!("revoked"), &json!(["followed"])), "{revoked}");
        self.send(json!({"type": "release", "request_id": "followed"})).await;
        self.expect_ready("followed").await;
    }

    /// Requests one path in WRITE.
    pub async fn request_lock(&mut self, request_id: &str, path: &str) {
        self.send(lock_message(request_id, path)).await;
    }

    /// Acquires one path in WRITE. Returns its token.
    pub async fn acquire(&mut self, request_id: &str, path: &str) -> u64 {
        self.request_lock(request_id, path).await;
        self.expect_acquired(request_id).await
    }

    /// Expects that the request is granted. Returns its token.
    pub async fn expect_acquired(&mut self, request_id: &str) -> u64 {
        let mut state = self.receive().await;
        let token = state["fencing_token"].as_u64();
        // It is there only if the lock table is in the leader's memory.
        state.as_object_mut().expect("an object").remove("receipt");
        let expected = json!({"type": "state", "request_id": request_id, "state": "ACQUIRED", "fencing_token": token});
        assert_eq!(state, expected);
        token.expect("a token")
    }

    /// Expects that the request waits.
    pub async fn expect_enqueued(&mut self, request_id: &str) -> Value {
        let state = self.receive().await;
        assert_eq!(state["type"], "state", "{state}");
        assert_eq!((&state["request_id"], &state["state"]), (&json!(request_id), &json!("ENQUEUED")), "{state}");
        state
    }

    /// Expects that the request is released.
    pub async fn expect_ready(&mut self, request_id: &str) {
        assert_eq!(self.receive().await, json!({"type": "state", "request_id": request_id, "state": "READY"}));
    }

    /// Expects that no message is on its way: the answer to a keep-alive, which is sent now, comes first.
    pub async fn expect_no_message(&mut self) {
        self.send(json!({"type": "keepalive"})).await;
        let kept = self.receive().await;
        assert_eq!(kept["type"], "kept_alive", "{kept}");
    }
}

/// Returns the message that requests one path in WRITE.
pub fn lock_message(request_id: &str, path: &str) -> Value {
    json!({"type": "lock", "request_id": request_id, "resources": [{"path": [path], "mode": "WRITE"}]})
}
