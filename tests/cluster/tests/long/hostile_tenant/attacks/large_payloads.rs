//! What takes much memory, or makes answers large.

use std::collections::HashMap;
use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::Message;
use holdfast_testkit::wait_out;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::AttackResult;
use crate::hostile_tenant::attacker::{AcquireOptions, Attacker, MAX_CLAIMS, Owner, run_concurrently};
use crate::hostile_tenant::session::{flat_path, lock_message, write_claim};

/// The bytes that metadata may have.
const MAX_METADATA_BYTES: usize = 1_024;
/// Pairs of metadata that are refused, and those that are not.
const METADATA_PAIRS: [usize; 2] = [525, 64];
/// A path of unique segments, in a request that is just not too large.
const PATH_DEPTH: usize = 16;
const SEGMENT_BYTES: usize = 56;
/// How long a connection may take nothing until the attack leaves it so.
const SEND_TIMEOUT: Duration = Duration::from_millis(50);

/// As much metadata as there may be, in so many pairs.
fn metadata_of_pairs(count: usize) -> HashMap<String, String> {
    let name = |at: usize| char::from_u32(0x21 + at as u32).filter(char::is_ascii_graphic);
    let short = |at: usize| name(at).map_or_else(|| format!("{at:x}"), String::from);
    let mut metadata: HashMap<_, _> = (0..count).map(|at| (short(at), String::new())).collect();
    let used: usize = metadata.keys().map(String::len).sum();
    if let Some(value) = metadata.get_mut("!") {
        *value = "v".repeat(MAX_METADATA_BYTES.saturating_sub(used));
    }
    // One that is too long anyway is refused for its bytes before its pairs are counted.
    while metadata.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_METADATA_BYTES {
        let Some(longest) = metadata.keys().max_by_key(|name| name.len()).cloned() else { break };
        metadata.remove(&longest);
    }
    metadata
}

/// A single pair of as many bytes as there may be.
pub(crate) fn kibibyte_of_metadata() -> HashMap<String, String> {
    HashMap::from([("a".to_owned(), "x".repeat(MAX_METADATA_BYTES - 1))])
}

pub(crate) async fn metadata(enemy: Attacker) -> AttackResult {
    let grpc = enemy.connect().await?;
    let names = |request: usize| (0..MAX_CLAIMS).map(|at| flat_path(format!("m{request}-{at}"))).collect::<Vec<_>>();
    for count in METADATA_PAIRS {
        let terms = AcquireOptions { metadata: metadata_of_pairs(count), ..AcquireOptions::default() };
        run_concurrently(enemy.scaled(700, 40), 16, async |request| {
            let owner = Owner::Process(format!("owner-{request}"));
            _ = grpc.acquire_set(enemy.acquire_request(&owner, &terms, names(request))).await;
        })
        .await;
    }
    Ok(())
}

pub(crate) async fn named(enemy: Attacker) -> AttackResult {
    let mut session = enemy.open_session().await?;
    let claims = || (0..MAX_CLAIMS).map(|at| write_claim(flat_path(format!("held-{at}")))).collect::<Vec<_>>();
    let again = |at: usize| lock_message("same", format!("request-{at:06}"), claims());
    session.request_locks((0..enemy.scaled(30_000, 1_000)).map(again)).await?;
    session.close().await
}

/// A path that no other request and no other claim has.
fn deep_path(request: usize, at: usize) -> Vec<String> {
    (0..PATH_DEPTH)
        .map(|segment| format!("{request:06}-{at:02}-{segment:02}-{}", "x".repeat(SEGMENT_BYTES - 13)))
        .collect()
}

pub(crate) async fn deep(enemy: Attacker) -> AttackResult {
    let grpc = enemy.connect().await?;
    let terms = AcquireOptions::default();
    run_concurrently(enemy.scaled(1_000, 50), 32, async |request| {
        let paths = (0..MAX_CLAIMS).map(|at| deep_path(request, at)).collect();
        let owner = Owner::Process(format!("owner-{request}"));
        _ = grpc.acquire_set(enemy.acquire_request(&owner, &terms, paths)).await;
    })
    .await;
    Ok(())
}

/// Asks for large pages over HTTP/1.1, one request behind the other, and reads no answer.
pub(crate) async fn unread_answers(enemy: Attacker) -> AttackResult {
    const REQUESTS_PER_CONNECTION: usize = 200;
    let terms = AcquireOptions { metadata: kibibyte_of_metadata(), ..AcquireOptions::default() };
    let owner = Owner::Process("owner".to_owned());
    enemy.acquire_many(&owner, &terms, "large-", enemy.scaled(1_000, 200)).await?;
    let path = format!("/v1/namespaces/{}/locks?page_size=1000", enemy.namespace);
    let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\n\r\n", enemy.key);
    let requests = request.repeat(REQUESTS_PER_CONNECTION);
    let mut unread = Vec::new();
    for number in 0..enemy.scaled(100, 10) {
        let gateway = enemy.gateways[number % enemy.gateways.len()];
        let mut stream = TcpStream::connect(gateway).await.map_err(|error| error.to_string())?;
        enemy.calls.record_call();
        // The gateway need not take all of them.
        _ = timeout(SEND_TIMEOUT, stream.write_all(requests.as_bytes())).await;
        unread.push(stream);
    }
    wait_out(Duration::from_millis(enemy.scaled(5_000, 200) as u64)).await;
    drop(unread);
    Ok(())
}

/// Sessions that send large requests for what they hold already, and read no answer.
pub(crate) async fn session_flood(enemy: Attacker) -> AttackResult {
    let mut sessions = Vec::new();
    for number in 0..enemy.scaled(10, 2) {
        let mut session = enemy.open_session().await?;
        for request in 0..enemy.scaled(200, 20) {
            let claims = (0..MAX_CLAIMS).map(|at| write_claim(deep_path(number, at))).collect();
            let message = Message::Lock(lock_message("t", format!("r{request}"), claims));
            // The gateway need not read all of them.
            if !matches!(timeout(SEND_TIMEOUT, session.send(message)).await, Ok(Ok(()))) {
                break;
            }
        }
        sessions.push(session);
    }
    wait_out(Duration::from_millis(enemy.scaled(5_000, 200) as u64)).await;
    drop(sessions);
    Ok(())
}

pub(crate) async fn replies(enemy: Attacker) -> AttackResult {
    const READERS: usize = 16;
    let names = || (0..MAX_CLAIMS).map(|at| flat_path(format!("read-{at}"))).collect::<Vec<_>>();
    let terms = AcquireOptions { mode: v1::Mode::Read, metadata: kibibyte_of_metadata(), ..AcquireOptions::default() };
    let grpc = enemy.connect().await?;
    run_concurrently(READERS, READERS, async |number| {
        let owner = Owner::Process(format!("reader-{number}"));
        _ = grpc.acquire_set(enemy.acquire_request(&owner, &terms, names())).await;
    })
    .await;
    run_concurrently(128 * enemy.scaled(8, 1), 128, async |number| {
        let owner = Owner::Process(format!("another-{}", number % 128));
        _ = grpc.acquire_set(enemy.acquire_request(&owner, &terms, names())).await;
    })
    .await;
    Ok(())
}
