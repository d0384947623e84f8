//! The targets.

use bytes::Bytes;
use holdfast_auth::{ApiKeySecret, ClusterSecret, Credential, OperatorToken, ServiceSigner, ServiceVerifier};
use holdfast_cluster::ClusterConfig;
use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{AccountId, Command, EntryContext, Event, Query, Reply, Rules, codec};
use holdfast_gateway::testing::{read_body, read_locktopus_message, read_session_message};
use holdfast_proto::{internal, v1};
use prost::Message;

/// Something that reads bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Also the name of its corpus.
    pub name: &'static str,
    /// Whether it reads text: its corpus has the inputs as they are, a line each, and not in hex.
    pub is_text: bool,
    /// Reads the bytes. Whether they were taken for what they should be.
    pub run: fn(&[u8]) -> bool,
}

/// All of them.
pub const TARGETS: [Target; 13] = [
    text("rest_body", |bytes| read_body(bytes) > 0),
    text("session_message", read_session_message),
    text("locktopus_message", read_locktopus_message),
    text("page_token", page_token),
    text("credential", credential),
    text("cluster_config", cluster_config),
    binary("command", command),
    binary("commands", crate::commands::run),
    binary("answer", answer),
    binary("snapshot", snapshot),
    binary("stored", holdfast_replication::testing::read_stored),
    binary("raft_message", holdfast_replication::testing::read_message),
    binary("frame", frame),
];

const fn text(name: &'static str, run: fn(&[u8]) -> bool) -> Target {
    Target { name, is_text: true, run }
}

const fn binary(name: &'static str, run: fn(&[u8]) -> bool) -> Target {
    Target { name, is_text: false, run }
}

fn page_token(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    holdfast_api::page_token::decode::<(u64, String)>("locks", Some(text)).is_ok_and(|cursor| cursor.is_some())
}

fn credential(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let secret = secret();
    let is_service_token = ServiceVerifier::new(&secret).verify(text).is_ok();
    let is_known = ApiKeySecret::parse(text).is_ok() | Credential::parse(text).is_ok();
    is_service_token | is_known | OperatorToken::parse(text).is_ok() | ClusterSecret::from_hex(text).is_ok()
}

fn secret() -> ClusterSecret {
    ClusterSecret::from_hex(&"5a".repeat(32)).expect("this is a secret")
}

/// Good credentials of each kind.
pub(crate) fn credential_samples() -> Vec<Vec<u8>> {
    let key = ApiKeySecret::derive(&secret(), AccountId(7), "corpus").reveal();
    let token = ServiceSigner::new(&secret(), "corpus").token().expect("a token can be signed");
    let operator = OperatorToken::generate().expect("there are random bytes");
    let hex = secret().to_hex();
    [&key, &token, operator.reveal(), &hex].map(|secret| secret.expose().as_bytes().to_vec()).into()
}

fn cluster_config(bytes: &[u8]) -> bool {
    let Ok(config) =
        std::str::from_utf8(bytes).map_err(|_| ()).and_then(|text| ClusterConfig::from_json(text).map_err(|_| ()))
    else {
        return false;
    };
    // What is accepted can be written and read again, and rebuilt.
    assert_eq!(ClusterConfig::from_json(&config.to_json()).expect("it was valid"), config);
    if let Some(seed) = config.to_seed_json() {
        assert_eq!(ClusterConfig::from_json(&seed).expect("it was valid"), config);
    }
    if let Some(node) = config.nodes.first() {
        let _ = config.rebuild_node(&node.id);
    }
    true
}

/// A shard of locks in which the namespace of the corpus exists.
fn shard() -> ShardState {
    let mut shard = ShardState::new(Application::Locks, "locks_00");
    let open = hex::decode(OPEN_NAMESPACE).expect("this is hex");
    let open: Command = codec::decode(&open).expect("this is a command");
    shard.apply(&context(1), &open);
    shard
}

/// The namespace `orders` is opened, with the usual limits.
const OPEN_NAMESPACE: &str = "0102000d6e616d657370616365735f3030010007066f7264657273018008800840e807106480b89929c0cf24c0cf24e807c0\
                    cf24c0843da08d06a08d06a08d06904e";

fn context(now_ms: u64) -> EntryContext {
    EntryContext { now_ms, wall_ms: now_ms, rules: Rules::HIGHEST }
}

/// A command is read, and carried out by a shard of each kind: what is in a log is applied, whatever it is.
fn command(bytes: &[u8]) -> bool {
    let Ok(command) = codec::decode::<Command>(bytes) else { return false };
    let accounts = ShardState::new(Application::Accounts, "accounts_00");
    let namespaces = ShardState::new(Application::Namespaces, "namespaces_00");
    for (id, mut shard) in [("accounts_00", accounts), ("namespaces_00", namespaces), ("locks_00", shard())] {
        for now_ms in [2, 2, 1_000_000] {
            shard.apply(&context(now_ms), &command);
        }
        shard.verify();
        let again = ShardState::restore(shard.application(), id, shard.snapshot());
        assert!(again.is_ok(), "a snapshot of what was applied can't be read: {:?}", again.err());
    }
    true
}

/// Messages between nodes and gateways.
fn answer(bytes: &[u8]) -> bool {
    let is_reply = codec::decode::<Reply>(bytes).is_ok() | codec::decode::<Vec<Event>>(bytes).is_ok();
    let Ok(query) = codec::decode::<Query>(bytes) else { return is_reply };
    shard().query(5, &query);
    true
}

/// Snapshots come in pieces: each begins with its length, in two bytes. The first byte says of which kind of shard.
fn snapshot(bytes: &[u8]) -> bool {
    let Some((kind, mut rest)) = bytes.split_first() else { return false };
    let application = match kind % 3 {
        0 => Application::Accounts,
        1 => Application::Namespaces,
        _ => Application::Locks,
    };
    let mut pieces = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let (piece, after) = after.split_at(usize::from(u16::from_be_bytes(*length)).min(after.len()));
        pieces.push(piece);
        rest = after;
    }
    let Ok(mut shard) = ShardState::restore(application, "locks_00", &pieces) else { return false };
    // What is taken in has to be good enough to go on with.
    shard.advance(&context(u64::from(u32::MAX)));
    let _ = shard.snapshot();
    true
}

/// A snapshot as that target takes it.
pub(crate) fn snapshot_sample() -> Vec<u8> {
    let mut bytes = vec![2];
    for piece in shard().snapshot() {
        let length = u16::try_from(piece.len()).expect("the shard is small");
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&piece);
    }
    bytes
}

/// Frames between processes, and what gRPC clients send.
fn frame(bytes: &[u8]) -> bool {
    fn reads<T: Message + Default>(bytes: &[u8]) -> bool {
        T::decode(Bytes::copy_from_slice(bytes)).is_ok()
    }
    let between = reads::<internal::RaftMessages>(bytes)
        | reads::<internal::SnapshotChunk>(bytes)
        | reads::<internal::Handshake>(bytes)
        | reads::<internal::HandshakeReply>(bytes)
        | reads::<internal::CallFrame>(bytes)
        | reads::<internal::AnswerFrame>(bytes)
        | reads::<internal::StatusAnswer>(bytes);
    between | reads::<v1::AcquireLockRequest>(bytes)
}
