//! A running service for tests of the client, and a way to it that can be cut.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use holdfast_client::{Client, Session, protocol};
pub(crate) use holdfast_testkit::{ProxyMode, TcpProxy, eventually_true as eventually};
use holdfast_testkit::{Standalone, scratch};
use tokio::task::yield_now;
use tokio::time::timeout;

/// Far longer than anything takes that is not about time.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);
/// A time to live that no test waits for.
pub(crate) const TTL: Duration = Duration::from_secs(30);
/// The shortest time to live of a session.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(1);
/// The namespace that a first start makes.
pub(crate) const NAMESPACE: &str = "demo";

static SERVER: OnceLock<Standalone> = OnceLock::new();
static NAMES: AtomicU32 = AtomicU32::new(0);

/// The service that the tests of a program share. It ends with them.
pub(crate) fn server() -> &'static Standalone {
    SERVER.get_or_init(|| Standalone::start(&scratch(), &[]))
}

/// A way to it.
pub(crate) fn proxy() -> TcpProxy {
    TcpProxy::to(server().address())
}

pub(crate) fn url() -> String {
    server().url()
}

pub(crate) fn key() -> String {
    server().secret("demo.key")
}

pub(crate) fn client() -> Client {
    Client::new(&url(), &key()).unwrap()
}

/// A session that calls itself so.
pub(crate) async fn session(process_id: &str) -> Session {
    client().session(NAMESPACE).process_id(process_id).ttl(TTL).open().await.unwrap()
}

/// A name that no other test uses.
pub(crate) fn unique_name(what: &str) -> String {
    format!("{what}-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// The lock as the service shows it.
pub(crate) async fn get_lock(client: &Client, name: &str) -> protocol::Lock {
    let (namespace, name) = (NAMESPACE.to_owned(), Some(name.to_owned()));
    let get = protocol::GetLockRequest { namespace, name, ..Default::default() };
    client.locks().get_lock(get).await.unwrap().into_inner().lock.unwrap()
}

/// Forces the lock open.
pub(crate) async fn delete(client: &Client, name: &str) {
    let (namespace, name) = (NAMESPACE.to_owned(), Some(name.to_owned()));
    client.locks().delete_lock(protocol::DeleteLockRequest { namespace, name, ..Default::default() }).await.unwrap();
}

/// Waits until the gateway follows the session, which it begins to do once it has opened it: it tells of a lock that is
/// forced open. Before that it can't say why something ended.
pub(crate) async fn wait_followed(session: &Session) {
    let name = unique_name("followed");
    let guard = session.mutex(name.as_str()).lock().await.unwrap();
    delete(&client(), &name).await;
    in_time("the loss", guard.lost()).await;
}

/// Waits until so many wait for the lock.
pub(crate) async fn eventually_waiting(client: &Client, name: &str, count: u64) {
    eventually(&format!("{count} wait for {name}"), async || get_lock(client, name).await.waiting == count).await;
}

/// Waits until nobody holds the lock or waits for it, and the session remembers nothing of it.
pub(crate) async fn eventually_nothing_left(session: &Session, name: &str) {
    let client = client();
    eventually(&format!("nothing is left of {name}"), async || {
        let lock = get_lock(&client, name).await;
        lock.holders_total == 0 && lock.waiting == 0 && session.request_count() == 0
    })
    .await;
}

/// What comes within good time.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(MAX_WAIT, future).await.unwrap_or_else(|_| panic!("{what}: not within {MAX_WAIT:?}"))
}

/// Lets everything else on this thread go on by so many steps, and drops the future then.
pub(crate) async fn dropped_after<T>(future: impl Future<Output = T>, steps: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..steps {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
        // Whoever runs on this thread takes a turn, and the network is looked at.
        yield_now().await;
    }
    None
}
