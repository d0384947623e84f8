//! Namespaces whose locks are in the memory of a leader.

use std::time::Duration;

use holdfast_client::protocol::{AskReleaseRequest, CreateNamespaceRequest, Durability};
use holdfast_client::{Client, Error, Session};

use crate::recorder::Recorder;
use crate::support::{ProxyMode, TTL, client, eventually, key, proxy, unique_name};

/// Asks for everything on a session that such a namespace does not have.
async fn assert_unsupported(session: &Session) {
    let (time, mutex) = (Duration::from_secs(1), session.mutex("refused"));
    let answers = [
        (mutex.clone().at_least(time).lock().await.map(drop), "at_least_ms"),
        (mutex.transition(time).try_lock().await.map(drop), "transition_ms"),
        (session.semaphore("refused").permits(2).acquire(1).await.map(drop), "semaphore"),
        (session.pool("refused").take(1).await.map(drop), "pool"),
        (session.barrier("refused").parties(1).wait().await.map(|_| ()), "barrier"),
    ];
    for (answer, what) in answers {
        assert_eq!(answer, Err(Error::Unsupported(what)));
    }
    assert_eq!(session.request_count(), 0, "nothing was sent");
    let condition = session.condition("changed");
    let guard = session.mutex("held").lock().await.unwrap();
    assert_eq!(guard.signal(&condition).await, Err(Error::Unsupported("condition")));
    guard.check().unwrap();
    assert_eq!(guard.wait(&condition).await.unwrap_err(), Error::Unsupported("condition"));
    // Whoever can't wait holds the lock no more.
    session.mutex("held").owned_by("another").lock().await.unwrap().release().await.unwrap();
    eventually("nothing is left at the client", async || session.request_count() == 0).await;
}

#[tokio::test]
async fn what_locks_in_memory_do_not_have_is_refused_by_its_name_on_each_connection() {
    let (proxy, recorder, namespace) = (proxy(), Recorder::default(), unique_name("in-memory"));
    let (name, durability) = (namespace.clone(), Durability::Session.into());
    let create = CreateNamespaceRequest { name, durability, ..Default::default() };
    client().namespaces().create_namespace(create).await.unwrap();
    // A leader's gateway would be a way around the proxy.
    let cut = Client::builder().gateway(proxy.url()).api_key(key()).prefer_leader(false).build().unwrap();
    let session = cut.session(namespace.as_str()).ttl(TTL).handler(recorder.clone()).open().await.unwrap();
    assert_unsupported(&session).await;
    proxy.set_mode(ProxyMode::Cut);
    recorder.eventually("jeopardy").await;
    proxy.set_mode(ProxyMode::Open);
    recorder.eventually("safe").await;
    assert_unsupported(&session).await;

    // Who makes a single call does not know the durability: the service refuses it.
    let force = AskReleaseRequest { namespace, name: Some("held".into()), force: true, ..Default::default() };
    let refused = client().locks().ask_release(force).await.unwrap_err();
    assert_eq!(Error::from(refused), Error::Unsupported("force"));
}
