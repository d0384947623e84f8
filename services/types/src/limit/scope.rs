//! What has a limit for itself.

use std::net::{IpAddr, Ipv6Addr};

/// What has a limit for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each account.
    Account,
    /// Each account at each gateway.
    AccountAndGateway,
    /// Each gateway.
    Gateway,
    /// Each address of callers at each gateway.
    AddressAndGateway,
    /// Each node.
    Node,
    /// Each address of callers at each node.
    AddressAndNode,
    /// Each account in each shard.
    AccountAndShard,
    /// Each account at each node.
    AccountAndNode,
    /// Each account at each gateway, for each node.
    AccountAndConnection,
    /// Each node at each gateway.
    Connection,
    /// Each namespace.
    Namespace,
    /// Each lock.
    Lock,
    /// Each latch.
    Latch,
    /// Each semaphore.
    Semaphore,
    /// Each pool.
    Pool,
    /// Each barrier.
    Barrier,
    /// Each hold.
    Hold,
    /// Each owner.
    Owner,
    /// Each session.
    Session,
    /// Each request.
    Request,
    /// Each shard.
    Shard,
    /// Each shard at each gateway.
    ShardAndGateway,
    /// Each account at each gateway, for each shard.
    AccountShardAndGateway,
    /// Each group of shards.
    Group,
    /// Each account in each group of shards.
    AccountAndGroup,
}

impl Scope {
    /// Returns what has a limit for itself, as people and usage call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::AccountAndGateway => "account and gateway",
            Self::Gateway => "gateway",
            Self::AddressAndGateway => "address and gateway",
            Self::Node => "node",
            Self::AddressAndNode => "address and node",
            Self::AccountAndShard => "account and shard",
            Self::AccountAndNode => "account and node",
            Self::AccountAndConnection => "account, gateway and node",
            Self::Connection => "gateway and node",
            Self::Namespace => "namespace",
            Self::Lock => "lock",
            Self::Latch => "latch",
            Self::Semaphore => "semaphore",
            Self::Pool => "pool",
            Self::Barrier => "barrier",
            Self::Hold => "hold",
            Self::Owner => "owner",
            Self::Session => "session",
            Self::Request => "request",
            Self::Shard => "shard",
            Self::ShardAndGateway => "gateway and shard",
            Self::AccountShardAndGateway => "account, gateway and shard",
            Self::Group => "group",
            Self::AccountAndGroup => "account and group",
        }
    }

    /// Returns whether the usage of an account has the limit: it counts for the account, or for each of its namespaces.
    pub fn is_of_account(self) -> bool {
        match self {
            Self::Account
            | Self::AccountAndGateway
            | Self::AccountAndShard
            | Self::AccountAndNode
            | Self::AccountAndConnection
            | Self::AccountAndGroup
            | Self::AccountShardAndGateway
            | Self::Namespace => true,
            Self::Gateway
            | Self::AddressAndGateway
            | Self::Node
            | Self::AddressAndNode
            | Self::Connection
            | Self::Lock
            | Self::Latch
            | Self::Semaphore
            | Self::Pool
            | Self::Barrier
            | Self::Hold
            | Self::Owner
            | Self::Session
            | Self::Request
            | Self::Shard
            | Self::ShardAndGateway
            | Self::Group => false,
        }
    }
}

/// Returns the address that a limit counts for a caller. An IPv6 address counts as its /64 network, which usually has
/// one owner.
pub fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}
