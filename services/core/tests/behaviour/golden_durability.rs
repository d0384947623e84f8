//! The bytes of what tells the durability of a namespace: all of it is of rules 2.

use holdfast_core::{
    Command, Durability, Incarnation, Limits, LocksCommand, Namespace, NamespaceMessage, NamespacesCommand, Response,
    codec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::support::{ACCOUNT, orders, request_id};

fn assert_bytes<T>(value: &T, hex: &str)
where
    T: Serialize + DeserializeOwned + std::fmt::Debug,
{
    let bytes = codec::encode(value);
    assert_eq!(hex::encode(&bytes), hex, "{value:?}");
    assert_eq!(codec::encode(&codec::decode::<T>(&bytes).unwrap()), bytes);
}

#[test]
fn commands_have_the_bytes_they_always_had() {
    let (name, description, durability) = ("orders".to_owned(), "of the tests".to_owned(), Durability::Session);
    assert_bytes(
        &Command::Namespaces(NamespacesCommand::create(request_id(3), ACCOUNT, name, description, durability)),
        "0101040000000000000000000000000000000307066f72646572730c6f662074686520746573747301",
    );
    let message = NamespaceMessage::open_durable(orders(), Limits::default(), durability);
    let open = Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
    let limits = hex::encode(&codec::encode(&Limits::default())[1..]);
    assert_bytes(&open, &format!("0102000d6e616d657370616365735f3030010407066f726465727301{limits}01"));
}

#[test]
fn replies_have_the_bytes_they_always_had() {
    let namespace = Namespace {
        incarnation: Incarnation(1),
        account: ACCOUNT,
        name: "orders".into(),
        description: "d".into(),
        created_at_ms: 300,
        updated_at_ms: 301,
        durability: Durability::Session,
    };
    assert_bytes(&Response::of_namespace(namespace.clone()), "013d0107066f72646572730164ac02ad0201");
    let full = Namespace { durability: Durability::Full, ..namespace.clone() };
    assert_bytes(
        &Response::of_namespaces(vec![namespace, full], true),
        "013e020107066f72646572730164ac02ad02010107066f72646572730164ac02ad020001",
    );
}
