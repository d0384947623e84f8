//! Calls of the lock API, in the words of the history.

use std::sync::Arc;

use holdfast_testkit::{CallError, RestClient};
use holdfast_types::Mode;
use serde::Deserialize;
use serde_json::json;

use crate::history::{Answer, Call, Hold, View};

/// Makes a call of the lock API.
///
/// # Errors
/// If the answer is an error, or does not come.
pub async fn call_lock(
    api: &RestClient,
    namespace: &str,
    name: &str,
    owner: &str,
    call: Call,
) -> Result<Answer, CallError> {
    let path = format!("/v1/namespaces/{namespace}/locks/{name}");
    match call {
        Call::Acquire { mode, ttl_ms, token } => {
            let mode = if mode == Mode::Write { "WRITE" } else { "READ" };
            let mut body = json!({"process_id": owner, "mode": mode, "ttl_ms": ttl_ms});
            if let Some(token) = token {
                body["fencing_token"] = json!(token);
            }
            let answer: AcquireResponse = api.fetch(&format!("POST {path}/acquire"), Some(body)).await?;
            Ok(Answer {
                success: answer.success,
                token: answer.fencing_token,
                reason: answer.reason.map(|reason| reason.code),
                lock: answer.lock.into(),
            })
        }
        Call::Release { token } => {
            let mut body = json!({"process_id": owner});
            if let Some(token) = token {
                body["fencing_token"] = json!(token);
            }
            let answer: ReleaseResponse = api.fetch(&format!("POST {path}/release"), Some(body)).await?;
            Ok(Answer { success: answer.released, token: None, reason: None, lock: answer.lock.into() })
        }
        Call::Delete => {
            api.delete(&path).await?;
            // The answer shows nothing, which is a view of nothing rather than of a free lock.
            let lock = View { revision: 0, holds: Vec::new(), is_whole: false };
            Ok(Answer { success: true, token: None, reason: None, lock })
        }
        Call::Get => {
            let lock = get_lock(api, namespace, name).await?;
            Ok(Answer { success: true, token: None, reason: None, lock })
        }
    }
}

/// Reads a lock.
///
/// # Errors
/// If the answer is an error, or does not come.
pub async fn get_lock(api: &RestClient, namespace: &str, name: &str) -> Result<View, CallError> {
    let line = format!("GET /v1/namespaces/{namespace}/locks/{name}");
    let answer: GetLockResponse = api.fetch(&line, None).await?;
    Ok(answer.lock.into())
}

#[derive(Deserialize)]
struct AcquireResponse {
    success: bool,
    fencing_token: Option<u64>,
    reason: Option<Reason>,
    lock: Lock,
}

#[derive(Deserialize)]
struct Reason {
    code: String,
}

#[derive(Deserialize)]
struct ReleaseResponse {
    released: bool,
    lock: Lock,
}

#[derive(Deserialize)]
struct GetLockResponse {
    lock: Lock,
}

#[derive(Deserialize)]
struct Lock {
    write_lock_holder: Option<Holder>,
    read_lock_holders: Vec<Holder>,
    holders_total: usize,
    revision: u64,
}

#[derive(Deserialize)]
struct Holder {
    process_id: String,
    mode: String,
    fencing_token: u64,
}

impl From<Lock> for View {
    fn from(lock: Lock) -> Self {
        let holders = lock.write_lock_holder.into_iter().chain(lock.read_lock_holders);
        let holds: Vec<Hold> = holders
            .map(|holder| Hold {
                token: holder.fencing_token,
                owner: Arc::from(holder.process_id),
                mode: if holder.mode == "WRITE" { Mode::Write } else { Mode::Read },
            })
            .collect();
        Self { revision: lock.revision, is_whole: holds.len() == lock.holders_total, holds }
    }
}
