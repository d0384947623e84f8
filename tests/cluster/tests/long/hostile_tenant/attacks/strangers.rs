//! Callers without a key, at every port: those of gateways (REST, gRPC and dlocks), of Locktopus clients, and of nodes
//! (frames, gRPC of operators, metrics).

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_proto::dlocks;
use holdfast_proto::dlocks::locks_service_api_client::LocksServiceApiClient;
use holdfast_rpc::PREAMBLE;
use holdfast_testkit::wait_out;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use super::AttackResult;
use crate::hostile_tenant::attacker::{Attacker, run_concurrently};
use crate::hostile_tenant::grpc_client::{GrpcClient, error_code};

/// Where they come from: no process of the service and no tenant has this address.
const STRANGER: [u8; 4] = [127, 0, 0, 9];
/// Connections to one port at a time.
const CONNECTIONS_PER_PORT: [usize; 2] = [50, 12];
/// Connections to one node at a time, more than it accepts unfinished handshakes.
const CONNECTIONS_TO_NODE: [usize; 2] = [280, 20];
/// How long they stay, in ms.
const STAY_MS: [usize; 2] = [3_000, 300];
/// Between two bytes of a slow one.
const DRIP_PAUSE: Duration = Duration::from_millis(20);
/// Larger than every frame, head and body that is accepted.
const LARGE: usize = 1 << 20;
/// The beginning of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The beginning of a handshake of TLS, at a port without.
const TLS_HELLO: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
const PAGES: [&str; 4] = ["/", "/healthz", "/.well-known/jwks.json", "/v1/namespaces"];

/// What listens at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortKind {
    Node,
    Gateway,
    Locktopus,
}

/// A port that anybody may reach.
#[derive(Clone, Copy, Debug)]
struct Port {
    kind: PortKind,
    address: SocketAddr,
}

fn ports(enemy: &Attacker) -> Vec<Port> {
    let of = |kind, addresses: &[SocketAddr]| -> Vec<Port> {
        addresses.iter().map(|address| Port { kind, address: *address }).collect()
    };
    let nodes = of(PortKind::Node, &enemy.nodes);
    [nodes, of(PortKind::Gateway, &enemy.gateways), of(PortKind::Locktopus, &enemy.locktopus)].concat()
}

async fn connect(port: Port) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // Otherwise none is free after many connections.
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((STRANGER, 0)))?;
    socket.connect(port.address).await
}

/// How the bytes are sent.
#[derive(Clone, Copy)]
struct Pace {
    /// A pause after each byte.
    pause: Option<Duration>,
    /// Whether the stranger ends its own half of the connection behind the bytes.
    is_half_closed: bool,
}

