//! Rust client for the locks, semaphores, pools, latches and barriers of a Holdfast service.
//!
//! Purpose: the API for applications: a connection to any gateway, a session that outlives connections, and locks and
//! permits on it that are released when their guards are dropped, and barriers; latches, which need no session.
//!
//! Invariant: a client holds a granted lock until the reported deadline, counted from before the service starts its own
//! count, by a clock that continues while the machine is suspended. After the deadline this library does not report the
//! lock as held, nor after a setting of the wall clock that may follow a pause of the machine.
//!
//! Deliberately unknown here: how the service works, and how applications use their locks. Contention for one owner and
//! leader election are in the crate `holdfast-contention`.
//!
//! ```
//! use holdfast_client::Client;
//!
//! #[tokio::main]
//! async fn main() -> holdfast_client::Result<()> {
//!     # let service = holdfast_testkit::Standalone::fresh();
//!     # let (url, key) = (service.url(), service.secret("demo.key"));
//!     // As in `http://127.0.0.1:8080` and `hf_…`.
//!     let client = Client::new(&url, &key)?;
//!     let session = client.session("demo").process_id("report-writer").open().await?;
//!     let guard = session.mutex("report").lock().await?;
//!     guard.protect(async { println!("only one of us, with token {}", guard.fencing_token()) }).await?;
//!     guard.release().await?;
//!     session.close().await;
//!     Ok(())
//! }
//! ```

mod barriers;
mod calls;
mod channel;
mod client;
mod error;
mod gateway;
mod latches;
mod leader_hint;
mod leaders;
mod locks;
mod session;
mod view;

pub use barriers::{Barrier, DoubleBarrier, Inside, Left, Met};
pub use channel::GatewayChannel;
pub use client::{AuthChannel, Bearer, Client, ClientBuilder};
pub use error::{CycleStep, EndReason, Error, LossReason, Reason, Refusal, Result};
/// The clocks of a machine, by which sessions end.
pub use holdfast_clock::Clocks;
/// Messages and clients of the service's single calls, generated from its protocol.
pub use holdfast_proto::v1 as protocol;
pub use latches::{JobGuard, Latch, LatchOutcome, LatchStatus, LatchView, WaitGroup};
pub use locks::{
    Condition, Guard, Hold, LockService, LockSet, LockStatus, Mutex, Permit, Pool, PoolLease, RwLock, Semaphore, Woken,
};
pub use session::events::{LockListener, SessionHandler};
pub use session::{Session, SessionBuilder};
pub use view::{Blocker, Holder, Mode, Path, PermitHolder, ReleaseRequest, WaitStatus};
