//! The REST frontend.

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{
    AcquireRequest, Acquired, Expiry, Failure, FencingLockClient, Holder, Lock, LockClient, Mode, Namespace, Released,
    State,
};
use crate::support::segment;
use holdfast_testkit::{Response, RestClient};

pub(crate) struct Client(RestClient);

impl Client {
    async fn post(&self, lock: &str, verb: &str, body: Value) -> Result<Value, Failure> {
        into_result(self.0.json(&format!("POST {}/{verb}", path(lock)), body).await)
    }
}

fn path(lock: &str) -> String {
    format!("/v1/namespaces/ns/locks/{}", segment(lock))
}

fn into_result(answer: Response) -> Result<Value, Failure> {
    if answer.status < 400 {
        return Ok(answer.body);
    }
    let code = answer.body["code"].as_str().unwrap().to_owned();
    let Value::Object(mut members) = answer.expect_error(&code) else { panic!("a problem is an object") };
    let detail = members["detail"].as_str().unwrap().to_owned();
    for member in ["type", "title", "status", "code", "detail"] {
        members.remove(member);
    }
    let ids = members
        .into_iter()
        .map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
    let ids = ids.collect();
    Err(Failure { code, detail, ids })
}

impl LockClient for Client {
    async fn connect(rest: &RestClient) -> Self {
        Self(rest.clone())
    }

    async fn acquire(&self, ask: AcquireRequest) -> Result<Acquired, Failure> {
        let mut body = Map::new();
        body.insert("process_id".into(), json!(ask.process_id));
        body.insert("mode".into(), json!(if ask.mode == Mode::Read { "READ" } else { "WRITE" }));
        match ask.expiry {
            Expiry::Ttl(ttl) => body.insert("ttl_ms".into(), json!(u64::try_from(ttl.as_millis()).unwrap())),
            Expiry::At(at) => body.insert("expires_at".into(), json!(rfc3339(at))),
        };
        if ask.transition_ms > 0 {
            body.insert("transition_ms".into(), json!(ask.transition_ms));
        }
        if let Some(token) = ask.fencing_token {
            body.insert("fencing_token".into(), json!(token));
        }
        if ask.wait_ms > 0 {
            body.insert("wait_ms".into(), json!(ask.wait_ms));
        }
        if let Some(poll_ms) = ask.poll_ms {
            body.insert("poll_ms".into(), json!(poll_ms));
        }
        if ask.allow_upgrade {
            body.insert("allow_upgrade".into(), json!(true));
        }
        if !ask.metadata.is_empty() {
            body.insert("metadata".into(), json!(ask.metadata));
        }
        let body = self.post(&ask.lock, "acquire", Value::Object(body)).await?;
        let who = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().map(|one| text(&one["process_id"])).collect()
        };
        Ok(Acquired {
            success: body["success"].as_bool().unwrap(),
            fencing_token: body["fencing_token"].as_u64(),
            reason: body["reason"]["code"].as_str().map(str::to_owned),
            blockers: who(&body["reason"]["blockers"]),
            queue_position: body["reason"]["queue_position"].as_u64(),
            cycle: who(&body["reason"]["cycle"]),
            lock: lock(&body["lock"]),
        })
    }

    async fn release(&self, name: &str, process_id: &str) -> Result<Released, Failure> {
        let body = self.post(name, "release", json!({"process_id": process_id})).await?;
        Ok(Released { released: body["released"].as_bool(), lock: lock(&body["lock"]) })
    }

    async fn get(&self, name: &str) -> Result<Lock, Failure> {
        Ok(lock(&into_result(self.0.call(&format!("GET {}", path(name))).await)?["lock"]))
    }

    async fn delete(&self, name: &str) -> Result<(), Failure> {
        into_result(self.0.call(&format!("DELETE {}", path(name))).await).map(drop)
    }

    async fn create_namespace(&self, name: &str, description: &str) -> Result<Namespace, Failure> {
        let body = json!({"name": name, "description": description});
        Ok(namespace(&into_result(self.0.json("POST /v1/namespaces", body).await)?))
    }

    async fn get_namespace(&self, name: &str) -> Result<Namespace, Failure> {
        Ok(namespace(&into_result(self.0.call(&format!("GET /v1/namespaces/{}", segment(name))).await)?))
    }

    async fn update_namespace(&self, name: &str, description: &str) -> Result<Namespace, Failure> {
        let line = format!("PATCH /v1/namespaces/{}", segment(name));
        Ok(namespace(&into_result(self.0.json(&line, json!({"description": description})).await)?))
    }

    async fn delete_namespace(&self, name: &str) -> Result<(), Failure> {
        into_result(self.0.call(&format!("DELETE /v1/namespaces/{}", segment(name))).await).map(drop)
    }

    async fn list_namespaces(&self) -> Result<Vec<Namespace>, Failure> {
        let body = into_result(self.0.call("GET /v1/namespaces").await)?;
        Ok(body["namespaces"].as_array().unwrap().iter().map(namespace).collect())
    }
}

