//! The gRPC frontend.

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient;
use prost_types::Timestamp;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::{
    AcquireRequest, Acquired, Expiry, Failure, FencingLockClient, Holder, Lock, LockClient, Mode, Namespace, Released,
    State,
};
use crate::support::RestClient;

pub(crate) struct Client {
    locks: LocksServiceClient<Channel>,
    namespaces: NamespacesServiceClient<Channel>,
    key: String,
}

impl Client {
    fn request<T>(&self, message: T) -> Request<T> {
        with_key(message, &self.key)
    }
}

/// A request with a credential.
pub(crate) fn with_key<T>(message: T, key: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    request
}

pub(crate) async fn channel(rest: &RestClient) -> Channel {
    Endpoint::from_shared(format!("http://{}", rest.address)).unwrap().connect().await.unwrap()
}

pub(super) fn into_result<T>(answer: Result<Response<T>, Status>) -> Result<T, Failure> {
    answer.map(Response::into_inner).map_err(Failure::from_status)
}

fn non_empty(text: &str) -> Option<String> {
    Some(text.to_owned())
}

impl LockClient for Client {
    async fn connect(rest: &RestClient) -> Self {
        let channel = channel(rest).await;
        let (locks, namespaces) = (LocksServiceClient::new(channel.clone()), NamespacesServiceClient::new(channel));
        Self { locks, namespaces, key: rest.key.clone() }
    }

    async fn acquire(&self, ask: AcquireRequest) -> Result<Acquired, Failure> {
        let (ttl_ms, expires_at) = match ask.expiry {
            Expiry::Ttl(ttl) => (Some(u64::try_from(ttl.as_millis()).unwrap()), None),
            Expiry::At(at) => (None, Some(timestamp(at))),
        };
        let message = v1::AcquireLockRequest {
            namespace: "ns".into(),
            name: Some(ask.lock),
            process_id: Some(ask.process_id),
            mode: if ask.mode == Mode::Read { v1::Mode::Read } else { v1::Mode::Write }.into(),
            ttl_ms,
            expires_at,
            transition_ms: ask.transition_ms,
            metadata: ask.metadata.into_iter().collect(),
            fencing_token: ask.fencing_token,
            wait_ms: ask.wait_ms,
            poll_ms: ask.poll_ms,
            allow_upgrade: ask.allow_upgrade,
            ..Default::default()
        };
        let answer = into_result(self.locks.clone().acquire_lock(self.request(message)).await)?;
        let (reason, refusal) = match answer.reason {
            Some(refusal) => (Some(refusal.code().as_str_name().to_owned()), refusal),
            None => (None, v1::Refusal::default()),
        };
        Ok(Acquired {
            success: answer.success,
            fencing_token: answer.fencing_token,
            reason,
            blockers: refusal.blockers.into_iter().map(|blocker| blocker.holder.unwrap().process_id).collect(),
            queue_position: refusal.queue_position,
            cycle: refusal.cycle.into_iter().map(|step| step.process_id).collect(),
            lock: lock(answer.lock),
        })
    }

    async fn release(&self, lock: &str, process_id: &str) -> Result<Released, Failure> {
        release(self, lock, process_id, None).await
    }

    async fn get(&self, lock_name: &str) -> Result<Lock, Failure> {
        let message = v1::GetLockRequest { namespace: "ns".into(), name: non_empty(lock_name), ..Default::default() };
        Ok(lock(into_result(self.locks.clone().get_lock(self.request(message)).await)?.lock))
    }

    async fn delete(&self, lock_name: &str) -> Result<(), Failure> {
        let message =
            v1::DeleteLockRequest { namespace: "ns".into(), name: non_empty(lock_name), ..Default::default() };
        into_result(self.locks.clone().delete_lock(self.request(message)).await).map(drop)
    }

    async fn create_namespace(&self, name: &str, description: &str) -> Result<Namespace, Failure> {
        let message = v1::CreateNamespaceRequest { name: name.into(), description: description.into(), durability: 0 };
        into_result(self.namespaces.clone().create_namespace(self.request(message)).await).map(namespace)
    }

    async fn get_namespace(&self, name: &str) -> Result<Namespace, Failure> {
        let message = v1::GetNamespaceRequest { name: name.into() };
        into_result(self.namespaces.clone().get_namespace(self.request(message)).await).map(namespace)
    }

    async fn update_namespace(&self, name: &str, description: &str) -> Result<Namespace, Failure> {
        let message = v1::UpdateNamespaceRequest { name: name.into(), description: Some(description.into()) };
        into_result(self.namespaces.clone().update_namespace(self.request(message)).await).map(namespace)
    }

