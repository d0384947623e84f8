//! A gateway's address that can be cut off or made silent.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How a [`Proxy`] treats those who come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyMode {
    /// Everything goes through.
    Open,
    /// Connections are closed, also new ones.
    Cut,
    /// Connections stay open, and nothing goes through.
    Silent,
}

/// Listens on loopback and passes everything on. It ends with the runtime that it was started in.
pub(crate) struct Proxy {
    address: SocketAddr,
    way: watch::Sender<ProxyMode>,
}

impl Proxy {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let way = watch::Sender::new(ProxyMode::Open);
        let ways = way.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if *ways.borrow() != ProxyMode::Cut {
                    tokio::spawn(pass(stream, target, ways.subscribe()));
                }
            }
        });
        Self { address, way }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, way: ProxyMode) {
        self.way.send_replace(way);
    }
}

async fn pass(stream: TcpStream, target: SocketAddr, mut ways: watch::Receiver<ProxyMode>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    stream.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = stream.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = copy(from_client, to_server, ways.clone()) => {}
        () = copy(from_server, to_client, ways.clone()) => {}
        _ = ways.wait_for(|way| *way == ProxyMode::Cut) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut ways: watch::Receiver<ProxyMode>) {
    let mut buffer = vec![0; 64 * 1_024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if ways.wait_for(|way| *way != ProxyMode::Silent).await.is_err() || to.write_all(&buffer[..read]).await.is_err()
        {
            return;
        }
    }
}
