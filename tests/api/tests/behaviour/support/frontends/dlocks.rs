//! The frontend for dlocks clients. It has no tokens, no transition and no reasons.

use holdfast_proto::dlocks as d;
use holdfast_proto::dlocks::locks_service_api_client::LocksServiceApiClient;
use tonic::Request;
use tonic::transport::Channel;

use super::grpc::{channel, into_result, with_key};
use super::{
    AcquireRequest, Acquired, Expiry, Failure, Holder, Lock, LockClient, Mode, Namespace, Released, State, instant_ns,
};
use crate::support::RestClient;

pub(crate) struct Client {
    api: LocksServiceApiClient<Channel>,
    key: String,
}

impl Client {
    fn request<T>(&self, message: T) -> Request<T> {
        with_key(message, &self.key)
    }
}

impl LockClient for Client {
    async fn connect(rest: &RestClient) -> Self {
        Self { api: LocksServiceApiClient::new(channel(rest).await), key: rest.key.clone() }
    }

    async fn acquire(&self, ask: AcquireRequest) -> Result<Acquired, Failure> {
        assert!(ask.fencing_token.is_none() && ask.transition_ms == 0 && ask.metadata.is_empty());
        assert!(ask.wait_ms == 0 && ask.poll_ms.is_none() && !ask.allow_upgrade);
        let message = d::AcquireLockRequest {
            namespace_name: "ns".into(),
            lock_name: ask.lock,
            process_id: ask.process_id,
            write_lock: ask.mode == Mode::Write,
            expires_at: match ask.expiry {
                Expiry::Ttl(ttl) => instant_ns(ttl),
                Expiry::At(at) => at,
            },
        };
        let answer = into_result(self.api.clone().acquire_lock(self.request(message)).await)?;
        let (success, lock) = (answer.success, lock(answer.lock));
        Ok(Acquired {
            success,
            fencing_token: None,
            reason: None,
            blockers: Vec::new(),
            queue_position: None,
            cycle: Vec::new(),
            lock,
        })
    }

    async fn release(&self, lock_name: &str, process_id: &str) -> Result<Released, Failure> {
        let message = d::ReleaseLockRequest {
            namespace_name: "ns".into(),
            lock_name: lock_name.into(),
            process_id: process_id.into(),
        };
        let answer = into_result(self.api.clone().release_lock(self.request(message)).await)?;
        Ok(Released { released: None, lock: lock(answer.lock) })
    }

    async fn get(&self, lock_name: &str) -> Result<Lock, Failure> {
        let message = d::GetLockRequest { namespace_name: "ns".into(), lock_name: lock_name.into() };
        Ok(lock(into_result(self.api.clone().get_lock(self.request(message)).await)?.lock))
    }

    async fn delete(&self, lock_name: &str) -> Result<(), Failure> {
        let message = d::DeleteLockRequest { namespace_name: "ns".into(), lock_name: lock_name.into() };
        into_result(self.api.clone().delete_lock(self.request(message)).await).map(drop)
    }

    async fn create_namespace(&self, name: &str, description: &str) -> Result<Namespace, Failure> {
        let message = d::CreateNamespaceRequest { name: name.into(), description: description.into() };
        into_result(self.api.clone().create_namespace(self.request(message)).await)
            .map(|answer| namespace(answer.namespace))
    }

    async fn get_namespace(&self, name: &str) -> Result<Namespace, Failure> {
        let message = d::GetNamespaceRequest { namespace_name: name.into() };
        into_result(self.api.clone().get_namespace(self.request(message)).await)
            .map(|answer| namespace(answer.namespace))
    }

    async fn update_namespace(&self, name: &str, description: &str) -> Result<Namespace, Failure> {
        let message = d::UpdateNamespaceRequest { namespace_name: name.into(), description: description.into() };
        into_result(self.api.clone().update_namespace(self.request(message)).await)
            .map(|answer| namespace(answer.namespace))
    }

    async fn delete_namespace(&self, name: &str) -> Result<(), Failure> {
        let message = d::DeleteNamespaceRequest { namespace_name: name.into() };
        into_result(self.api.clone().delete_namespace(self.request(message)).await).map(drop)
    }

    async fn list_namespaces(&self) -> Result<Vec<Namespace>, Failure> {
        let answer = into_result(self.api.clone().list_namespaces(self.request(d::ListNamespacesRequest {})).await)?;
        Ok(answer.namespaces.into_iter().map(|found| namespace(Some(found))).collect())
    }
}

fn lock(message: Option<d::Lock>) -> Lock {
    let message = message.expect("an answer has the lock");
    Lock {
        state: match message.state() {
            d::LockState::Unlocked => State::Unlocked,
            d::LockState::ReadLocked => State::ReadLocked,
            d::LockState::WriteLocked => State::WriteLocked,
        },
        name: message.name,
        locked_at_ms: (message.locked_at != 0).then_some(message.locked_at / 1_000_000),
        writer: message.write_lock_holder.map(holder),
        readers: message.read_lock_holders.into_iter().map(holder).collect(),
        revision: None,
        waiting: None,
    }
}

fn holder(message: d::LockHolder) -> Holder {
    Holder {
        process_id: message.process_id,
        locked_at_ms: message.locked_at / 1_000_000,
        expires_at_ms: message.expires_at / 1_000_000,
        mode: None,
        fencing_token: None,
        remaining_ms: None,
        in_transition: None,
        metadata: None,
    }
}

fn namespace(message: Option<d::Namespace>) -> Namespace {
    let message = message.expect("an answer has the namespace");
    Namespace {
        name: message.name,
        description: message.description,
        created_at_ms: message.created_at / 1_000_000,
        updated_at_ms: message.updated_at / 1_000_000,
        id: None,
    }
}