/// Sends, and reads until the service ends the connection.
async fn send_and_read(mut stream: TcpStream, bytes: &[u8], pace: Pace) -> io::Result<()> {
    match pace.pause {
        None => stream.write_all(bytes).await?,
        Some(pause) => {
            for byte in bytes {
                stream.write_all(&[*byte]).await?;
                wait_out(pause).await;
            }
        }
    }
    if pace.is_half_closed {
        stream.shutdown().await?;
    }
    let mut unread = [0; 4_096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// Opens so many connections to each of these ports, sends on each one of the inputs for its kind, and stays for a
/// while. Every other one ends its own half.
async fn intrude(
    enemy: &Attacker,
    ports: &[Port],
    each: usize,
    inputs: fn(PortKind) -> Vec<Vec<u8>>,
    pause: Option<Duration>,
) -> AttackResult {
    let until = Instant::now() + Duration::from_millis(enemy.scaled(STAY_MS[0], STAY_MS[1]) as u64);
    let (connected, count) = (AtomicUsize::new(0), ports.len() * each);
    let inputs: Vec<Vec<Vec<u8>>> = ports.iter().map(|port| inputs(port.kind)).collect();
    run_concurrently(count, count, async |number| {
        let (at, turn) = (number % ports.len(), number / ports.len());
        let (port, inputs) = (ports[at], &inputs[at]);
        let pace = Pace { pause, is_half_closed: turn / inputs.len() % 2 == 1 };
        enemy.calls.record_call();
        match connect(port).await {
            Ok(stream) => {
                connected.fetch_add(1, Ordering::Relaxed);
                // How it ends is the service's choice.
                _ = timeout_at(until, send_and_read(stream, &inputs[turn % inputs.len()], pace)).await;
            }
            Err(_) => enemy.calls.record_error("NOT_CONNECTED"),
        }
    })
    .await;
    if connected.into_inner() > 0 { Ok(()) } else { Err("no port accepts a stranger's connection".to_owned()) }
}

async fn intrude_everywhere(
    enemy: &Attacker,
    inputs: fn(PortKind) -> Vec<Vec<u8>>,
    pause: Option<Duration>,
) -> AttackResult {
    let each = enemy.scaled(CONNECTIONS_PER_PORT[0], CONNECTIONS_PER_PORT[1]);
    intrude(enemy, &ports(enemy), each, inputs, pause).await
}

pub(crate) async fn half_handshakes(enemy: Attacker) -> AttackResult {
    intrude_everywhere(&enemy, half_handshakes_of, None).await?;
    // Then more at one node than it has room for; nothing of the cluster's own connections is lost.
    let each = enemy.scaled(CONNECTIONS_TO_NODE[0], CONNECTIONS_TO_NODE[1]);
    for node in ports(&enemy).iter().filter(|port| port.kind == PortKind::Node) {
        intrude(&enemy, std::slice::from_ref(node), each, half_handshakes_of, None).await?;
    }
    Ok(())
}

pub(crate) async fn garbage(enemy: Attacker) -> AttackResult {
    for _ in 0..enemy.scaled(3, 1) {
        intrude_everywhere(&enemy, garbage_of, None).await?;
    }
    Ok(())
}

pub(crate) async fn slow_heads(enemy: Attacker) -> AttackResult {
    intrude_everywhere(&enemy, slow_heads_of, Some(DRIP_PAUSE)).await
}

pub(crate) async fn oversized(enemy: Attacker) -> AttackResult {
    for _ in 0..enemy.scaled(3, 1) {
        intrude_everywhere(&enemy, oversized_of, None).await?;
    }
    Ok(())
}

/// Beginnings, after which nothing comes.
fn half_handshakes_of(kind: PortKind) -> Vec<Vec<u8>> {
    let common: [&[u8]; 4] = [b"", b"GET / HTTP/1.1\r\nHos", HTTP2_PREFACE, TLS_HELLO];
    let mut inputs: Vec<Vec<u8>> = common.iter().map(|input| input.to_vec()).collect();
    match kind {
        PortKind::Node => {
            inputs.extend([1, PREAMBLE.len() / 2, PREAMBLE.len()].map(|length| PREAMBLE[..length].to_vec()));
            inputs.push(after_preamble(&[0, 0]));
            let handshake = forged_handshake();
            inputs.push(after_preamble(&handshake[..handshake.len() / 2]));
        }
        PortKind::Gateway => {
            inputs.push(b"POST /v1/namespaces HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n{".to_vec())
        }
        PortKind::Locktopus => {
            let upgrade = locktopus_upgrade();
            inputs.push(upgrade[..upgrade.len() - 2].to_vec());
            inputs.push(upgrade);
        }
    }
    inputs
}

/// What no protocol is, alone and behind the beginning of one.
fn garbage_of(kind: PortKind) -> Vec<Vec<u8>> {
    let garbage: Vec<u8> = (0..16_384_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let behind = |begin: &[u8]| [begin, garbage.as_slice()].concat();
    let mut inputs = vec![behind(b""), behind(b"\0"), behind(HTTP2_PREFACE), behind(b"GET /"), behind(TLS_HELLO)];
    match kind {
        PortKind::Node => {
            inputs.push(behind(&PREAMBLE));
            // A frame of a handshake that is none, and one with a token that nobody signed.
            inputs.push(behind(&after_preamble(&[0, 0, 0x40, 0])));
            inputs.push(behind(&after_preamble(&forged_handshake())));
        }
        PortKind::Gateway => {
            inputs.push(behind(b"POST /v1/tokens HTTP/1.1\r\nHost: t\r\nContent-Length: 16384\r\n\r\n"))
        }
        PortKind::Locktopus => inputs.push(behind(&locktopus_upgrade())),
    }
    inputs
}

/// Heads that come byte by byte.
fn slow_heads_of(kind: PortKind) -> Vec<Vec<u8>> {
    let head = b"GET /v1/namespaces HTTP/1.1\r\nHost: t\r\nX-Slow: ".to_vec();
    let head = [head, vec![b'x'; 1_024]].concat();
    match kind {
        PortKind::Node => vec![head, after_preamble(&forged_handshake())],
        PortKind::Gateway => vec![head, HTTP2_PREFACE.to_vec()],
        PortKind::Locktopus => vec![head, locktopus_upgrade()],
    }
}

/// More than is accepted, or the announcement of it.
fn oversized_of(kind: PortKind) -> Vec<Vec<u8>> {
    let large = vec![b'x'; LARGE];
    let behind = |begin: &[u8]| [begin, large.as_slice()].concat();
    let mut inputs = vec![
        behind(b"GET / HTTP/1.1\r\nHost: t\r\nX-Long: "),
        behind(b"GET /"),
        // A frame of HTTP/2 of 16 MiB, of the kind of heads.
        behind(&[HTTP2_PREFACE, &[0xff_u8, 0xff, 0xff, 1, 4, 0, 0, 0, 1]].concat()),
    ];
    match kind {
        PortKind::Node => {
            inputs.push(behind(&after_preamble(&u32::MAX.to_be_bytes())));
            inputs.push(behind(&after_preamble(&(256_u32 << 10).to_be_bytes())));
        }
        PortKind::Gateway => {
            inputs.push(behind(b"POST /v1/namespaces HTTP/1.1\r\nHost: t\r\nContent-Length: 1099511627776\r\n\r\n"));
        }
        PortKind::Locktopus => {
            // A masked text of 2^40 bytes, and one of as many as follow.
            let text_of = |length: u64| [&[0x81_u8, 0xff][..], &length.to_be_bytes(), &[0; 4]].concat();
            inputs.push(behind(&[locktopus_upgrade(), text_of(1 << 40)].concat()));
            inputs.push(behind(&[locktopus_upgrade(), text_of(LARGE as u64)].concat()));
        }
    }
    inputs
}

fn after_preamble(bytes: &[u8]) -> Vec<u8> {
    [&PREAMBLE[..], bytes].concat()
}

/// A frame with the handshake of a gateway whose token nobody signed: protocol, caller and token.
fn forged_handshake() -> Vec<u8> {
    let text = |field: u8, text: &str| [&[(field << 3) | 2, text.len() as u8][..], text.as_bytes()].concat();
    let message = [text(1, "calls"), text(4, "stranger"), text(7, "forged")].concat();
    [&(message.len() as u32).to_be_bytes()[..], &message].concat()
}

/// Opens a connection of a Locktopus client. Its session ends with it.
fn locktopus_upgrade() -> Vec<u8> {
    b"GET /v1?namespace=strangers&abandon-timeout-ms=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n\
      Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        .to_vec()
}

pub(crate) async fn forged_keys(enemy: Attacker) -> AttackResult {
    let ports = ports(&enemy);
    let mut silent = Vec::new();
    for number in 0..enemy.scaled(300, 30) {
        silent.push(connect(ports[number % ports.len()]).await.map_err(|error| error.to_string())?);
    }
    run_concurrently(enemy.scaled(4_500, 300), 32, async |number| {
        // As long as a valid one, with an unknown id.
        let (own, _) = enemy.key.rsplit_once('_').expect("a key has parts");
        let forged = format!("{}{:06x}_{}", &own[..own.len() - 6], number, "A".repeat(enemy.key.len() - own.len() - 1));
        let gateway = enemy.gateways[number % enemy.gateways.len()];
        match number / enemy.gateways.len() % 3 {
            0 => {
                let Ok(grpc) = GrpcClient::connect(gateway, &forged, &enemy.calls).await else { return };
                _ = grpc.keep_alive(&enemy.namespace, "se_none").await;
            }
            1 => call_dlocks(&enemy, gateway, &forged).await,
            _ => read_page(&enemy, gateway, PAGES[number % PAGES.len()], &forged).await,
        }
    })
    .await;
    Ok(())
}

async fn call_dlocks(enemy: &Attacker, gateway: SocketAddr, forged: &str) {
    let Ok(grpc) = GrpcClient::connect(gateway, forged, &enemy.calls).await else { return };
    let mut locks = LocksServiceApiClient::new(grpc.channel.clone());
    let message = dlocks::GetLockRequest { namespace_name: enemy.namespace.clone(), lock_name: "l".to_owned() };
    if let Err(status) = locks.get_lock(grpc.signed(message)).await {
        enemy.calls.record_error(&error_code(&status));
    }
}

/// Reads a page over HTTP/1.1, with a key that the pages for everybody do not need.
async fn read_page(enemy: &Attacker, gateway: SocketAddr, page: &str, forged: &str) {
    let request =
        format!("GET {page} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer {forged}\r\n\r\n");
    enemy.calls.record_call();
    let Ok(stream) = connect(Port { kind: PortKind::Gateway, address: gateway }).await else { return };
    let pace = Pace { pause: None, is_half_closed: false };
    let until = Instant::now() + Duration::from_secs(10);
    if timeout_at(until, send_and_read(stream, request.as_bytes(), pace)).await.is_err() {
        enemy.calls.record_error("NOT_ANSWERED");
    }
}
