//! What happens to connections that are no longer HTTP when a gateway has as many as it may.

use futures::future::select_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::TestServer;
use crate::test_cluster::TestCluster;

/// Connects a session over WebSocket.
async fn open_websocket(running: &TestServer) -> TcpStream {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = "GET /v1/namespaces/ns/connect HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let head = format!("{head}authorization: Bearer {}\r\n\r\n", running.tenant.api_key);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    stream
}

#[tokio::test]
async fn a_websocket_of_an_account_with_more_than_its_share_is_closed_for_another_caller() {
    let running = TestServer::with_connections(TestCluster::start().await, false, 4).await;
    running.make_namespace().await;
    let mut sockets = Vec::new();
    for _ in 0..4 {
        // The last one takes the place of the idle connection that made the namespace.
        sockets.push(open_websocket(&running).await);
    }
    let health = reqwest::get(running.url("/healthz")).await.unwrap();
    assert_eq!(health.status(), 200);
    let reads = sockets.into_iter().map(|mut socket: TcpStream| async move {
        let mut read = Vec::new();
        socket.read_to_end(&mut read).await.unwrap();
        read
    });
    // Which one it is depends on how soon the idle connection has closed.
    let (closed, ..) = select_all(reads.map(Box::pin)).await;
    let (code, reason) = (1_001_u16.to_be_bytes(), b"UNAVAILABLE");
    assert_eq!(closed, [&[0x88, 13][..], &code, reason].concat(), "a close frame");
}
