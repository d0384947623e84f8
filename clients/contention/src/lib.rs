//! Contention for one owner, and leader election, on top of a client of a Holdfast service: a port of Simba.
//!
//! Purpose: many contend for one mutex, and each is told when it becomes the owner and when it ceases to be.
//!
//! A [`MutexContendService`] contends on behalf of a [`MutexContender`]; a [`MutexRetrievalService`] only looks and
//! tells a [`MutexRetriever`]. A [`ContentionFactory`] makes both. Owners are kept by the lock service
//! ([`ServiceStore`]) or, for tests, by this process ([`InProcessStore`]). [`SimbaLocker`] and [`Scheduler`] are made
//! of them, as is [`LeaderElection`](election::LeaderElection).
//!
//! Invariant: an ownership lasts for a time to live and is renewed. If that fails, it ends on this machine's monotonic
//! clock, and before anybody else can have the mutex: [`MutexContendService::is_owner`] is false from that instant on,
//! and [`MutexContender::on_released`] is called.
//!
//! Deliberately unknown here: sessions and their locks, connections and gateways. All of that is the
//! [`Client`](holdfast_client::Client)'s, which this crate uses for single calls only.

mod contend;
mod contender;
mod contender_id;
pub mod election;
mod error;
mod factory;
mod lifecycle;
mod locker;
mod notifier;
mod one_shot;
mod options;
mod owner;
mod owner_view;
mod period;
mod retrieve;
mod scheduler;
mod service;
mod state;
mod store;
mod timestamp;

pub use contender::{Contender, MutexContender, MutexRetriever};
pub use contender_id::ContenderIdGenerator;
pub use error::ContentionError;
pub use factory::ContentionFactory;
pub use locker::SimbaLocker;
pub use options::{ContendOptions, Pacing};
pub use owner::MutexOwner;
pub use period::ContendPeriod;
pub use scheduler::{ScheduleConfig, Scheduler, Strategy};
pub use service::{
    MutexContendService, MutexContendServiceFactory, MutexRetrievalService, MutexRetrievalServiceFactory, Status,
};
pub use state::MutexState;
pub use store::{AcquireMutex, Acquisition, Holding, InProcessStore, MutexStore, ServiceStore};
pub use timestamp::Timestamp;
