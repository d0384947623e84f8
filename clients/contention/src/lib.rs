//! Contention for one owner, and leader election, on top of a client of a Holdfast service: a port of Simba.
//!
//! Purpose: many contenders compete for one mutex, and each is notified when it becomes the owner and when it ceases to
//! be.
//!
//! A [`MutexContendService`] contends on behalf of a [`MutexContender`]; a [`MutexRetrievalService`] only observes and
//! notifies a [`MutexRetriever`]. A [`ContentionFactory`] creates both. The lock service stores owners
//! ([`ServiceStore`]) or, for tests, this process ([`InProcessStore`]). [`SimbaLocker`], [`Scheduler`] and
//! [`LeaderElection`](election::LeaderElection) build on them.
//!
//! Invariant: an ownership lasts for a time to live and is renewed. If the renewal fails, the ownership ends by this
//! machine's boot clock, before another contender can get the mutex: from that instant on
//! [`MutexContendService::is_owner`] is false, and [`MutexContender::on_released`] is called.
//!
//! Deliberately unknown here: sessions and their locks, connections and gateways. These belong to the
//! [`Client`](holdfast_client::Client), which this crate uses for single calls only.

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
mod status;
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
    MutexContendService, MutexContendServiceFactory, MutexRetrievalService, MutexRetrievalServiceFactory,
};
pub use state::MutexState;
pub use status::Status;
pub use store::{AcquireMutex, Acquisition, Holding, InProcessStore, MutexStore, ServiceStore};
pub use timestamp::Timestamp;
