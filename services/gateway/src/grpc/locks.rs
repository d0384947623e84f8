//! `LocksService`.

use holdfast_core::Mode;
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{Call, GrpcDoor, show, status};
use crate::error::{ApiError, ApiResult};
use crate::service::{AcquireLock, ListLocks, ReleaseLock};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::locks_service_server::LocksService for GrpcDoor {
    async fn acquire_lock(&self, request: Request<v1::AcquireLockRequest>) -> Answer<v1::AcquireLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let request = acquire(message).map_err(status)?;
        let answer = self.service.acquire_lock(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(show::acquired(answer)))
    }

    async fn release_lock(&self, request: Request<v1::ReleaseLockRequest>) -> Answer<v1::ReleaseLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let request = release(message).map_err(status)?;
        let answer = self.service.release_lock(&caller, &context, request).await.map_err(status)?;
        let lock = Some(show::lock(answer.lock));
        Ok(Response::new(v1::ReleaseLockResponse { released: answer.released, lock }))
    }

    async fn get_lock(&self, request: Request<v1::GetLockRequest>) -> Answer<v1::GetLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let name = flat_name(message.name, message.path).map_err(status)?;
        let lock = self.service.get_lock(&caller, &context, &message.namespace, &name).await.map_err(status)?;
        Ok(Response::new(v1::GetLockResponse { lock: Some(show::lock(lock)) }))
    }

    async fn delete_lock(&self, request: Request<v1::DeleteLockRequest>) -> Answer<v1::DeleteLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let name = flat_name(message.name, message.path).map_err(status)?;
        self.service.delete_lock(&caller, &context, &message.namespace, &name).await.map_err(status)?;
        Ok(Response::new(v1::DeleteLockResponse {}))
    }

    async fn check_lock(&self, request: Request<v1::CheckLockRequest>) -> Answer<v1::CheckLockResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let name = flat_name(message.name, message.path).map_err(status)?;
        let (namespace, token) = (&message.namespace, message.fencing_token);
        let answer = self.service.check_lock(&caller, &context, namespace, &name, token).await.map_err(status)?;
        let lock = Some(show::lock(answer.lock));
        Ok(Response::new(v1::CheckLockResponse { current: answer.current, lock }))
    }

    async fn list_locks(&self, request: Request<v1::ListLocksRequest>) -> Answer<v1::ListLocksResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let page = show::page(message.page_size, message.page_token);
        let request = ListLocks { namespace: message.namespace, prefix: message.prefix, page };
        let page = self.service.list_locks(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(v1::ListLocksResponse {
            locks: page.items.into_iter().map(show::lock).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }
}

fn acquire(message: v1::AcquireLockRequest) -> ApiResult<AcquireLock> {
    let mode = match v1::Mode::try_from(message.mode) {
        Ok(v1::Mode::Write) => Mode::Write,
        Ok(v1::Mode::Read) => Mode::Read,
        Err(_) => return Err(ApiError::invalid("mode", "mode: must be READ or WRITE")),
    };
    Ok(AcquireLock {
        namespace: message.namespace,
        name: flat_name(message.name, message.path)?,
        process_id: process_id(message.process_id, message.session_id, message.holder)?,
        mode,
        ttl_ms: message.ttl_ms,
        expires_at: show::parse_instant("expires_at", message.expires_at)?,
        dlocks_expires_at_ns: None,
        transition_ms: message.transition_ms,
        metadata: message.metadata.into_iter().collect(),
        fencing_token: message.fencing_token,
    })
}

fn release(message: v1::ReleaseLockRequest) -> ApiResult<ReleaseLock> {
    Ok(ReleaseLock {
        namespace: message.namespace,
        name: flat_name(message.name, message.path)?,
        process_id: process_id(message.process_id, message.session_id, message.holder)?,
        fencing_token: message.fencing_token,
    })
}

/// The lock of a name, or of a path of one segment.
fn flat_name(name: Option<String>, mut path: Vec<String>) -> ApiResult<String> {
    match (name, path.len()) {
        (Some(name), 0) => Ok(name),
        (Some(_), _) => Err(ApiError::invalid("path", "path: only one of name and path may be given")),
        (None, 0) => Err(ApiError::invalid("name", "name: one of name and path is needed")),
        (None, 1) => Ok(path.swap_remove(0)),
        (None, _) => Err(ApiError::not_served("path")),
    }
}

/// The owner of a call by a process id.
fn process_id(process_id: Option<String>, session_id: Option<String>, holder: Option<String>) -> ApiResult<String> {
    if session_id.is_some() {
        return Err(ApiError::not_served("session_id"));
    }
    if holder.is_some() {
        return Err(ApiError::invalid("holder", "holder: only goes with a session_id"));
    }
    process_id.ok_or_else(|| ApiError::invalid("process_id", "process_id: is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: Option<&str>, path: &[&str]) -> Result<String, &'static str> {
        let path = path.iter().map(|&segment| segment.to_owned()).collect();
        flat_name(name.map(str::to_owned), path).map_err(|error| error.ids[0].0)
    }

    #[test]
    fn a_lock_is_named_by_a_name_or_by_a_path_but_not_by_both() {
        assert_eq!(named(Some("a/b"), &[]).unwrap(), "a/b");
        assert_eq!(named(None, &["a/b"]).unwrap(), "a/b");
        assert!(named(Some("a"), &["a"]).is_err());
        assert!(named(None, &[]).is_err());
        assert!(named(None, &["a", "b"]).is_err());
    }

    #[test]
    fn an_unknown_mode_is_refused_by_name() {
        let message = v1::AcquireLockRequest { name: Some("l".into()), mode: 9, ..Default::default() };
        assert_eq!(acquire(message).unwrap_err().ids, [("field", "mode".to_owned())]);
    }

    #[test]
    fn an_acquire_that_does_not_say_asks_for_writing() {
        let message =
            v1::AcquireLockRequest { name: Some("l".into()), process_id: Some("p".into()), ..Default::default() };
        assert_eq!(acquire(message).unwrap().mode, Mode::Write);
    }

    #[test]
    fn owners_that_are_sessions_are_refused_by_name() {
        let refused = |session: Option<&str>, holder: Option<&str>| {
            process_id(None, session.map(str::to_owned), holder.map(str::to_owned)).unwrap_err().ids[0].1.clone()
        };
        assert_eq!(refused(Some("se_1"), None), "session_id");
        assert_eq!(refused(None, Some("h")), "holder");
        assert_eq!(refused(None, None), "process_id");
    }
}