    async fn delete_namespace(&self, name: &str) -> Result<(), Failure> {
        let message = v1::DeleteNamespaceRequest { name: name.into(), id: String::new() };
        into_result(self.namespaces.clone().delete_namespace(self.request(message)).await).map(drop)
    }

    async fn list_namespaces(&self) -> Result<Vec<Namespace>, Failure> {
        let message = v1::ListNamespacesRequest::default();
        let page = into_result(self.namespaces.clone().list_namespaces(self.request(message)).await)?;
        Ok(page.namespaces.into_iter().map(namespace).collect())
    }
}

impl FencingLockClient for Client {
    async fn release_token(&self, lock: &str, process_id: &str, fencing_token: u64) -> Result<Released, Failure> {
        release(self, lock, process_id, Some(fencing_token)).await
    }

    async fn check(&self, lock: &str, fencing_token: u64) -> Result<bool, Failure> {
        let named = v1::CheckLockRequest { namespace: "ns".into(), name: non_empty(lock), ..Default::default() };
        let message = v1::CheckLockRequest { fencing_token, ..named };
        Ok(into_result(self.locks.clone().check_lock(self.request(message)).await)?.current)
    }

    async fn list_locks(
        &self,
        prefix: &[&str],
        page_size: u32,
        page_token: &str,
    ) -> Result<(Vec<String>, Option<String>), Failure> {
        let message = v1::ListLocksRequest {
            namespace: "ns".into(),
            prefix: prefix.iter().map(|&part| part.to_owned()).collect(),
            page_size,
            page_token: page_token.into(),
        };
        let page = into_result(self.locks.clone().list_locks(self.request(message)).await)?;
        let next = (!page.next_page_token.is_empty()).then_some(page.next_page_token);
        Ok((page.locks.into_iter().map(|lock| lock.name.unwrap()).collect(), next))
    }
}

async fn release(
    client: &Client,
    lock_name: &str,
    process_id: &str,
    fencing_token: Option<u64>,
) -> Result<Released, Failure> {
    let message = v1::ReleaseLockRequest {
        namespace: "ns".into(),
        name: non_empty(lock_name),
        process_id: Some(process_id.into()),
        fencing_token,
        ..Default::default()
    };
    let answer = into_result(client.locks.clone().release_lock(client.request(message)).await)?;
    Ok(Released { released: Some(answer.released), lock: lock(answer.lock) })
}

pub(crate) fn timestamp(instant_ns: i64) -> Timestamp {
    let nanos = i32::try_from(instant_ns.rem_euclid(1_000_000_000)).unwrap();
    Timestamp { seconds: instant_ns.div_euclid(1_000_000_000), nanos }
}

fn instant_ms(timestamp: Option<Timestamp>) -> i64 {
    let timestamp = timestamp.expect("an instant");
    timestamp.seconds * 1_000 + i64::from(timestamp.nanos) / 1_000_000
}

fn lock(message: Option<v1::Lock>) -> Lock {
    let message = message.expect("an answer has the lock");
    let name = message.name.clone().expect("a flat lock has a name");
    assert_eq!((message.namespace.as_str(), &message.path), ("ns", &vec![name.clone()]));
    Lock {
        name,
        state: match message.state() {
            v1::lock::State::Unlocked => State::Unlocked,
            v1::lock::State::ReadLocked => State::ReadLocked,
            v1::lock::State::WriteLocked => State::WriteLocked,
        },
        locked_at_ms: message.locked_at.map(|instant| instant_ms(Some(instant))),
        writer: message.write_lock_holder.map(holder),
        readers: message.read_lock_holders.into_iter().map(holder).collect(),
        revision: Some(message.revision),
        waiting: Some(message.waiting),
    }
}

fn holder(message: v1::Holder) -> Holder {
    assert_eq!((&message.session_id, &message.holder), (&None, &None));
    let mode = if message.mode() == v1::Mode::Read { Mode::Read } else { Mode::Write };
    Holder {
        mode: Some(mode),
        in_transition: Some(message.phase() == v1::holder::Phase::Transition),
        process_id: message.process_id,
        locked_at_ms: instant_ms(message.locked_at),
        expires_at_ms: instant_ms(message.expires_at),
        fencing_token: Some(message.fencing_token),
        remaining_ms: message.remaining_ms,
        metadata: Some(message.metadata.into_iter().collect()),
    }
}

fn namespace(message: v1::Namespace) -> Namespace {
    Namespace {
        name: message.name,
        description: message.description,
        created_at_ms: instant_ms(message.created_at),
        updated_at_ms: instant_ms(message.updated_at),
        id: Some(message.id),
    }
}
