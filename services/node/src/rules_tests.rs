//! An undecodable command stops a replica, and a node does not open data of later rules.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_auth::ClusterSecret;
use holdfast_cluster::ClusterConfig;
use holdfast_core::Application;
use holdfast_core::{Command, codec};
use holdfast_replication::{EntryHeader, KnownRules, ReplyMode};
use holdfast_routing::TcpDialer;
use holdfast_storage::{MemoryDisk, NodeStore};

use crate::{Node, NodeError, NodeOptions, ShardMachine};

const STAMP: EntryHeader = EntryHeader { term: 1, index: 1, rules: 1, now_ms: 1_000, wall_ms: 2_000 };

fn known() -> Bytes {
    codec::encode(&Command::OutboxConfirm { numbers: vec![1] }).into()
}

/// A command that no build knows.
fn unknown() -> Bytes {
    Bytes::from_static(&[codec::VERSION, 200, 1])
}

#[test]
fn an_entry_with_a_command_that_can_not_be_read_changes_nothing() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    crate::testing::finish(machine.apply(STAMP, &[known()], ReplyMode::Encode).expect("it is sound"));
    let state = || machine.freeze().unwrap().chunks().collect::<Result<Vec<Bytes>, _>>().unwrap();
    let before = state();
    for damaged in [unknown(), Bytes::new(), known().slice(..2)] {
        let later = EntryHeader { now_ms: 5_000, ..STAMP };
        let stopped = machine.apply(later, &[known(), damaged], ReplyMode::Skip).err().expect("it can't be read");
        assert!(stopped.to_string().contains("can't be read"), "{stopped}");
    }
    assert_eq!(state(), before, "neither its clock nor its state has moved");
}

#[test]
fn what_can_not_be_read_is_not_even_proposed() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    assert!(machine.assess(1, &known()).is_ok());
    assert!(machine.assess(2, &unknown()).is_err());
}

/// Opens a node that knows rules 1 and 2 on data that used rules `seen`.
async fn opened_over(seen: u16) -> Option<NodeError> {
    let config = ClusterConfig::generate(vec![("nd_1".to_owned(), "127.0.0.1:7000".to_owned())], 1, 1).unwrap();
    let mut options = NodeOptions::new("nd_1", config, ClusterSecret::generate().unwrap(), "data");
    options.rules = KnownRules { lowest: 1, highest: 2 };
    let disk = MemoryDisk::new();
    let store = NodeStore::in_memory(&disk, &options.identity()).unwrap();
    store.replica(1).record_rules(seen);
    store.close().await;
    let store = NodeStore::in_memory(&disk, &options.identity()).unwrap();
    Node::with_store(&options, store, Arc::new(TcpDialer)).err()
}

#[tokio::test]
async fn data_of_later_rules_is_not_opened_and_says_which_program_it_needs() {
    assert!(opened_over(2).await.is_none());
    let refusal = opened_over(3).await.expect("an earlier program must not go on with it");
    assert!(matches!(refusal, NodeError::UnsupportedRules { seen: 3, .. }), "{refusal}");
    assert!(refusal.to_string().contains("rules 3, and this program knows rules 1 to 2"), "{refusal}");
}