impl FencingLockClient for Client {
    async fn release_token(&self, name: &str, process_id: &str, fencing_token: u64) -> Result<Released, Failure> {
        let body = json!({"process_id": process_id, "fencing_token": fencing_token});
        let body = self.post(name, "release", body).await?;
        Ok(Released { released: body["released"].as_bool(), lock: lock(&body["lock"]) })
    }

    async fn check(&self, name: &str, fencing_token: u64) -> Result<bool, Failure> {
        let body = self.post(name, "check", json!({"fencing_token": fencing_token})).await?;
        Ok(body["current"].as_bool().unwrap())
    }

    async fn list_locks(
        &self,
        prefix: &[&str],
        page_size: u32,
        page_token: &str,
    ) -> Result<(Vec<String>, Option<String>), Failure> {
        let mut line = format!("GET /v1/namespaces/ns/locks?page_size={page_size}&page_token={page_token}");
        for part in prefix {
            line += &format!("&prefix={}", segment(part));
        }
        let body = into_result(self.0.call(&line).await)?;
        let names = body["locks"].as_array().unwrap().iter().map(|lock| text(&lock["name"])).collect();
        Ok((names, body["next_page_token"].as_str().map(str::to_owned)))
    }
}

pub(crate) fn rfc3339(instant_ns: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(instant_ns.into()).unwrap().format(&Rfc3339).unwrap()
}

/// Instants are answered in UTC with milliseconds.
fn instant_ms(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or_else(|| panic!("no instant: {value}"));
    assert!(text.len() == 24 && text.ends_with('Z') && &text[19..20] == ".", "{text}");
    let instant = OffsetDateTime::parse(text, &Rfc3339).unwrap();
    i64::try_from(instant.unix_timestamp_nanos() / 1_000_000).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn lock(value: &Value) -> Lock {
    assert_eq!(value["namespace"], "ns", "{value}");
    assert_eq!(value["path"], json!([value["name"]]), "{value}");
    let writer = &value["write_lock_holder"];
    Lock {
        name: text(&value["name"]),
        state: match value["state"].as_str().unwrap() {
            "UNLOCKED" => State::Unlocked,
            "READ_LOCKED" => State::ReadLocked,
            "WRITE_LOCKED" => State::WriteLocked,
            other => panic!("{other} is no state"),
        },
        locked_at_ms: (!value["locked_at"].is_null()).then(|| instant_ms(&value["locked_at"])),
        writer: (!writer.is_null()).then(|| holder(writer)),
        readers: value["read_lock_holders"].as_array().unwrap().iter().map(holder).collect(),
        revision: value["revision"].as_u64(),
        waiting: value["waiting"].as_u64(),
    }
}

fn holder(value: &Value) -> Holder {
    // Only holds of sessions have these.
    assert_eq!((&value["session_id"], &value["holder"]), (&Value::Null, &Value::Null));
    let metadata = value["metadata"].as_object().unwrap().iter();
    Holder {
        process_id: text(&value["process_id"]),
        locked_at_ms: instant_ms(&value["locked_at"]),
        expires_at_ms: instant_ms(&value["expires_at"]),
        mode: Some(if value["mode"] == "READ" { Mode::Read } else { Mode::Write }),
        fencing_token: value["fencing_token"].as_u64(),
        remaining_ms: value["remaining_ms"].as_u64(),
        in_transition: Some(value["phase"] == "TRANSITION"),
        metadata: Some(metadata.map(|(key, value)| (key.clone(), text(value))).collect()),
    }
}

fn namespace(value: &Value) -> Namespace {
    Namespace {
        name: text(&value["name"]),
        description: text(&value["description"]),
        created_at_ms: instant_ms(&value["created_at"]),
        updated_at_ms: instant_ms(&value["updated_at"]),
        id: value["id"].as_str().map(str::to_owned),
    }
}
